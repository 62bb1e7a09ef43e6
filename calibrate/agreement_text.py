"""What an agreement found, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from calibrate.agreement_steps import EDGES
from sim.latencies import SHOWN, in_short


def short_page(found: Mapping[str, Any]) -> str:
    """A row a workload: the figures that have limits, their errors, and the noise."""
    lines = [
        _conditions(found),
        "",
        "| workload | TTFT mean: measured, simulated | ITL mean | output tokens/s | preemptions |",
        "|---|--:|--:|--:|--:|",
    ]
    for case in found["workloads"]:
        known = {one["figure"]: one for one in case["figures"]}
        lines.append(
            _line(
                f"{case['name']} ({case['what']})",
                *(_short(known[figure]) for figure in ("ttft_s mean", "itl_s mean", "output_tokens_per_s")),
                ", ".join(
                    f"{_value(figure, one['measured'])}, {_value(figure, one['simulated'])}"
                    for figure, one in known.items()
                    if figure.startswith("preemptions") and (one["measured"] or one["simulated"])
                ),
            )
        )
    return "\n".join([*lines, "", _verdict(found)])


def _short(one: Mapping[str, Any]) -> str:
    values = f"{_value(one['figure'], one['measured'])}, {_value(one['figure'], one['simulated'])}"
    noise = "" if one["noise"] is None else f"; noise {100 * one['noise']:.1f} %"
    unit = " ms" if one["figure"].partition(" ")[0] in SHOWN else ""
    return f"{values}{unit} ({100 * one['error']:+.1f} %{noise})"


def page(found: Mapping[str, Any]) -> str:
    """Every figure, every kind of step, and whether all is within its limit."""
    lines = [
        _conditions(found),
        "",
        "| workload | figure | measured | simulated | error | noise | limit |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for case in found["workloads"]:
        lines += _rows(case)
    lines += ["", *_decisions(found), "", *_paces(found), "", *_steps(found)]
    return "\n".join([*lines, "", _verdict(found)])


def _conditions(found: Mapping[str, Any]) -> str:
    plan = found["plan"]
    return (
        f"Measured on {found['device']}, {found['date']}: the {found['model']} shape, random weights, {found['dtype']};"
        f" {plan['scale']['num_requests']} requests a workload, medians of {plan['rounds']} runs, calibrated on"
        f" {found['calibration_steps']} kinds of steps timed between them."
    )


def _paces(found: Mapping[str, Any]) -> Iterator[str]:
    for case in found["workloads"]:
        paces = ", ".join(f"{pace:.2f}" for pace in case["pace"])
        yield f"Time a step took in each run over what it took mostly, {case['name']}: {paces}."


def _verdict(found: Mapping[str, Any]) -> str:
    missed = [
        f"{case['name']}: {_words(one['figure'])}"
        for case in found["workloads"]
        for one in case["figures"]
        if not one["holds"]
    ]
    return f"Beyond its limit: {'; '.join(missed)}." if missed else "All within their limits."


def _rows(case: Mapping[str, Any]) -> Iterator[str]:
    name = f"{case['name']} ({case['what']})"
    for one in case["figures"]:
        if not one["measured"] and not one["simulated"]:
            continue
        yield _line(
            name,
            _words(one["figure"]),
            _value(one["figure"], one["measured"]),
            _value(one["figure"], one["simulated"]),
            "-" if one["error"] is None else f"{100 * one['error']:+.1f} %",
            "-" if one["noise"] is None else f"{100 * one['noise']:.1f} %",
            "" if one["limit"] is None else f"{100 * one['limit']:.1f} %" + ("" if one["holds"] else ", missed"),
        )
        name = ""


def _decisions(found: Mapping[str, Any]) -> Iterator[str]:
    for case in found["workloads"]:
        differs = case["first_differing_decision"]
        if differs is not None:
            yield f"First differing decision, {case['name']}: {differs or 'none'}."


def _steps(found: Mapping[str, Any]) -> Iterator[str]:
    bounds = [f"{100 * edge:+.0f}" for edge in EDGES]
    bins = [f"< {bounds[0]} %", *(f"{low} to {high}" for low, high in pairwise(bounds))]
    yield _line("error of predicted steps", "number", "median, ms", "error of the sum", *bins, f">= {bounds[-1]}")
    yield _line("---", *["--:"] * (len(bins) + 4))
    for case in found["workloads"]:
        for kind, one in case["steps"].items():
            shares = [f"{100 * count / one['steps']:.0f} %" if count else "" for count in one["histogram"]]
            yield _line(
                f"{case['name']}: {kind}",
                f"{one['steps']:,}",
                f"{1e3 * one['median_s']:.2f}",
                f"{100 * one['error_of_sum']:+.1f} %",
                *shares,
            )


def _words(figure: str) -> str:
    name, _, statistic = figure.partition(" ")
    return f"{in_short(name, statistic)}, ms" if name in SHOWN else "output tokens/s" if "tokens" in name else figure


def _value(figure: str, value: float) -> str:
    if figure.partition(" ")[0] in SHOWN:
        return f"{1e3 * value:,.1f}"
    return f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
