"""Cost files that are missing, for another machine, or malformed end in one clear line; what hardware
shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policies.catalog import card, cards, model
from policies.core.errors import CostFileError
from policies.core.plan import Chunk
from sim.costs.describe import describe_cards, describe_hardware, describe_models
from sim.costs.load import load_cost_model, shipped, shipped_path
from sim.costs.swap import break_even_bytes_per_s, swap_choice
from sim.costs.terms import GraphTerm, HostTerm, interpolate
from tests.command import batchscope, own_csv, settings

SHAPE = model("llama-2-7b")
CARD = card("a100-80gb")


def written(folder: Path, change: dict[str, Any]) -> str:
    """The shipped file with some dotted keys replaced (or removed, for None), as a file in ``folder``."""
    data = json.loads(shipped_path(SHAPE.name, CARD.name).read_text())
    for key, value in change.items():
        *parents, last = key.split(".")
        place = data
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path = folder / "costs.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_a_file_given_by_path_is_used(tmp_path: Path) -> None:
    costs = load_cost_model(SHAPE, CARD, written(tmp_path, {"terms.swap.bytes_per_s": 50e9, "version": 7}))
    assert costs.swap_time_s(1_000_000_000, 1) == pytest.approx(0.02)
    assert (costs.name, costs.version) == ("a100-80gb_llama-2-7b", 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "schema is 'other'"),
        ({"terms.linear": None}, "'terms.linear.num_tokens' is missing"),
        ({"terms.swap.copy_s": "12"}, r"'terms.swap.copy_s' is '12'; it must be a number"),
        ({"terms.swap.copy_s": -1}, r"must be a number >= 0"),
        ({"terms.head.seconds": [1.0]}, r"num_rows and seconds of 'terms.head' must be lists of one length"),
        ({"terms.head": {"num_rows": [2, 1], "seconds": [1, 1]}}, "rising order"),
        ({"terms.head": {"num_rows": [1, 2], "seconds": [1, -1]}}, "must hold numbers >= 0"),
        ({"terms.decode.contexts": [1, 2]}, "'terms.decode.contexts' must begin with 0"),
        ({"terms.decode.contexts": [0, -2]}, r"'terms.decode.contexts' must hold integers >= 0 in rising order"),
        ({"terms.decode.seconds": [1]}, "'terms.decode.seconds' must hold a list for each of num_seqs"),
        ({"terms.decode.num_seqs": [1], "terms.decode.seconds": [[1]]}, r"must hold numbers >= 0, \d in each list"),
        ({"tp": 2}, "its tp is 2, not 1"),
        ({"model": "llama-2-13b"}, "its model is 'llama-2-13b', not 'llama-2-7b'"),
        ({"card": "h100-80gb"}, "its card is 'h100-80gb', not 'a100-80gb'"),
        ({"held_out": 1}, "'held_out' must be an object"),
    ],
)
def test_a_malformed_file_is_refused_by_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostFileError, match=message) as caught:
        load_cost_model(SHAPE, CARD, written(tmp_path, change))
    assert "costs.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_missing_pair_are_named(tmp_path: Path) -> None:
    with pytest.raises(CostFileError, match=r"nowhere\.json: cannot be read"):
        load_cost_model(SHAPE, CARD, str(tmp_path / "nowhere.json"))
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(CostFileError, match=r"text\.json: not JSON"):
        load_cost_model(SHAPE, CARD, str(tmp_path / "text.json"))
    with pytest.raises(CostFileError, match="no cost file is shipped for opt-13b on a100-80gb"):
        load_cost_model(model("opt-13b"), CARD, "calibrated")
    with pytest.raises(CostFileError, match="on a100-80gb with weights of 4 and KV of 16 bits"):
        load_cost_model(SHAPE._replace(weight_bits=4), CARD, "calibrated")
    with pytest.raises(CostFileError, match="opt-13b on 2 x a100-80gb"):
        load_cost_model(model("opt-13b").shard(2), CARD, "calibrated")


def test_every_shipped_file_loads_and_names_its_sources() -> None:
    for name in shipped():
        card_name, model_name, *group = name.split("_")
        tp = int(group[0].removeprefix("tp")) if group else 1
        file = load_cost_model(model(model_name).shard(tp), card(card_name), "calibrated").file
        assert (file.name, file.tp) == (name, tp)
        assert {"linear", "decode", "prefill", "head", "swap", "floor"} <= file.provenance.keys()
        assert file.held_out["step"]["median"] <= 0.015
        assert file.held_out["step"]["p95"] <= 0.08


def test_cards_are_listed_with_their_source() -> None:
    text = describe_cards()
    assert all(entry.name in text for entry in cards())
    assert text.count(", nominal") == len(cards())


def test_hardware_shows_every_term_and_the_break_even() -> None:
    text = describe_hardware(load_cost_model(SHAPE, CARD))
    for term in ("weights", "activations, assumed", "reserve, assumed", "118,288 tokens", "recompute"):
        assert term in text
    bandwidth = break_even_bytes_per_s(load_cost_model(SHAPE, CARD), 1000)
    assert f"{bandwidth / 1e9:.1f} GB/s" in text
    assert 13e9 < bandwidth < 18e9


def test_hardware_says_how_runs_copy_and_who_wins_so() -> None:
    text = describe_hardware(load_cost_model(SHAPE, CARD))
    assert "as vLLM copies it (4,032 pieces of 128 KiB, 10.9 GB/s), which runs use:" in text
    assert "out and back 96.8 ms, recompute 70.2 ms: recompute wins; preemption_mode = auto decides by this" in text
    assert "in bulk, which no run uses: 42.3 ms: swap would win (break-even 14.9 GB/s round trip)" in text
    assert "error of the sum of measured operators, not of measured steps" in text


@pytest.mark.parametrize("num_tokens", [16, 128, 512, 1008, 2000])
def test_what_hardware_says_of_swapping_is_what_auto_does(num_tokens: int, tmp_path: Path) -> None:
    # Two prompts fill the pool to the last block; decodes push the second request out.
    trace = tmp_path / "two.csv"
    trace.write_text(own_csv((0, num_tokens, 8), (0, num_tokens, 8)))
    keys = {"preemption_mode": '"auto"', "watermark": 0.0, "num_gpu_blocks": 2 * num_tokens // 16}
    options = settings(**{f"engine__{name}": value for name, value in keys.items()})
    done = batchscope("run", "--trace", trace, "--policy", "vllm-0.6", *options, "--json").summary["preemptions"]
    choice = swap_choice(load_cost_model(SHAPE, CARD), num_tokens, 16)
    assert {mode for mode in ("recompute", "swap") if done[mode]} == {choice.winner}


def test_auto_has_lengths_for_both_sides() -> None:
    costs = load_cost_model(SHAPE, CARD)
    assert {swap_choice(costs, num_tokens, 16).winner for num_tokens in (128, 1008)} == {"swap", "recompute"}


def test_lists_say_which_pairs_have_a_cost_file() -> None:
    by_card = {line.split()[0]: line for line in describe_cards().splitlines()}
    by_model = {line.split()[0]: line for line in describe_models().splitlines()}
    assert by_card.pop("card").split()[-4:] == ["cost", "file", "for", "source"]
    assert by_model.pop("model").endswith("cost file")
    cards_of_7b = ["a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb"]
    assert [name for name, line in by_card.items() if "llama-2-7b" in line] == cards_of_7b
    files = {name.split("_")[1] for name in shipped()}
    assert {name for name in by_model if "  yes, on " in by_model[name]} == files
    assert by_model["llama-2-70b"].endswith(" yes, on a100-40gb (tp 4, 8), a100-80gb (tp 2, 4, 8)")
    assert by_model["llama-3.1-8b"].endswith(", rtxpro6000-96gb")
    assert by_model["opt-13b"].endswith(" no")


def test_hardware_says_what_a_pair_lacks() -> None:
    text = describe_hardware(load_cost_model(model("llama-2-70b"), card("l4-24gb")))
    assert "KV pool: none. llama-2-70b on l4-24gb leaves no room" in text
    assert "cost model: roofline version 1, no measurement of this model on this card" in text
    assert "accuracy: 0.70 to 1.08 of the measured time in 90 % of 648 published runs" in text


def test_a_measured_host_time_takes_the_place_of_the_presets_and_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, {"terms.host": {"base_s": 0.25, "per_seq_s": 0.5}})
    # Its steps were measured with the graphs of their engine, so none is padded again.
    padded = load_cost_model(SHAPE, CARD, path, graphs=GraphTerm((1, 2, 4, 8)))
    assert padded.step_time_s(3, 3, 300, 100, ()) == load_cost_model(SHAPE, CARD, path).step_time_s(3, 3, 300, 100, ())
    assert load_cost_model(SHAPE, CARD, path, HostTerm(9.0)).host_time_s(2) == 1.25
    assert load_cost_model(SHAPE, CARD, path, None).host_time_s(2) == 0.0
    with pytest.raises(CostFileError, match=r"'terms\.host\.per_seq_s' is missing"):
        load_cost_model(SHAPE, CARD, written(tmp_path, {"terms.host": {"base_s": 1}}))


def test_a_kernel_of_both_kinds_adds_what_its_terms_say(tmp_path: Path) -> None:
    rtx = card("rtxpro6000-96gb")
    shape = model("llama-3.1-8b")
    costs = load_cost_model(shape, rtx)
    file = costs.file
    assert file.mixed is not None
    assert file.chunks is not None
    chunk = Chunk(1, 1024, 512, True)
    arguments = (512 + 32, 32, 32 * 900, 1200)
    mixed = costs.parts(*arguments, (chunk,))
    walk_s = shape.layers * interpolate(file.chunks.contexts, file.chunks.walk, 1200)
    row = file.chunks.row(512)
    added_s = shape.layers * (interpolate(file.chunks.contexts, row, 1024) - row[0])
    expected_s = shape.layers * (
        interpolate(file.mixed.decode.contexts, file.mixed.decode.at(32), 900)
        + file.mixed.decode.uneven_s * 300
        + file.mixed.token_seq_s * 512 * 32
    ) - file.mixed.share(512) * min(walk_s, added_s)
    assert mixed["decode_attention"] == pytest.approx(expected_s, rel=1e-9)
    assert mixed["prefill_attention"] == pytest.approx(
        shape.layers * (file.prefill.step_s + interpolate(file.chunks.contexts, row, 1024)), rel=1e-9
    )
    # Beside a chunk, decoding costs more than alone: that kernel does not split contexts.
    assert mixed["decode_attention"] > costs.parts(32, 32, 32 * 900, 1200)["decode_attention"]
    whole_s = costs.step_time_s(*arguments, (chunk,))
    assert whole_s == pytest.approx(sum(mixed.values()), rel=1e-12)


def test_chunks_beyond_the_table_grow_with_their_square() -> None:
    table = load_cost_model(model("llama-3.1-8b"), card("rtxpro6000-96gb")).file.chunks
    assert table is not None
    longest = table.num_tokens[-1]
    last, twice = table.row(longest), table.row(2 * longest)
    assert twice[0] == pytest.approx(4 * last[0])
    assert twice[-1] - twice[0] == pytest.approx(2 * (last[-1] - last[0]))
    assert table.row(1) == table.seconds[0]


def test_walks_as_far_as_the_longest_cost_each_sequence(tmp_path: Path) -> None:
    costs = load_cost_model(SHAPE, CARD, written(tmp_path, {"terms.decode.uneven_seq_s": 1e-6}))
    even = load_cost_model(SHAPE, CARD)
    more_s = costs.step_time_s(8, 8, 8 * 500, 900, ()) - even.step_time_s(8, 8, 8 * 500, 900, ())
    assert more_s == pytest.approx(SHAPE.layers * 1e-6 * 8 * 400, rel=1e-6)
    base_s, slope_s, _ = costs.decode_curve(8, 8, 8 * 500, 900)
    assert base_s + slope_s * 8 * 500 == costs.step_time_s(8, 8, 8 * 500, 900, ())


def test_hardware_says_what_was_computed_and_when_it_was_measured() -> None:
    text = describe_hardware(load_cost_model(model("llama-2-13b"), card("a100-40gb")))
    assert "generation_attention_perf.parquet (computed from the a100-80gb's)" in text
    assert "; data: published 2026" in text
    text = describe_hardware(load_cost_model(model("llama-3.1-8b"), card("rtxpro6000-96gb")))
    assert "; data: 2026-04-24" in text
    assert "computed from" not in text
