"""The page of a fit: measured against predicted steps of the held-out points, and the table of errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.runs import write_whole

if TYPE_CHECKING:
    from calibrate.fit import Fit

_TITLES = {
    "decode": "decode",
    "prefill": "prefill",
    "chunk_on_context": "chunk on cached tokens",
    "mixed": "decode and prefill",
    "whole": "whole step, decode and prefill",
}
_MOST_POINTS = 2000
"""Of a kind that are drawn: the worst, and of the others every n-th."""


def write_report(fit: Fit, path: Path) -> None:
    """Write one self-contained HTML page whole; UserError where it cannot be written."""
    import html

    from calibrate.cli import describe_fit

    name = html.escape(str(fit.cost_file["name"]))
    table = html.escape(describe_fit(fit.cost_file))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}: residuals</title>'
    style = "font-family: sans-serif; max-width: 70rem; margin: auto; padding: 0 1rem"
    data_date = html.escape(str(fit.cost_file["data_date"]))
    page = (
        f'<!doctype html><html lang="en"><head>{head}</head><body style="{style}"><h1>{name}: residuals</h1>'
        f"<p>Each point is a held-out step, predicted by a fit that did not see it. Data: {data_date}.</p>"
        f'<pre style="overflow-x: auto">{table}</pre>{_figure(fit)}</body></html>\n'
    )
    write_whole(path, page)


def _figure(fit: Fit) -> str:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for kind, title in _TITLES.items():
        ordered = sorted((r for r in fit.residuals if r.kind == kind), key=lambda residual: -residual.error)
        half = _MOST_POINTS // 2
        rest = ordered[half:]
        drawn = ordered[:half] + rest[:: max(1, -(-len(rest) // half))]
        if drawn:
            figure.add_scatter(
                x=[1e3 * residual.measured_s for residual in drawn],
                y=[100 * (residual.predicted_s / residual.measured_s - 1.0) for residual in drawn],
                text=[residual.what for residual in drawn],
                name=f"{title} ({len(ordered):,})",
                mode="markers",
                opacity=0.6,
            )
    figure.update_xaxes(title="measured step, ms", type="log")
    figure.update_yaxes(title="predicted over measured, %", zeroline=True)
    # Below the plot, so that a phone shows both at full width.
    legend = {"orientation": "h", "y": -0.2}
    figure.update_layout(template="plotly_white", height=600, legend=legend, margin={"l": 60, "r": 10, "t": 40})
    return str(figure.to_html(full_html=False, include_plotlyjs=True))
