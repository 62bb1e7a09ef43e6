"""The page of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sim.explore.diagnose_cause import CAUSES
from sim.explore.diagnose_effects import Change
from sim.explore.diagnose_rerun import Tried
from sim.explore.diagnose_text import (
    PARTS,
    advice_table,
    difference,
    effect_of,
    evidence_table,
    finding,
    gaps_table,
    life_table,
    limits_table,
    shares_table,
)
from sim.latencies import LATENCIES, in_short
from sim.report.charts import BOTTOM_PX, Figure, Trace, axis, base_layout
from sim.report.document import Chart, DocumentSection, chart_of, document
from sim.report.palette import COLOURS, part_colour, part_pattern
from sim.wording import percent, seconds

if TYPE_CHECKING:
    from sim.explore.diagnose import Diagnosis

_INTRO = (
    "A server for a large language model works on many requests at once, in steps. This page says what keeps one run"
    " from doing better, what shows it, and what helps: each piece of advice was simulated with the same requests, and"
    " carries the difference that it made."
)
_DRAWN = {"work": "decode", "link": "swap"}
"""Parts of the requests' time that have another name on a run's page, whose colours and patterns they take."""

_PATTERNS = {"link": "x", "swapped": "."}
"""Patterns of parts whose colour another part of the bar has."""

_EFFECTS = {
    "better": ("helps", COLOURS[2], ""),
    "none": ("does not help", COLOURS[9], "."),
    "worse": ("makes it worse", COLOURS[7], "x"),
}


def page(diagnosis: Diagnosis) -> str:
    """The HTML text of the page."""
    summary = diagnosis.view.summary
    title = f"What limits {diagnosis.view.label}: {CAUSES[diagnosis.cause].title}"
    notes = [("Note", note) for note in diagnosis.notes]
    ran = [
        ("Engine", f"{summary['preset']}, policy {summary['policy']}"),
        ("Model and GPU", f"{summary['model']} on {summary['hardware']}, {summary['side']}"),
    ]
    sections = [
        DocumentSection("finding", "The finding", [" ".join(finding(diagnosis))], [*ran, *notes], finding=True),
        DocumentSection(
            "time", "Where the time goes", charts=list(_life_chart(diagnosis)), tables=[shares_table(diagnosis)]
        ),
        _evidence(diagnosis),
        _advice(diagnosis),
        DocumentSection("memory", "Running out of memory", diagnosis.memory.sentences(), _memory_points(diagnosis)),
        DocumentSection(
            "reproduce",
            "Reproduce",
            ["Save this as run.toml, then: batchscope diagnose run.toml"],
            listings=[("run.toml", diagnosis.view.toml)],
        ),
    ]
    return document(title, _INTRO, sections)


def _evidence(diagnosis: Diagnosis) -> DocumentSection:
    tables = [evidence_table(diagnosis), limits_table(diagnosis)]
    if diagnosis.evidence.gaps:
        tables.append(gaps_table(diagnosis))
    return DocumentSection("evidence", "The evidence", tables=tables)


def _advice(diagnosis: Diagnosis) -> DocumentSection:
    if not diagnosis.tried:
        return DocumentSection("advice", "What helps", ["Nothing needs help: no advice was tried."])
    text = (
        "Each line is one change to the run, simulated with the same requests. What helps stands first, settings and"
        " other engines before less accurate numbers and more cards; what does not help is shown. A difference counts"
        " when its 95 % interval (± half of it, from 10 windows of neighbouring requests) leaves zero out, or, where"
        " there are too few requests for one, when it exceeds 1 %."
    )
    charts = list(_advice_chart(diagnosis))
    return DocumentSection("advice", "What helps", [text], charts=charts, tables=[advice_table(diagnosis)])


def _memory_points(diagnosis: Diagnosis) -> Sequence[tuple[str, str]]:
    risk = diagnosis.memory
    return [
        ("Risk", risk.level),
        ("KV pool", f"{risk.pool_tokens:,} tokens"),
        ("Longest request", f"{risk.longest_tokens:,} tokens in this run, {risk.allowed_tokens:,} allowed"),
        ("A full batch", f"{risk.full_tokens:,.0f} tokens on average, {risk.worst_tokens:,} if all are the longest"),
    ]


def _life_chart(diagnosis: Diagnosis) -> Iterable[Chart]:
    """One bar of all parts."""
    caption = "All the time that requests spent in the system, from arrival to end, divided by what happened to them."
    traces = [_life_trace(name, share) for name, share in diagnosis.evidence.life.items()]
    layout = base_layout(130, margin={"l": 20, "r": 20, "t": 6, "b": BOTTOM_PX}, barmode="stack")
    layout["xaxis"] = axis("share of the requests' time, %", range=[0, 100])
    layout["yaxis"] = {"showticklabels": False}
    yield from chart_of("life", "Where the time goes", caption, Figure(traces, layout), life_table(diagnosis))


def _life_trace(name: str, share: float) -> Trace:
    part = _DRAWN.get(name, name.removeprefix("wait."))
    words, shape = PARTS.get(name, name), _PATTERNS.get(name, part_pattern(part))
    return {
        **{"type": "bar", "orientation": "h", "x": [float(f"{100 * share:.4g}")], "y": [""], "name": words},
        "marker": {
            **{"color": part_colour(part), "line": {"color": part_colour(part), "width": 1}},
            "pattern": {"shape": shape, "fgcolor": part_colour(part), "fillmode": "replace", "size": 8},
        },
        "hovertemplate": f"{words}: {percent(share)}<extra></extra>",
    }


def _advice_chart(diagnosis: Diagnosis) -> Iterable[Chart]:
    """The stated metric after each change, beside what it was."""
    metric = diagnosis.metric
    known = [(tried, change) for tried in diagnosis.tried if (change := tried.change(*metric)) is not None]
    if not known:
        return
    unit_s, unit = (1.0, "s") if max(change.before for _, change in known) >= 1.0 else (1e-3, "ms")
    traces = [_advice_trace(tried, change, unit_s, diagnosis.metric) for tried, change in known]
    layout = base_layout(96 + 56 * len(known), margin={"l": 190, "r": 30, "t": 6, "b": BOTTOM_PX}, bargap=0.35)
    most = max(max(change.before, change.after) for _, change in known) / unit_s
    layout["xaxis"] = axis(f"{in_short(*metric)}, {unit}", range=[0, 1.25 * most], nticks=5)
    layout["yaxis"] = {"autorange": "reversed", "automargin": False}
    layout["shapes"] = [_before_line(known[0][1].before / unit_s)]
    short, _, meaning = LATENCIES[metric[0]]
    caption = (
        f"{short}: {meaning}. Bars: {in_short(*metric)} after each change; dashed line: before. Shorter is better."
    )
    yield from chart_of("advice", f"{in_short(*metric)} after each change", caption, Figure(traces, layout))


def _before_line(x: float) -> dict[str, object]:
    line = {"dash": "dash", "width": 2, "color": COLOURS[9]}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def _advice_trace(tried: Tried, change: Change, unit_s: float, metric: tuple[str, str]) -> Trace:
    name, colour, pattern = _EFFECTS[tried.effect(metric)]
    advice = tried.advice
    label = _broken(advice.text.partition(" in place")[0] if advice.lever in _WITH_VALUE else advice.lever)
    text = f"{advice.text}: {effect_of(tried, metric)}; {seconds(change.after)} ({difference(change)})"
    return {
        **{"type": "bar", "orientation": "h", "y": [label], "x": [float(f"{change.after / unit_s:.4g}")], "name": name},
        "marker": {
            **{"color": colour, "line": {"color": colour, "width": 2}},
            "pattern": {"shape": pattern, "fgcolor": colour, "fillmode": "replace", "size": 8},
        },
        **{"text": seconds(change.after), "textposition": "outside", "cliponaxis": False},
        "hovertemplate": f"{text}<extra></extra>",
    }


_WITH_VALUE = ("max_num_seqs", "max_num_batched_tokens", "chunked prefill")
"""Levers that are tried at several values."""


def _broken(text: str) -> str:
    """At most about 24 characters a line."""
    from textwrap import wrap

    return "<br>".join(wrap(text.partition(":")[0], 24)[:2])
