"""The page of an audit of claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.explore.claims_case import VERDICTS
from sim.report.document import Chart, DocumentSection, chart_of, document
from sim.report.figures import Table

if TYPE_CHECKING:
    from sim.explore.claims import Audit, Row

_INTRO = (
    "What posts and papers claim about continuous batching, set up as its authors describe it, simulated, and held"
    " against what the hardware can do at all. Each verdict follows from the figures of these runs by the rule that"
    " stands beside it. Everything here is simulated or computed unless it says that it was executed; published figures"
    " are named as such."
)


def page(audit: Audit) -> str:
    """The HTML text of the page."""
    sections = [_overview(audit), *(_section(row) for row in audit.rows)]
    return document("Claims about continuous batching, audited", _INTRO, sections)


def verdict_table(audit: Audit) -> Table:
    """A line a claim."""
    rows = [(row.claim.id, row.claim.says, row.ruling.verdict, row.ruling.why, row.audited.bound) for row in audit.rows]
    return Table("Claims and verdicts", ("id", "claim", "verdict", "why", "what the hardware allows"), rows)


def counted(audit: Audit) -> str:
    """How many claims got which verdict."""
    counts = {verdict: sum(row.ruling.verdict == verdict for row in audit.rows) for verdict in VERDICTS}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    return f"{len(audit.rows)} claim{'s' if len(audit.rows) > 1 else ''}: {', '.join(parts)}."


def _overview(audit: Audit) -> DocumentSection:
    table = verdict_table(audit)
    short = table._replace(header=table.header[:4], rows=[row[:4] for row in table.rows])
    meanings = [(verdict, meaning) for verdict, meaning in VERDICTS.items()]
    return DocumentSection("finding", "The verdicts", [counted(audit)], meanings, tables=[short], finding=True)


def _section(row: Row) -> DocumentSection:
    claim, audited, ruling = row.claim, row.audited, row.ruling
    points = [
        ("Claim", claim.says),
        ("Verdict", f"{ruling.verdict}: {ruling.why}"),
        *([("Missing", ruling.missing)] if ruling.missing else []),
        ("What the hardware allows", audited.bound),
        *row.setup,
        *(("Step times", text) for text in row.costs),
        ("Rule", claim.rule),
        *(("Note", note) for note in audited.notes),
    ]
    key = claim.id.replace(".", "-")
    return DocumentSection(
        f"claim-{key}", f"{claim.id}: {ruling.verdict}", (), points, list(_charts(key, row)), audited.tables
    )


def _charts(key: str, row: Row) -> Iterator[Chart]:
    for number, drawing in enumerate(row.audited.drawings):
        yield from chart_of(f"{key}-{number}", drawing.title, drawing.caption, drawing.figure)
