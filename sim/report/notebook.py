"""A run as a notebook shows it: its finding, its key figures, and a small picture that needs no script."""

from __future__ import annotations

from html import escape

from sim.report.charts import Floats
from sim.report.figures import Table, latency_table, rate_rows
from sim.report.finding import find
from sim.report.palette import COLOURS
from sim.report.view import RunView
from sim.wording import digits, seconds

_WIDTH, _HEIGHT = 720, 190
_LEFT, _TOP, _BOTTOM = 52, 28, 30


def as_html(view: RunView) -> str:
    """An HTML fragment without scripts or style sheets, which takes the colours of its surroundings."""
    rates = Table("Rates, memory, preemptions", ("", "value", "what it is"), rate_rows(view.summary))
    sentences = " ".join(escape(text) for text in find([view]).lead)
    more = f"<details><summary>More</summary>{table_html(rates)}</details>"
    return f"<div><p>{sentences}</p>{table_html(latency_table(view))}{_picture(view)}{more}</div>"


def table_html(table: Table) -> str:
    """A table as HTML."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(_row(row) for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(row: tuple[str, ...]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f"<tr><th style='text-align:left'>{escape(row[0])}</th>{cells}</tr>"


def _picture(view: RunView) -> str:
    """Requests running and waiting over time, as SVG."""
    digest = view.digest
    if digest is None or not len(digest.middle_s):
        return ""
    lines = (("running", COLOURS[0], ""), ("waiting", COLOURS[1], "6 4"))
    end_s = digest.start_s + digest.width_s * len(digest.middle_s)
    most = max(float(digest.mean(level).max()) for level, _, _ in lines) or 1.0
    parts = [_mark(_LEFT - 6, _HEIGHT - _BOTTOM + 5, "0", "end"), _mark(_LEFT - 6, _TOP + 5, digits(most), "end")]
    parts += [_mark(_WIDTH, _HEIGHT - 8, seconds(end_s), "end"), _mark(_LEFT, _HEIGHT - 8, "0 s", "start")]
    for place, (level, colour, dash) in enumerate(lines):
        points = _points(digest.middle_s, digest.mean(level), end_s, most)
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2' stroke-dasharray='{dash}'/>"
        )
        x = _LEFT + 150 * place
        parts.append(f"<path d='M{x} 12h30' stroke='{colour}' stroke-width='3' stroke-dasharray='{dash}'/>")
        parts.append(_mark(x + 36, 17, level, "start"))
    base = f"<path d='M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH}' fill='none' stroke='currentColor' opacity='.5'/>"
    label = "Requests running (solid) and waiting (dashed) over time"
    return (
        f"<svg role='img' aria-label='{label}' viewBox='0 0 {_WIDTH} {_HEIGHT}' style='max-width:{_WIDTH}px;width:100%'"
        f" font-size='14' fill='currentColor'><title>{label}</title>{base}{''.join(parts)}</svg>"
    )


def _points(x_s: Floats, y: Floats, end_s: float, most: float) -> str:
    across = _LEFT + (_WIDTH - _LEFT) * x_s / max(end_s, 1e-12)
    down = _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * y / most
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))


def _mark(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}'>{escape(text)}</text>"

