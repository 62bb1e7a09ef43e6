"""The end of a check: one page of tables, for the terminal and for a README, of what was measured on which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.gpu.record import Settings, found_in, read_stage
from calibrate.gpu.stages import STAGES
from sim.runs import write_whole

Found = Mapping[str, Any]
_TARGET_CARD = "h200-141gb"
_DECODE_TIMES = ("step_s", "graph_s", "eager_s", "bound_s")


class Target(NamedTuple):
    """A target of the executor on an H200 with Llama-2-7B: what is measured, its limit as written, and how to find the
    number and judge it."""

    what: str
    limit: str
    measured: Callable[[Found, Found], float | None]
    met: Callable[[float], bool]
    shown: Callable[[float], str]


def page(settings: Settings) -> str:
    """All of it in Markdown."""
    parts = {stage.name: found_in(settings.out, stage.name) for stage in STAGES}
    lines = [*_head(settings, parts["environment"]), "", *_stages(settings), ""]
    if settings.on_cuda and settings.model == "llama-2-7b":
        lines += [*_targets(parts), ""]
    lines += _grids(parts["grids"], parts["environment"])
    lines += _fit(parts["fit"])
    lines += _runs(parts["replay"], parts["simulate"])
    lines += _attention(parts["attention"])
    return "\n".join(lines).rstrip() + "\n"


def _head(settings: Settings, environment: Found) -> Iterator[str]:
    known = environment.get("environment", {})
    name = known.get("name", settings.device)
    versions = ", ".join(f"{key} {known[key]}" for key in ("driver", "torch", "triton", "python") if known.get(key))
    yield f"Measured with `python -m calibrate.gpu_check` on **{name}**, {known.get('date', '-')}: {settings.model},"
    yield f"random weights, {environment.get('dtype', '-')}; {versions or 'versions unknown'}."
    ceilings = environment.get("ceilings", {})
    if ceilings:
        words = [f"copy {ceilings['copy_bytes_per_s'] / 1e9:,.0f} GB/s"] if "copy_bytes_per_s" in ceilings else []
        if "matmul_flops_per_s" in ceilings:
            size, rate = ceilings["matmul_size"], ceilings["matmul_flops_per_s"]
            words.append(f"{size:.0f}^3 product {rate / 1e12:,.2f} TFLOPS")
        for key, what in (("h2d", "host to device"), ("d2h", "device to host")):
            if f"{key}_merged_bytes_per_s" in ceilings:
                words.append(f"{what} {ceilings[f'{key}_merged_bytes_per_s'] / 1e9:,.1f} GB/s")
        yield f"Ceilings measured in the same run: {', '.join(words)}."


def _stages(settings: Settings) -> Iterator[str]:
    contents = [(stage, read_stage(settings.out, stage.name)) for stage in STAGES]
    rows = [
        (stage.name, content["status"], f"{content['seconds']:.1f}", content["error"])
        for stage, content in contents
        if content is not None
    ]
    yield from _table(("stage", "status", "s", "remark"), rows)


# -- targets -------------------------------------------------------------------------------------------------


def _decode_at(batch: int) -> Callable[[Found, Found], float | None]:
    def find(environment: Found, grids: Found) -> float | None:
        for row in grids.get("decode", ()):
            if (row["sequences"], row["context"]) == (batch, 275):
                found: float | None = row.get("graph_s")
                return found
        return None

    return find


def _prefill_2048(environment: Found, grids: Found) -> float | None:
    for row in grids.get("prefill", ()):
        if (row["sequences"], row["chunk_tokens"], row["chunk_context"]) == (0, 2048, 0):
            return float(row["step_s"])
    return None


def _swap_share(environment: Found, grids: Found) -> float | None:
    """Of the largest transfer, the slower direction beside the pinned copy of that direction."""
    rows, ceilings = grids.get("swap", ()), environment.get("ceilings", {})
    shares = [
        rows[-1][f"{kind}_bytes_per_s"] / ceilings[key]
        for kind, key in (("out", "d2h_merged_bytes_per_s"), ("in", "h2d_merged_bytes_per_s"))
        if rows and key in ceilings
    ]
    return min(shares) if shares else None


def _host_outside(environment: Found, grids: Found) -> float | None:
    rows = [row for row in grids.get("host", ()) if row["clients"] == 32]
    return rows[0]["outside_graph_s"] if rows else None


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _at_most(limit: float) -> Callable[[float], bool]:
    return lambda value: value <= limit


TARGETS = (
    Target("decode, 1 sequence, context 275, graph", "<= 3.7 ms", _decode_at(1), _at_most(3.7e-3), _ms),
    Target("decode, 8 sequences, context 275, graph", "<= 4.1 ms", _decode_at(8), _at_most(4.1e-3), _ms),
    Target("decode, 32 sequences, context 275, graph", "<= 5.2 ms", _decode_at(32), _at_most(5.2e-3), _ms),
    Target("prefill, 2,048 tokens", "<= 46 ms", _prefill_2048, _at_most(46e-3), _ms),
    Target(
        "swap, of the pinned bandwidth of this run", ">= 85 %", _swap_share, lambda share: share >= 0.85,
        lambda share: f"{100 * share:.1f} %",
    ),
    Target("host outside the graph a step, 32 sequences", "<= 0.3 ms", _host_outside, _at_most(0.3e-3), _ms),
)  # fmt: skip


def _targets(parts: Mapping[str, Found]) -> Iterator[str]:
    """What the targets are about was measured on this card; they were set for an H200."""
    known = parts["environment"].get("environment", {})
    name, on_target = known.get("name", "this device"), known.get("card") == _TARGET_CARD
    rows = []
    for target in TARGETS:
        value = target.measured(parts["environment"], parts["grids"])
        verdict = "not measured" if value is None else "met" if target.met(value) else "missed"
        shown = "-" if value is None else target.shown(value)
        rows.append((target.what, target.limit, shown, verdict if on_target or value is None else "(another card)"))
    yield from _table(("", "target on H200", f"measured on {name}", ""), rows)


# -- what was measured ---------------------------------------------------------------------------------------


def _grids(grids: Found, environment: Found) -> Iterator[str]:
    def cell(row: Found, key: str) -> str:
        return "-" if row.get(key) is None else f"{1e3 * row[key]:.3f}"

    if grids.get("decode"):
        rows = [
            (f"{row['sequences']} x {row['context']}", *(cell(row, key) for key in _DECODE_TIMES))
            for row in grids["decode"]
        ]
        yield from _table(("decode, ms", "step", "graph alone", "eager step", "bound"), rows)
        yield ""
    if grids.get("prefill"):
        rows = [(_chunk_words(row), cell(row, "step_s"), cell(row, "bound_s")) for row in grids["prefill"]]
        yield from _table(("prefill, ms", "step", "bound"), rows)
        yield ""
    if grids.get("swap"):
        rows = [
            (row["blocks"], f"{row['out_bytes_per_s'] / 1e9:.2f}", f"{row['in_bytes_per_s'] / 1e9:.2f}")
            for row in grids["swap"]
        ]
        yield from _table(("swapped blocks, GB/s", "out", "in"), rows)
        yield ""
    if grids.get("host"):
        rows = [
            (row["clients"], cell(row, "interval_s"), cell(row, "host_s"), cell(row, "outside_graph_s"))
            for row in grids["host"]
        ]
        yield from _table(("clients; ms a step", "step to step", "beside the device", "outside the graph"), rows)
        yield ""
    if environment.get("ceilings"):
        yield "Bounds are computed: bytes over the copy rate or FLOPs over the product's rate of this run."
        yield ""


def _chunk_words(row: Found) -> str:
    over = f" over {row['chunk_context']}" if row["chunk_context"] else ""
    beside = f" beside {row['sequences']} x {row['context']}" if row["sequences"] else ""
    return f"{row['chunk_tokens']}{over}{beside}"


def _fit(fit: Found) -> Iterator[str]:
    if fit.get("errors"):
        rows = [
            (kind, row["points"], *(f"{100 * row[key]:.1f} %" for key in ("median", "p95", "max")))
            for kind, row in fit["errors"].items()
        ]
        yield f"Cost model fitted on {100 * (1 - fit['held_out_share']):.0f} % of the points, error of the others:"
        yield ""
        yield from _table(("step", "points", "median", "p95", "max"), rows)
        yield ""


def _runs(replay: Found, simulate: Found) -> Iterator[str]:
    runs, compared = replay.get("runs", {}), simulate.get("runs", {})
    if not runs:
        return
    rows = []
    for name, measured in runs.items():
        simulated = compared.get(name, {}).get("simulated")
        ours = measured["figures"]
        rows.append((name, *(_beside(key, ours, simulated) for key in ("ttft_s", "itl_s")),
                     _rates(ours, simulated), ours["preemptions"]))  # fmt: skip
    which = "measured | simulated with the fitted costs" if compared else "measured"
    yield f"c32 by policy and clients, {which}; median / 95th percentile:"
    yield ""
    yield from _table(("run", "TTFT, ms", "ITL, ms", "output tokens/s", "preemptions"), rows)
    errors = simulate.get("errors")
    if errors:
        words = [f"{name.replace('_s ', ' ')} {100 * row['median']:.1f} %" for name, row in errors.items()]
        yield ""
        yield f"Simulated beside measured, median of the runs' absolute errors: {', '.join(words)}."


def _attention(found: Found) -> Iterator[str]:
    if found.get("attention"):
        rows = [(case_of(row), row["tile"], f"{1e6 * row['seconds']:.1f}", rate_of(row)) for row in found["attention"]]
        yield ""
        yield from _table(("attention of a layer", "tile", "us", "rate"), rows)


def case_of(row: Found) -> str:
    """What a row of the attention stage is of."""
    if row["chunk_tokens"]:
        return f"prefill {row['chunk_tokens']}"
    return f"decode {row['sequences']} x {row['context']}"


def rate_of(row: Found) -> str:
    """What its kernel reaches."""
    if "bytes_per_s" in row:
        return f"{row['bytes_per_s'] / 1e9:,.4g} GB/s"
    return f"{row['flops_per_s'] / 1e12:,.3g} TFLOPS"


def _beside(key: str, measured: Found, simulated: Found | None) -> str:
    sides = [measured] if simulated is None else [measured, simulated]
    return " \\| ".join(
        "-" if side[key] is None else f"{1e3 * side[key]['p50']:.2f} / {1e3 * side[key]['p95']:.2f}" for side in sides
    )


def _rates(measured: Found, simulated: Found | None) -> str:
    sides = [measured] if simulated is None else [measured, simulated]
    return " \\| ".join(f"{side['output_tokens_per_s'] or 0.0:,.1f}" for side in sides)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Aligned Markdown: readable in a terminal, too."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for number, row in enumerate(cells):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if not number:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def write_page(settings: Settings, folder: Path) -> str:
    """The page, also as ``gpu-check.md`` in the folder."""
    text = page(settings)
    write_whole(folder / "gpu-check.md", text)
    return text
