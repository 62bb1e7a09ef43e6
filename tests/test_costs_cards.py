"""The roofline on every card, parts of a tensor-parallel group, quantised models, all-reduce, graphs and host time."""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.band import fit_host, host_of, predicted_s, read_runs
from calibrate.links import fit_links
from policies.catalog import Card, ModelShape, card, cards, model, models
from policies.core.errors import ConfigError
from policies.core.plan import Chunk
from policies.preset import HostTime
from policies.presets import preset
from sim import simulate
from sim.costs.links import LINKS_FILE, link_of
from sim.costs.load import load_cost_model
from sim.costs.model import CostModel
from sim.costs.roofline import ROOFLINE_FILE, Shares
from sim.costs.terms import GraphTerm, HostTerm
from sim.machine import host_term
from tests.command import message_of, settings

CARDS = st.sampled_from(cards())
MODELS = st.sampled_from(models())
BITS = st.sampled_from((16, 8, 4))
HOST = preset("vllm-0.6").host or HostTime(0, 0, "")


def prefill_s(costs: CostModel, num_seqs: int, tokens: int) -> float:
    """One step for ``num_seqs`` prompts of ``tokens`` each."""
    return costs.step_time_s(num_seqs * tokens, 0, 0, 0, [Chunk(0, 0, tokens, True)] * num_seqs)


def decode_s(costs: CostModel, num_seqs: int, context: int) -> float:
    """One step of ``num_seqs`` sequences that know ``context`` tokens each."""
    return costs.step_time_s(num_seqs, num_seqs, num_seqs * context, context, ())


@given(CARDS, MODELS, BITS, BITS, st.integers(1, 600), st.integers(0, 4096))
def test_no_step_of_a_roofline_is_under_the_floor(
    device: Card, shape: ModelShape, weight_bits: int, kv_bits: int, num_seqs: int, context: int
) -> None:
    whole = shape._replace(weight_bits=weight_bits, kv_bits=kv_bits)
    costs = load_cost_model(whole, device, "roofline")
    read_bytes = whole.read_bytes + num_seqs * context * whole.kv_bytes_per_token
    assert decode_s(costs, num_seqs, context) >= read_bytes / costs.card.bytes_per_s * (1 - 1e-9)
    rate = costs.card.flops_per_s * (2 if weight_bits == 8 and costs.card.fp8 else 1)
    flops = 2 * whole.layers * whole.layer_matrix_parameters
    assert decode_s(costs, num_seqs, 0) >= num_seqs * flops / rate * (1 - 1e-9)
    assert prefill_s(costs, 1, context + 1) >= (context + 1) * flops / rate * (1 - 1e-9)


def test_every_model_runs_on_every_card() -> None:
    for shape in models():
        for device in cards():
            costs = load_cost_model(shape, device, "roofline")
            assert costs.file.kind == "roofline"
            assert 0 < decode_s(costs, 1, 100) < decode_s(costs, 64, 1_000) < 10


def test_the_roofline_is_near_the_calibrated_model() -> None:
    for name, tp in (("llama-2-7b", 1), ("llama-2-70b", 2)):
        shape, device = model(name).shard(tp), card("a100-80gb")
        rough, fine = (load_cost_model(shape, device, kind) for kind in ("roofline", "calibrated"))
        for num_seqs in (1, 8, 32, 64):
            assert decode_s(rough, num_seqs, 512) == pytest.approx(decode_s(fine, num_seqs, 512), rel=0.2)
        for tokens in (512, 2_048, 4_096):
            assert prefill_s(rough, 1, tokens) == pytest.approx(prefill_s(fine, 1, tokens), rel=0.15)


def test_small_weights_and_kv_are_faster_and_leave_more_room() -> None:
    shape, device = model("llama-3-8b"), card("l4-24gb")
    times = [decode_s(load_cost_model(shape._replace(weight_bits=bits), device), 1, 100) for bits in (16, 8, 4)]
    assert times == sorted(times, reverse=True)
    long = [decode_s(load_cost_model(shape._replace(kv_bits=bits), device), 64, 8_000) for bits in (16, 8, 4)]
    assert long == sorted(long, reverse=True)
    whole, matrices = shape.weight_bytes, shape.layers * shape.layer_matrix_parameters
    assert shape._replace(weight_bits=4).weight_bytes == whole - matrices * 2 + matrices // 2
    assert shape._replace(kv_bits=8).block_bytes(16) * 2 == shape.block_bytes(16)


def test_a_group_splits_weights_heads_and_kv() -> None:
    shape = model("llama-2-70b")
    part = shape.shard(4)
    assert (part.heads, part.kv_heads, part.hidden, part.layers, part.tp) == (16, 2, 8192, 80, 4)
    assert part.kv_bytes_per_token * 4 == shape.kv_bytes_per_token
    assert part.weight_bytes == pytest.approx(shape.weight_bytes / 4, rel=1e-4)
    assert shape.shard(16).kv_heads == 1  # each KV head twice
    with pytest.raises(ConfigError, match=r"hardware\.tp = 5: the 64 heads"):
        shape.shard(5)


