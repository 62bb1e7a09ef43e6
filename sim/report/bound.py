"""What was achieved against what the hardware allows."""

from __future__ import annotations

from collections.abc import Sequence

from sim.report.charts import Figure, Trace, axis, base_layout
from sim.report.palette import faded
from sim.report.view import RunView
from sim.wording import digits, percent, seconds


def against_bound(views: Sequence[RunView]) -> Figure | None:
    """Output tokens a second, whole run, beside the bound that no schedule can exceed on this card."""
    known = [view for view in views if "bound_output_tokens_per_s" in view.summary["throughput"]]
    if not known:
        return None
    traces: list[Trace] = []
    for view in known:
        rates = view.summary["throughput"]
        bound, got = rates["bound_output_tokens_per_s"], rates.get("output_tokens_per_s", 0.0)
        hover = f"{view.label}: {digits(got)} output tokens a second, {percent(got / bound)} of the hardware bound"
        for name, value, alpha, pattern in (("hardware bound", bound, 0.15, "/"), ("achieved", got, 0.85, "")):
            traces.append(
                {
                    **{"type": "bar", "orientation": "h"},
                    **{"y": [f"{view.label}<br>{name}"], "x": [float(f"{value:.4g}")]},
                    **{"text": [digits(value)], "textposition": "outside", "cliponaxis": False, "name": name},
                    "marker": {
                        **{"color": faded(view.colour, alpha), "line": {"color": view.colour, "width": 2}},
                        "pattern": {"shape": pattern, "fgcolor": view.colour, "size": 8},
                    },
                    "hovertemplate": f"{hover}<extra></extra>",
                }
            )
    layout = base_layout(76 + 80 * len(known), margin={"l": 150, "r": 30, "t": 6, "b": 52}, bargap=0.3)
    most = max(float(trace["x"][0]) for trace in traces)
    layout["xaxis"] = axis("output tokens a second", nticks=5, tickformat=",", range=[0, 1.18 * most])
    layout["yaxis"] = {"autorange": "reversed", "automargin": True}
    return Figure(traces, layout)


def floor_rows(view: RunView) -> list[tuple[str, str, str, str, str]]:
    """Steps that only decode and steps with prompts: how many, the time they took, the least that the hardware needs
    for the same work, and the ratio."""
    if view.digest is None:
        return []
    words = {"decode": "steps that only decode", "prefill": "steps that also read prompts"}
    rows = []
    for kind, of in view.digest.kinds.items():
        if of["steps"]:
            known = of["floor_s"] > 0
            floor = seconds(of['floor_s']) if known else "-"
            share = percent(of["floor_s"] / of["time_s"]) if known and of["time_s"] else "-"
            rows.append((words[kind], f"{of['steps']:,.0f}", seconds(of['time_s']), floor, share))
    return rows
