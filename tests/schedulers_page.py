"""docs/schedulers.md and docs/schedulers.svg, from what ``tests.schedulers`` measured."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2
from statistics import fmean
from typing import NamedTuple

from tests.schedulers import Pair, Scenario


class Row(NamedTuple):
    """One scheduler in one scenario; ``kind`` is gain or harm."""

    preset: str
    kind: str
    scenario: Scenario
    pair: Pair


# -- page --------------------------------------------------------------------------------------------------------------

_PAGE = """# Schedulers from the literature: where they gain and where they do harm

Measured on {date} by

    python -m tests.schedulers

on Llama-2-7B and one A100-80GB, {num_requests} requests and {num_seeds} seeds a scenario, both sides on the same
requests. FCFS is preset `vllm-0.11`, whose engine all of them share (`batchscope policies show NAME` prints paper,
rules, defaults and what differs). The engine has 32 seats and 4,000 KV blocks, for the heavy tail of `fastserve` 256
and 1,000. Change is that of the mean over the seeds; the range gives the seeds that came out worst and best.

![Paired bars: each scheduler against FCFS](schedulers.svg)

| preset | | metric | scenario | FCFS | preset | change | range over seeds |
|---|---|---|---|---:|---:|---:|---:|
{table}

The signs and the 20 % are held by `tests/test_schedulers.py`. Loads, classes of requests and metrics are defined in
`tests/schedulers.py` and `tests/schedulers_run.py`. A request has its own TTFT limit by the column `slo_ttft_s` of a
trace (docs/traces.md), its client by `client_id`. QoE is the area under the tokens a user has read over the area under
those expected (the first after 1 s, then one every 0.1 s), both until the last one is read.

What to take from it:

- **Order helps in overload alone.** Where everybody fits, all of these schedule as FCFS does.
- **Short first** (`sjf`, `srtf`) trades the mean against the longest wait; `engine.ageing_per_s` buys the latter back.
- **Deadlines** (`edf`, `least-laxity`) help while the load can be borne. Beyond that, they spend the engine on requests
  that are late already, and everybody is late: admission control has to come first.
- **Time slicing** (`fastserve`, `andes`) pays where answers differ much or users read slower than the engine writes.
  With answers all alike it only makes everybody end late, and moves or recomputes KV for it.
"""


def page(rows: Sequence[Row], *, date: str, num_requests: int, num_seeds: int) -> str:
    """The page with its table."""
    table = "\n".join(map(_line, rows))
    return _PAGE.format(date=date, num_requests=num_requests, num_seeds=num_seeds, table=table)


def _line(row: Row) -> str:
    scenario, pair = row.scenario, row.pair
    fcfs, other = (_value(fmean(values), scenario.unit) for values in (pair.fcfs, pair.other))
    changes = sorted(
        (b / a - 1.0 for a, b in zip(pair.fcfs, pair.other, strict=True)), reverse=not scenario.more_is_better
    )
    worst, best = changes[0], changes[-1]
    name = f"`{row.preset}`" if row.kind == "gain" else ""
    settings = f" (`{', '.join(scenario.order)}`)" if scenario.order else ""
    return (
        f"| {name} | {row.kind} | {scenario.metric_name} | {scenario.text}{settings} |"
        f" {fcfs} | {other} | {pair.change:+.0%}"
        f" | {worst:+.0%} .. {best:+.0%} |"
    )


def _value(value: float, unit: str) -> str:
    return f"{value:.0%}".replace("%", " %") if unit == "%" else f"{value:.3g} s"


# -- picture -----------------------------------------------------------------------------------------------------------

_WIDTH, _TOP, _ROW, _GAP = 1000, 92, 32, 12
_BARS, _CENTRE, _DOUBLE, _MOST = 450, 585, 38.0, 6.0
"""Left end of the bars, the line of FCFS, pixels a doubling, doublings at which a bar is cut."""

_STYLE = """
  svg { --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --gain: #0b6e99; --harm: #b3541e; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6edf3; --soft: #9da7b1; --line: #3d444d; --back: #0d1117; --gain: #4db3dd; --harm: #e8955a; }
  }
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .soft { fill: var(--soft); } .bold { font-weight: 600; }
  .title { font-size: 17px; font-weight: 600; } .small { font-size: 11px; }
  .back { fill: var(--back); } .line { stroke: var(--line); } .axis { stroke: var(--ink); stroke-width: 1.5; }
  .gain { fill: var(--gain); } .harm { fill: url(#hatch); stroke: var(--harm); } .hatch { stroke: var(--harm); }
  .range { stroke: var(--ink); stroke-width: 1.5; }
"""


def picture(rows: Sequence[Row]) -> str:
    """Bars to the right are better than FCFS, those to the left, hatched, worse; each doubling is equally wide. The
    thin line is the range over the seeds."""
    groups = len({row.preset for row in rows})
    height = _TOP + _ROW * len(rows) + _GAP * groups + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="Each scheduler against first come, first served: where it gains, where it does harm">',
        f"<style>{_STYLE}</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="6" stroke-width="3"/></pattern></defs>',
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
        _text(16, 28, "Schedulers against first come, first served on the same engine", "title"),
        _text(16, 49, "Same requests on both sides. Thin line: range over the seeds.", "soft"),
        *_axis(height - 8),
    ]
    y = _TOP
    for number, row in enumerate(rows):
        if number and row.preset != rows[number - 1].preset:
            y += _GAP
        parts += _bar(row, y, first=row.kind == "gain")
        y += _ROW
    return "\n".join([*parts, "</svg>", ""])


def _axis(bottom: int) -> list[str]:
    parts = [
        _text(_CENTRE - 14, 66, "◀ worse", "bold", "end"),
        _text(_CENTRE + 14, 66, "better ▶", "bold"),
    ]
    for doublings in (-3, -2, -1, 0, 1, 2, 3, 4, 5, 6):
        x = _CENTRE + doublings * _DOUBLE
        name = "FCFS" if doublings == 0 else f"{2 ** abs(doublings)}x"
        parts.append(_text(x, 83, name, "soft", "middle"))
        kind = "axis" if doublings == 0 else "line"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="88" x2="{x:.1f}" y2="{bottom}"/>')
    return parts


def _bar(row: Row, y: int, *, first: bool) -> list[str]:
    pair, scenario = row.pair, row.scenario
    middle = y + _ROW / 2
    end = _x(pair.times_better)
    low, high = map(_x, pair.range_better)
    kind = "gain" if pair.times_better >= 1.0 else "harm"
    left, width = min(_CENTRE, end), abs(end - _CENTRE)
    fcfs, other = (_value(fmean(values), scenario.unit) for values in (pair.fcfs, pair.other))
    parts = [_text(16, middle + 4, row.preset, "bold")] if first else []
    parts += [
        _text(112, middle - 2, scenario.metric_name),
        _text(112, middle + 12, scenario.text, "soft small"),
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 8}" width="{width:.1f}" height="{_ROW - 15}"/>',
        f'<line class="range" x1="{low:.1f}" y1="{middle + 0.5}" x2="{high:.1f}" y2="{middle + 0.5}"/>',
        _text(_WIDTH - 14, middle + 4, f"{fcfs} → {other}", "", "end"),
    ]
    return parts


def _x(times_better: float) -> float:
    return _CENTRE + max(-_MOST, min(_MOST, log2(times_better))) * _DOUBLE


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
