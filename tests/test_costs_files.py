"""Cost files that are missing, for another machine, or malformed end in one clear line; what hardware
shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policies.catalog import card, cards, model
from policies.core.errors import CostFileError
from sim.costs.describe import break_even_bytes_per_s, describe_cards, describe_hardware
from sim.costs.load import load_cost_model, shipped, shipped_path

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
    with pytest.raises(CostFileError, match="no cost file is shipped for llama-2-13b on a100-80gb"):
        load_cost_model(model("llama-2-13b"), CARD)


def test_every_shipped_file_loads_and_names_its_sources() -> None:
    for name in shipped():
        card_name, model_name = name.split("_")
        file = load_cost_model(model(model_name), card(card_name)).file
        assert file.name == name
        assert {"linear", "decode", "prefill", "head", "swap", "floor"} <= file.provenance.keys()
        assert file.held_out["step"]["median"] <= 0.015
        assert file.held_out["step"]["p95"] <= 0.05


def test_cards_are_listed_with_their_source() -> None:
    text = describe_cards()
    assert all(entry.name in text for entry in cards())
    assert text.count("vendor data sheet, nominal") == len(cards())


def test_hardware_shows_every_term_and_the_break_even() -> None:
    text = describe_hardware(CARD, SHAPE)
    for term in ("weights", "activations, assumed", "reserve, assumed", "118,288 tokens", "recompute"):
        assert term in text
    bandwidth = break_even_bytes_per_s(load_cost_model(SHAPE, CARD), 1000)
    assert f"{bandwidth / 1e9:.1f} GB/s" in text
    assert 13e9 < bandwidth < 18e9


def test_hardware_says_what_a_pair_lacks() -> None:
    text = describe_hardware(card("l4-24gb"), model("llama-2-70b"))
    assert "KV pool: none. llama-2-70b on l4-24gb leaves no room" in text
    assert "cost model: none. no cost file is shipped" in text