@pytest.mark.parametrize(("tp", "kib_8", "mib_2", "mib_32"), [(2, 11, 48, 224), (4, 15, 46, 288), (8, 21, 54, 367)])
def test_all_reduce_on_an_a100(tp: int, kib_8: float, mib_2: float, mib_32: float) -> None:
    """Another measurement of the same links; small messages differ by up to a third, as the two do all over."""
    term = link_of(card("a100-80gb"), tp).all_reduce
    for num_bytes, expected_us in ((8 << 10, kib_8), (2 << 20, mib_2), (32 << 20, mib_32)):
        assert 1e6 * term.at(num_bytes) == pytest.approx(expected_us, rel=0.35)


@pytest.mark.parametrize(("tp", "kib_4", "mib_1", "mib_4"), [(2, 5.0, 10.7, 25), (4, 5.3, 18, 41)])
def test_custom_all_reduce_on_an_a100(tp: int, kib_4: float, mib_1: float, mib_4: float) -> None:
    term = link_of(card("a100-80gb"), tp, "custom").all_reduce
    for num_bytes, expected_us in ((4 << 10, kib_4), (1 << 20, mib_1), (4 << 20, mib_4)):
        assert 1e6 * term.at(num_bytes) == pytest.approx(expected_us, rel=0.1)


def test_a_group_without_figures_is_refused_or_assumed() -> None:
    assert link_of(card("l4-24gb"), 4).source.startswith("assumed: a ring over pcie-4")
    with pytest.raises(ConfigError, match=r'hardware\.all_reduce = "custom": not measured on l4-24gb'):
        link_of(card("l4-24gb"), 4, "custom")
    with pytest.raises(ConfigError, match=r'hardware\.all_reduce = "custom": not measured for 2 x h100-80gb; use nccl'):
        link_of(card("h100-80gb"), 2, "custom")
    with pytest.raises(ConfigError, match=r"hardware\.tp = 3: not measured for 3 x a100-80gb; give 1, 2, 4, 8"):
        link_of(card("a100-80gb"), 3)


def test_links_are_those_of_the_tables(shared_data: Path) -> None:
    assert fit_links(shared_data / "profiles") == json.loads(LINKS_FILE.read_text())


def test_graphs_pad_what_the_engine_pads() -> None:
    shape, device = model("llama-2-7b"), card("a100-80gb")
    plain = load_cost_model(shape, device)
    sizes = (1, 2, 4, 8, 128)
    padded = load_cost_model(shape, device, graphs=GraphTerm(sizes))
    assert decode_s(padded, 65, 0) - decode_s(plain, 65, 0) == pytest.approx(
        32 * (plain.file.linear.at(128) - plain.file.linear.at(65))
    )
    assert decode_s(padded, 129, 500) == decode_s(plain, 129, 500)
    assert prefill_s(padded, 1, 65) == prefill_s(plain, 1, 65)
    everywhere = load_cost_model(shape, device, graphs=GraphTerm(sizes, pads_chunks=True))
    assert prefill_s(everywhere, 1, 65) > prefill_s(plain, 1, 65)
    base_s, slope_s, _ = padded.decode_curve(65, 65, 0, 0)
    assert base_s == decode_s(padded, 65, 0)
    assert slope_s == pytest.approx(plain.decode_curve(65, 65, 0, 0)[1])


def test_host_time_of_2023_is_that_of_the_overheads_measured(shared_data: Path) -> None:
    """Scheduling, sampling, inputs and outputs of Llama-2-7B on one GPU, and with Ray those of Llama-2-70B on four."""
    with gzip.open(shared_data / "profiles" / "vidur_a100_cpu_overheads.csv.gz", "rt", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["model_name"].startswith("meta-llama/Llama-2-")]
    parts = ("schedule", "sampler_e2e", "prepare_inputs_e2e", "process_model_outputs")
    for tp in (1, 4):
        host = host_term(preset("vllm-0.2.7"), tp)
        ratios = []
        for row in rows:
            if int(row["tensor_parallel_degree"]) == tp:
                measured_ms = sum(float(row[f"{part}_mean"]) for part in parts)
                measured_ms += float(row["ray_comm_time_mean"]) if tp > 1 else 0.0
                ratios.append(1e3 * host.at(int(row["batch_size"])) / measured_ms)
        assert statistics.median(ratios) == pytest.approx(1, abs=0.1)
    assert host_term(preset("vllm-0.33"), 1) == HostTerm()


class Measured(NamedTuple):
    """Medians of one kind of run of ``splitwise_perf_model``, in seconds."""

    prompt_tokens: int
    num_seqs: int
    output_tokens: int
    prompt_s: float
    token_s: float


