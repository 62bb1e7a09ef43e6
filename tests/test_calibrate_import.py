"""Operator tables of other tools become profiles: every kind, their units, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from calibrate.fit import fit_profile
from calibrate.fit_steps import fit_steps
from calibrate.importing import TOOLS, import_profile
from calibrate.importing_aic import product_s
from calibrate.importing_installed import installed_tables
from calibrate.operators import LINEAR_OPERATORS
from calibrate.profile_file import read_profile
from policies.catalog import card, model
from policies.core.errors import ConfigError, CostFileError
from sim.costs.load import load_cost_model
from tests.command import batchscope

SHAPE = model("llama-3.1-8b")
CARD = card("h100-80gb")
GEMM = "m,n,k,gemm_dtype,latency_ms\n"
ATTENTION = "batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,latency_ms\n"


def table(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def gemm_rows(dtype: str = "bfloat16") -> str:
    """Products of a few widths and depths that take 10 us and 2e-16 s a multiplication: 3e-3 at 4,096 x 4,096."""
    sizes = (1024, 4096, 8192, 16384, 65536)
    return "".join(
        f"{m},{n},{k},{dtype},{1e3 * (1e-5 + 1e-12 * n * k * (1 + m / 64))}\n"
        for m in (1, 64, 1024)
        for n in sizes
        for k in sizes
    )


def test_products_are_put_together_to_a_layer(tmp_path: Path) -> None:
    path = table(tmp_path, "gemm.csv", GEMM + gemm_rows() + gemm_rows("fp8").replace("0.0", "9.9"))
    profile = import_profile("aiconfigurator", [path], SHAPE, CARD)
    linear = {row.tokens: row.seconds for row in profile.of("linear")}
    parameters = SHAPE.layer_matrix_parameters
    # 10 us for each of four products; five small operators of 2.5 us at least.
    least_s = 4e-5 + 1e-12 * parameters * 2
    assert least_s + 12.5e-6 <= linear[64] <= least_s + 20e-6
    (head,) = (row.seconds for row in profile.of("head") if row.sequences == 64)
    assert head == pytest.approx((128_256 / 65_536) * (1e-5 + 1e-12 * 65_536 * 4096 * 2), rel=1e-6)
    assert "interpolated" in profile.sources["gemm"].method
    assert profile.sources["gemm"].licence == "Apache-2.0"


def test_widths_and_depths_between_and_beyond() -> None:
    seconds = {k: {n: {1: 1.0 * n * k} for n in (1, 4)} for k in (2, 8)}
    assert product_s(seconds, 1, 2, 2) == 4
    assert product_s(seconds, 1, 2, 4) == pytest.approx(8)
    assert product_s(seconds, 1, 8, 16) == pytest.approx(128)


def attention_rows(heads: int, kv_heads: int, batches: tuple[int, ...] = (1, 2, 4, 8)) -> str:
    return "".join(
        f"{batch},{tokens if not step else 1},{heads},{kv_heads},128,bfloat16,bfloat16,{step},{1e3 * seconds}\n"
        for batch in batches
        for tokens, step, seconds in (
            (512, 0, 1e-4 * batch * heads / 32),
            (0, 1023, 1e-5 + 1e-5 * batch * kv_heads),
        )
    )


def test_heads_that_a_table_lacks_are_read_as_other_numbers_of_sequences(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", ATTENTION + attention_rows(8, 8) + attention_rows(64, 8))
    # Llama-2-7B has 32 heads without grouping: one sequence is four of 8 heads.
    whole = import_profile("aiconfigurator", [path], model("llama-2-7b"), CARD)
    assert {(row.sequences, round(1e5 * row.seconds)) for row in whole.of("decode")} == {(1, 33), (2, 65)}
    # 5 of its 40 heads on each of 8 GPUs: B sequences lie between two numbers of the table's.
    part = import_profile("aiconfigurator", [path], model("llama-2-13b").shard(8), CARD)
    assert [row.sequences for row in part.of("decode")] == [2, 4, 8]
    assert part.of("decode")[0].seconds == pytest.approx(1e-5 + 1e-5 * 8 * 2 * 5 / 8)
    # 32 queries over 8 KV heads: K and V are those of 64 over 8; half the work of a prompt.
    grouped = import_profile("aiconfigurator", [path], SHAPE, CARD)
    assert {row.sequences: row.seconds for row in grouped.of("decode")}[4] == pytest.approx(1e-5 + 1e-5 * 4 * 8)
    assert {row.chunks: row.seconds for row in grouped.of("prefill")}[2] == pytest.approx(2e-4)


def test_an_installed_distribution_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="pip install aiconfigurator-core, or name its files"):
        installed_tables(CARD)
    from pyarrow import Table, parquet

    data = tmp_path / "aiconfigurator_core" / "systems" / "data" / "h100_sxm"
    record = []
    for version, name, text in (
        ("0.9.0", "gemm/vllm/0.9.0/gemm_perf", GEMM + gemm_rows().replace("bfloat16,0", "bfloat16,9")),
        ("0.24.0", "gemm/vllm/0.24.0/gemm_perf", GEMM + gemm_rows()),
        ("0.24.0", "attention/vllm/0.24.0/generation_attention_perf", ATTENTION + attention_rows(32, 8)),
    ):
        header, *lines = (line.split(",") for line in text.splitlines())
        columns = dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))
        # The distribution calls the column so.
        columns["latency"] = [float(value) for value in columns.pop("latency_ms")]
        path = data / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(Table.from_pydict(columns), path)
        record.append(f"{path.relative_to(tmp_path)},,\n")
        assert version in str(path)
    info = tmp_path / "aiconfigurator_core-0.12.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.12.0\n")
    (info / "RECORD").write_text("".join(record))
    monkeypatch.syspath_prepend(str(tmp_path))
    profile = import_profile("aiconfigurator", [Path("installed")], SHAPE, CARD)
    assert {row.operator for row in profile.rows} == {"linear", "head", "decode", "prefill"}
    assert max(row.seconds for row in profile.of("linear")) < 0.1  # not those of the older version
    origin = profile.sources["gemm_perf"].origin
    assert origin == (
        "aiconfigurator-core 0.12.0: systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    )
    with pytest.raises(ConfigError, match="has no vllm tables of a10g-24gb"):
        installed_tables(card("a10g-24gb"))


def test_every_table_of_the_new_llmservingsim_profiler(shared_data: Path, tmp_path: Path) -> None:
    names = ("dense", "per_sequence", "attention", "skew")
    files = [shared_data / "e2e" / f"llmservingsim_rtxpro6000_llama31-8b_{name}.csv.gz" for name in names]
    out = tmp_path / "rtx.csv.gz"
    options = ("--model", "llama-3.1-8b", "--hardware", "rtxpro6000-96gb", "--date", "2026-04-24", "--out", out)
    ended = batchscope("calibrate", "import", "llmservingsim", *files, *options)
    assert ended.exit_code == 0, ended.stderr
    assert "152 linear, 171 decode, 233 prefill, 18,960 mixed" in ended.stdout
    profile = read_profile(out)
    (row,) = (row for row in profile.of("linear") if row.tokens == 1)
    assert row.seconds == pytest.approx(317e-6, rel=0.02)
    assert profile.of("head")[0].seconds == pytest.approx(738.752e-6)


def test_the_older_llmservingsim_tables_have_a_layer_its_head_and_impossible_decodes(shared_data: Path) -> None:
    layers = shared_data / "profiles" / "llmservingsim_h100_llama31-8b_tp1_layers.csv.gz"
    profile = import_profile("llmservingsim", [layers], SHAPE, CARD)
    assert {row.operator for row in profile.rows} == {"linear", "prefill", "head"}
    attention = shared_data / "profiles" / "llmservingsim_h100_llama31-70b_tp4_attention.csv.gz"
    with pytest.raises(CostFileError, match=r"attention\.csv\.gz, row \d+: attention of \d+ x 1 tokens over .* needs"):
        import_profile("llmservingsim", [attention], model("llama-3.1-70b").shard(4), CARD)


def test_whole_steps_of_splitwise_sim_make_a_cost_file(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "profiles" / "splitwise_perf_model.csv.gz"
    device, shape = card("a100-80gb"), model("llama-2-70b").shard(4)
    profile = import_profile("splitwise-sim", [path], shape, device)
    assert {row.operator for row in profile.rows} == {"step"}
    found = fit_profile(profile, shape, device)
    assert found.cost_file["held_out"]["step"]["points"] == len(profile.rows) // 3
    assert found.cost_file["held_out"]["step"]["median"] < 0.1
    out = tmp_path / "costs.json"
    out.write_text(json.dumps(found.cost_file))
    costs = load_cost_model(shape, device, str(out))
    rows = {(row.sequences, row.context): row.seconds for row in profile.rows if row.sequences}
    for (batch, context), seconds in rows.items():
        if batch >= 8:
            assert costs.step_time_s(batch, batch, batch * context, context, ()) == pytest.approx(seconds, rel=0.2)
    # A tenth of the time is less than the attention of the longest.
    short = profile._replace(rows=tuple(row._replace(seconds=row.seconds / 1e3) for row in profile.rows))
    with pytest.raises(CostFileError, match=r"own: a step of .* is less than its attention alone would"):
        fit_steps(short, shape, device, "own")


def test_a_table_in_another_unit_is_refused(tmp_path: Path) -> None:
    sizes = [(m, n, k) for m in (1, 64) for n in (1024, 65_536) for k in (1024, 65_536)]
    slow = "".join(
        f"{m},{n},{k},bfloat16,{1e6 * (1e-5 + 1e-12 * n * k)}\n" for m, n, k in sizes
    )
    with pytest.raises(CostFileError, match=r"gemm\.csv: its times are [\d,]+ times what the h100-80gb needs"):
        import_profile("aiconfigurator", [table(tmp_path, "gemm.csv", GEMM + slow)], model("llama-3.1-70b"), CARD)


def test_profiles_are_joined(tmp_path: Path) -> None:
    gemm = table(tmp_path, "gemm.csv", GEMM + gemm_rows())
    attention = table(tmp_path, "attention.csv", ATTENTION + attention_rows(32, 8))
    options = ("--model", "llama-3.1-8b", "--hardware", "h100-80gb")
    parts = []
    for path in (gemm, attention):
        parts.append(path.with_suffix(".profile"))
        made = batchscope("calibrate", "import", "aiconfigurator", path, *options, "--out", parts[-1])
        assert made.exit_code == 0, made.stderr
    out = tmp_path / "both.csv"
    assert batchscope("calibrate", "import", "batchscope", *parts, *options, "--out", out).exit_code == 0
    both = read_profile(out)
    assert list(both.sources) == ["gemm", "attention"]
    assert both.rows == read_profile(parts[0]).rows + read_profile(parts[1]).rows
    other = batchscope("calibrate", "import", "batchscope", *parts, *options[:3], "h200-141gb", "--out", out)
    assert "its card is 'h100-80gb', not 'h200-141gb'" in other.stderr


@pytest.mark.parametrize(
    ("tool", "text", "message"),
    [
        ("vidurr", "a\n1\n", "'vidurr' is no known tool; did you mean 'vidur'?"),
        ("vidur", "a,b\n1,2\n", "has the columns a, b, as no known table of Vidur; known are mlp.csv"),
        ("aiconfigurator", "a,b\n1,2\n", "as no known table of aiconfigurator; known are gemm_perf"),
        ("aiconfigurator", "message_size\n1\n", "is a table of communication, which a profile does not hold"),
        ("aiconfigurator", "m,n,k\n1,64,64\n", "row 2: column 'latency_ms' is missing; use the table as published"),
        ("aiconfigurator", "m,n,k,latency_ms\n1,4096,4096,0.0001\n", "row 2: product 1 x 4096 x 4096 takes"),
        ("aiconfigurator", "m,n,k,latency_ms\n1.5,64,64,1\n", "row 2: 'm' is 1.5; it must be a whole number"),
        ("aiconfigurator", "m,n,k,latency_ms\n1,64,64,nan\n", "row 2: 'latency_ms' is nan; it must be a number >= 0"),
        ("llmservingsim", "layer,tokens,time_us\nqkv_proj,1,x\n", "row 2: 'time_us' is 'x', not a number"),
        ("llmservingsim", "layer,tokens\nqkv_proj,1\n", "as no known table of LLMServingSim; known are dense"),
        ("splitwise-sim", "model\nx\n", "as no known table of splitwise-sim"),
        ("aiconfigurator", ATTENTION, "has no rows; use the table as published"),
        (
            "aiconfigurator",
            ATTENTION + "1,1,3,3,128,bfloat16,bfloat16,7,1\n",
            "has no rows of llama-3.1-8b on 1 x h100-80gb (32 heads of 128, 8 for KV)",
        ),
        ("batchscope", "a\n1\n", "is no profile"),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path: Path, tool: str, text: str, message: str) -> None:
    path = table(tmp_path, "table.csv", text)
    options = ("--model", "llama-3.1-8b", "--hardware", "h100-80gb", "--out", tmp_path / "out.csv")
    ended = batchscope("calibrate", "import", tool, path, *options)
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


def test_the_help_names_every_tool() -> None:
    text = " ".join(batchscope("calibrate", "import", "--help").stdout.split())
    assert all(tool in text for tool in TOOLS)


def vidur_rows(seconds: float = 0.5, widths: str = "32,4096,11008") -> str:
    """Vidur's linear operators of Llama-2-7B, each of ``seconds`` ms."""
    names = ",".join(f"time_stats.{name}.median" for name in LINEAR_OPERATORS)
    times = ",".join([str(seconds)] * len(LINEAR_OPERATORS))
    return f"{names},n_head,n_embd,n_expanded_embd,num_tokens,num_tensor_parallel_workers\n{times},{widths},1,1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (vidur_rows(widths="64,8192,28672"), "row 2: n_embd is 8192, in llama-2-7b 4096"),
        (vidur_rows(widths="32,4096,14336"), "row 2: n_expanded_embd is 14336, in llama-2-7b 11008"),
        (vidur_rows(1e300), "a row of linear takes"),
    ],
)
def test_a_table_of_another_model_or_beyond_all_times_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = table(tmp_path, "mlp.csv", text)
    with pytest.raises(CostFileError, match=re.escape(said)):
        import_profile("vidur", [path], model("llama-2-7b"), card("a100-80gb"))


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    plain = table(tmp_path, "mlp.csv", vidur_rows())
    marked = tmp_path / "marked.csv"
    marked.write_text(vidur_rows(), encoding="utf-8-sig")
    group = (model("llama-2-7b"), card("a100-80gb"))
    found = [import_profile("vidur", [path], *group).rows[0].seconds for path in (plain, marked)]
    assert found[0] == found[1]


def test_a_packed_table_with_damaged_bytes_is_one_line(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(vidur_rows().encode() * 50))
    path = tmp_path / "mlp.csv.gz"
    for cut in range(12, len(packed) - 8, 5):
        path.write_bytes(packed[:cut] + b"\xff\xff\xff" + packed[cut + 3 :])
        with pytest.raises(CostFileError, match=r"mlp\.csv\.gz"):
            import_profile("vidur", [path], model("llama-2-7b"), card("a100-80gb"))
