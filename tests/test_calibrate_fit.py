"""The fit from the public operator tables: it makes the shipped file, states its error, refuses impossible
rows."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrate.band import band_of
from calibrate.checks import Limits
from calibrate.cli import describe_fit, run_fit
from calibrate.fit import errors_of, fit, fit_profile
from calibrate.fitting import decode_knots, fit_host, fit_linear
from calibrate.profile import Measurement
from calibrate.roofline import fit_roofline
from calibrate.sources import fitted_groups, recipe_for
from policies.catalog import card, model
from policies.core.errors import CatalogError, CostFileError
from sim.costs.load import load_cost_model, shipped_path
from sim.costs.roofline import ROOFLINE_FILE, Shares
from sim.costs.terms import HostTerm
from tests.own_profile import own_profile

SHAPE = model("llama-2-7b")
CARD = card("a100-80gb")
LINEAR, GEMM, DECODE, PREFILL, UNEVEN = (table.source for table in recipe_for(SHAPE.name, CARD.name).tables)
SAMPLE = (("llama-2-7b", "a100-80gb", 1), ("llama-3-8b", "a100-40gb", 1), ("llama-3.1-8b", "h200-141gb", 4))
"""A file of each kind is fitted anew by every run of the tests, all of them by ``make costs``."""


@pytest.fixture(scope="module")
def fitted(shared_data: Path) -> dict[str, Any]:
    return fit(SHAPE, CARD, shared_data / "profiles")


@pytest.fixture
def tables(shared_data: Path, tmp_path: Path) -> Path:
    """A writable copy of the tables the fit reads."""
    for source in (LINEAR, DECODE, PREFILL, GEMM):
        shutil.copyfile(shared_data / "profiles" / source.file, tmp_path / source.file)
    shutil.copyfile(shared_data / "e2e" / UNEVEN.file, tmp_path / UNEVEN.file)
    return tmp_path


def edit(path: Path, choose: Callable[[dict[str, str]], bool], changes: dict[str, str]) -> int:
    """Change some cells of the first row chosen; returns the row's number."""
    with gzip.open(path, "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
    index = next(i for i, row in enumerate(rows) if choose(row))
    rows[index].update(changes)
    with gzip.open(path, "wt", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return index + 2


def close(left: Any, right: Any) -> bool:
    """Equal structure and text, numbers within 1e-4 (the last digits may differ between solver versions)."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, float):
        return bool(left == pytest.approx(right, rel=1e-4, abs=1e-5 if left > 1e-4 else 0.0))
    return bool(left == right)


@pytest.mark.parametrize(
    ("model_name", "card_name", "tp"), fitted_groups() if os.environ.get("BATCHSCOPE_ALL_COSTS") else SAMPLE
)
def test_the_shipped_file_is_a_fresh_fit(shared_data: Path, model_name: str, card_name: str, tp: int) -> None:
    shipped = json.loads(shipped_path(model_name, card_name, tp).read_text())
    assert close(fit(model(model_name), card(card_name), shared_data / "profiles", tp), shipped)


def test_the_shipped_roofline_is_a_fresh_fit(shared_data: Path) -> None:
    content = fit_roofline(shared_data)
    content["band"], content["provenance"]["band"] = band_of(Shares(**content["shares"]), shared_data / "measured")
    assert close(content, json.loads(ROOFLINE_FILE.read_text()))


def test_held_out_error_of_the_step(fitted: dict[str, Any]) -> None:
    for key in ("step", "step_decode", "step_prefill", "step_chunk_on_context"):
        errors = fitted["held_out"][key]
        assert errors["points"] >= 28
        assert errors["median"] <= 0.01
        assert errors["p95"] <= 0.04


def test_run_fit_writes_a_file_that_loads_and_prints_the_errors(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    text = run_fit(str(shared_data), SHAPE.name, CARD.name, str(out))
    costs = load_cost_model(SHAPE, CARD, str(out))
    assert costs.file == load_cost_model(SHAPE, CARD).file
    assert "step, held out, all" in text
    assert str(out) in text
    with pytest.raises(CostFileError, match=r"--out .* cannot be written"):
        run_fit(str(shared_data), SHAPE.name, CARD.name, str(tmp_path / "no" / "costs.json"))


def test_the_printed_table_is_the_files(fitted: dict[str, Any]) -> None:
    row = next(
        line for line in describe_fit(fitted).splitlines() if line.startswith("step, held out, decode")
    )
    errors = fitted["held_out"]["step_decode"]
    assert row.split()[-4:] == [f"{100 * errors[key]:.2f}" for key in ("median", "p95", "max")] + [
        str(errors["points"])
    ]


@pytest.mark.parametrize(
    ("file", "choose", "changes", "message"),
    [
        (DECODE.file, ("kind", "decode"), {"kv_cache_size": "400000"}, "attention of 1 x 1 tokens"),
        (
            PREFILL.file,
            ("num_heads", "32"),
            {"num_key_value_heads": "32", "isl": "90000"},
            "attention",
        ),
        (GEMM.file, ("k", "4096"), {"latency_ms": "0.0001"}, "product .* needs"),
        (
            LINEAR.file,
            ("num_tensor_parallel_workers", "1"),
            {"time_stats.mlp_up_proj.median": "0.01"},
            "mlp_up_proj: product",
        ),
        (
            DECODE.file,
            ("kind", "decode"),
            {"median_ms": "fast"},
            "'median_ms' is 'fast', not a number",
        ),
        (DECODE.file, ("kind", "decode"), {"median_ms": "-1"}, "it must be a number >= 0"),
    ],
)
def test_an_impossible_row_is_refused_by_name(
    tables: Path, file: str, choose: tuple[str, str], changes: dict[str, str], message: str
) -> None:
    key, value = choose
    number = edit(tables / file, lambda row: row[key] == value, changes)
    with pytest.raises(CostFileError, match=message) as caught:
        fit(SHAPE, CARD, tables)
    assert f"{file}, row {number}" in str(caught.value)


def test_tables_that_cannot_be_used_are_named(tables: Path) -> None:
    path = tables / DECODE.file
    with gzip.open(path, "wt") as stream:
        stream.write("kind,batch_size\ndecode,1\n")
    with pytest.raises(CostFileError, match="row 2: column 'median_ms' is missing"):
        fit(SHAPE, CARD, tables)
    with gzip.open(path, "wt") as stream:
        stream.write("kind,batch_size,prefill_chunk_size,kv_cache_size,median_ms\n")
    with pytest.raises(CostFileError, match="has no rows; use the table as published"):
        fit(SHAPE, CARD, tables)
    path.unlink()
    with pytest.raises(CostFileError, match="cannot be read"):
        fit(SHAPE, CARD, tables)


def test_unknown_pairs_and_folders_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"llama-2-70b on a100-80gb; known are a100-80gb: llama-2-7b, "):
        fit(model("llama-2-70b"), CARD, tmp_path)
    with pytest.raises(CostFileError, match="no such folder"):
        run_fit(str(tmp_path / "none"), SHAPE.name, CARD.name, str(tmp_path / "out.json"))


def test_knots_stand_on_both_sides_of_the_waves() -> None:
    knots = decode_knots(heads=32, num_sms=108, largest=128)
    assert {3, 4, 6, 7, 13, 14, 20, 21, 27, 28} <= set(knots)
    assert (knots[0], knots[-1]) == (1, 128)


def test_the_linear_table_takes_medians_and_tiles() -> None:
    term = fit_linear({128: [1.0, 2.0, 9.0], 2048: [32.0], 4096: [66.0, 62.0]})
    assert term.seconds == (2.0, 32.0, 64.0)
    assert term.tile_s == 2.0
    assert term.at(4097) == 66.0


def test_half_the_resolution_of_the_clock_is_forgiven() -> None:
    limits = Limits(CARD)
    floor_s = 4096 * 4096 * 2 / CARD.bytes_per_s
    limits.gemm("here", 1, 4096, 4096, floor_s - 0.4e-6, SHAPE)
    with pytest.raises(CostFileError, match="here: product 1 x 4096 x 4096"):
        limits.gemm("here", 1, 4096, 4096, floor_s - 0.6e-6, SHAPE)


def test_errors_are_summarised_with_linear_percentiles() -> None:
    errors = errors_of([i / 100 for i in range(101)])
    assert errors == pytest.approx((0.5, 0.95, 1.0, 101))


def test_host_time_is_fitted_to_steps_that_decode_and_to_those_that_prefill() -> None:
    term = HostTerm(base_s=0.3e-3, per_seq_s=0.01e-3, prefill_s=0.25e-3)
    decodes = [Measurement("host", "own", term.at(batch), sequences=batch) for batch in (1, 4, 16)]
    prefills = [
        Measurement("host_prefill", "own", term.at(batch, prefills=True), sequences=batch, chunks=chunks)
        for batch, chunks in ((1, 1), (4, 1), (16, 4))
    ]
    assert fit_host(decodes, prefills) == pytest.approx(term)
    assert fit_host(decodes).prefill_s == 0
    quicker = [row._replace(seconds=1e-4) for row in prefills]
    assert fit_host(decodes, quicker).prefill_s == 0


def test_host_times_of_steps_that_prefill_need_those_of_steps_that_decode() -> None:
    profile = own_profile()
    rows = tuple(row for row in profile.rows if row.operator != "host")
    with pytest.raises(CostFileError, match="own: has rows of 'host_prefill' but none of 'host'"):
        fit_profile(profile._replace(rows=rows), SHAPE, CARD, name="own")