def splitwise_runs(folder: Path) -> Iterator[Measured]:
    """Llama-2-70B on two A100 80 GB. The five rows of 64 prompts of 512 have a prompt time that is a fifteenth of what
    their number takes (0.79 s against 6.6 s for half as many) and are left out."""
    groups: dict[tuple[int, int, int], list[dict[str, str]]] = {}
    with gzip.open(folder / "profiles" / "splitwise_perf_model.csv.gz", "rt", newline="") as stream:
        for row in csv.DictReader(stream):
            if (row["model"], row["hardware"], row["tensor_parallel"]) == ("llama2-70b", "a100-80gb", "2"):
                key = (int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"]))
                groups.setdefault(key, []).append(row)
    for (prompt, batch, output), rows in groups.items():
        if (prompt, batch) == (512, 64):
            assert len(rows) == 5
            continue
        prompt_s, token_s = (
            statistics.median(float(row[name]) for row in rows) / 1e3 for name in ("prompt_time", "token_time")
        )
        yield Measured(prompt, batch, output, prompt_s, token_s)


def test_llama_2_70b_on_two_a100_as_measured(shared_data: Path) -> None:
    """Whole steps of vLLM of 2023, whose host time is its preset's."""
    shape = model("llama-2-70b").shard(2)
    costs = load_cost_model(shape, card("a100-80gb"), "calibrated", host_term(preset("vllm-0.2.7"), 2))
    alone: list[float] = []
    together: list[float] = []
    tokens: list[float] = []
    for run in splitwise_runs(shared_data):
        error = prefill_s(costs, run.num_seqs, run.prompt_tokens) / run.prompt_s - 1
        (alone if run.num_seqs == 1 else together).append(abs(error))
        token_s = decode_s(costs, run.num_seqs, run.prompt_tokens + run.output_tokens // 2)
        tokens.append(abs(token_s / run.token_s - 1))
    assert len(alone) >= 6
    assert max(alone) <= 0.08
    assert statistics.mean(together) <= 0.15
    assert max(tokens) <= 0.15


CLIENTS = (
    "workload.generator=closed-loop",
    "workload.concurrency=2",
    "workload.num_requests=4",
    'workload.prompt={dist="fixed", value=100}',
    'workload.output={dist="fixed", value=20}',
)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hardware.pp=2", "hardware.pp: pipeline stages are not simulated yet"),
        ("hardware.tp=0", "hardware.tp = 0: give a whole number"),
        ("hardware.tp=3", "hardware.tp = 3: the 32 heads"),
        ("model.weight_bits=5", "model.weight_bits = 5: give one of 16, 8, 4"),
        ("model.kv_bits=true", "model.kv_bits = true: give one of 16, 8, 4"),
        ("model.config=none.json", "model.config = none.json: cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message_of("run", *settings(*CLIENTS, setting)).startswith(message)


def test_a_run_on_a_group_without_a_cost_file_says_so() -> None:
    summary = simulate(model="qwen3-32b", hardware="h100-80gb", overrides=(*CLIENTS, "hardware.tp=2")).summary
    assert summary["hardware"] == "2 x h100-80gb"
    assert summary["cost_model"]["kind"] == "roofline"
    assert summary["cost_model"]["band"]["p5"] < 1 < summary["cost_model"]["band"]["p95"]
    assert any("roofline, not calibrated on qwen3-32b on 2 x h100-80gb" in note for note in summary["notes"])


def test_a_group_has_the_pool_and_the_steps_of_its_parts() -> None:
    two, four = (
        simulate(model="llama-2-70b", overrides=(*CLIENTS, f"hardware.tp={tp}", "hardware.cost_model=roofline")).summary
        for tp in (2, 4)
    )
    # Twice the cards: half the weights on each, and each holds half of a token's KV.
    assert four["kv"]["num_gpu_blocks"] > 10 * two["kv"]["num_gpu_blocks"]
    assert two["itl_s"]["mean"] > 1.6 * four["itl_s"]["mean"]


def test_host_time_of_vllm_is_what_its_runs_take_beyond_the_operators(shared_data: Path) -> None:
    shares = Shares(**json.loads(ROOFLINE_FILE.read_text())["shares"])
    assert fit_host(shares, shared_data / "measured") == pytest.approx(
        (HOST.base_s, HOST.per_seq_s, HOST.parallel_s), rel=0.01
    )


def test_vllm_on_an_a100_40gb_as_measured(shared_data: Path) -> None:
    """Whole batches of Llama-2-7B on one card, those that its memory holds."""
    shares = Shares(**json.loads(ROOFLINE_FILE.read_text())["shares"])
    runs = [
        run
        for run in read_runs(shared_data / "measured")
        if (run.engine, run.card.name, run.shape.name, run.shape.tp) == ("vllm", "a100-40gb", "llama-2-7b", 1)
    ]
    errors = [abs(predicted_s(run, shares, host_of(run)) / run.seconds - 1) for run in runs]
    assert len(errors) >= 10
    assert statistics.mean(errors) <= 0.035
    assert max(errors) <= 0.06


def test_host_time_can_be_left_out() -> None:
    with_host, without = (
        simulate(policy="vllm-0.6", overrides=(*CLIENTS, f"hardware.host_term={term}")).summary
        for term in ("true", "false")
    )
    assert with_host["itl_s"]["mean"] - without["itl_s"]["mean"] == pytest.approx(HOST.base_s + 2 * HOST.per_seq_s)
    assert any(note.startswith("no host term") for note in without["notes"])
    assert not any(note.startswith("no host term") for note in with_host.get("notes", ()))
