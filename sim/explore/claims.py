"""``claims``: headline claims about continuous batching, set up, simulated, held against the hardware, and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import UserError, closest
from sim.explore.claims_bounds import BOUND_CLAIM, CLOSED_LOOP_CLAIM
from sim.explore.claims_case import VERDICTS, Audited, Claim, Ruling, Runner, Tables, executed, simulated
from sim.explore.claims_latency import ORCA_CLAIM, PAGED_CLAIM
from sim.explore.claims_memory import MEMORY_CLAIMS
from sim.explore.claims_slots import SLOT_CLAIMS, SPREAD_CLAIM
from sim.explore.claims_static import STATIC_CLAIMS
from sim.wording import percent

SCHEMA = 1

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        *(*SLOT_CLAIMS, *STATIC_CLAIMS, ORCA_CLAIM, PAGED_CLAIM, SPREAD_CLAIM, BOUND_CLAIM),
        *(*MEMORY_CLAIMS, CLOSED_LOOP_CLAIM),
    )
}
"""All claims by id, in the order in which they are told."""

Progress = Callable[[int, int, str], None]
"""Called before each claim: its number from 1, how many there are, and its id."""


class Row(NamedTuple):
    """A claim and what came of it; ``costs`` names the cost models that timed its runs, with their error, or says that
    they were executed, and so does ``side`` (as in ``summary.json``)."""

    claim: Claim
    audited: Audited
    costs: tuple[str, ...] = ()
    side: str = "server-simulated"

    @property
    def setup(self) -> Sequence[tuple[str, str]]:
        """What was run, as (what, how)."""
        return self.audited.setup or self.claim.setup

    @property
    def ruling(self) -> Ruling:
        """The verdict with its reason."""
        return self.audited.ruling


@dataclass(frozen=True)
class Audit:
    """The claims that were audited. ``report(path)`` writes their page; in a notebook the audit shows itself."""

    rows: tuple[Row, ...]

    def __getitem__(self, claim_id: str) -> Row:
        return next(row for row in self.rows if row.claim.id == claim_id)

    def to_dict(self) -> dict[str, Any]:
        """In JSON types."""
        return {"schema": SCHEMA, "claims": [_row_dict(row) for row in self.rows]}

    def report(self, path: str | Path) -> Path:
        """Write the page of the audit; takes the place of an older page alone."""
        from sim.explore.claims_page import page
        from sim.report.document import write_html

        return write_html(path, page(self))

    def _repr_html_(self) -> str:
        from sim.explore.claims_page import verdict_table
        from sim.report.notebook import table_html

        return table_html(verdict_table(self))


def claims(
    ids: Sequence[str] = (), *, run: Runner = simulated, execute: bool = False, progress: Progress | None = None
) -> Audit:
    """Audit the claims of these ids, or all.

    ``run`` runs each configuration: the simulator, or whatever gives the ``summary.json`` of a RUN.toml. With
    ``execute`` those that any model can show are run on the real executor instead, which needs torch. Raises a
    UserError for an unknown id, or one that cannot be executed.
    """
    chosen = [_claim(claim_id) for claim_id in dict.fromkeys(ids)] or list(CLAIMS.values())
    if execute and ids:
        _check_executable(chosen)
    rows = []
    for number, claim in enumerate(chosen, 1):
        if progress is not None:
            progress(number, len(chosen), claim.id)
        known: dict[str, None] = {}
        if execute and claim.execute is not None:
            audited, side = claim.execute(executed), "server-measured"
            known["as measured"] = None
        else:
            audited, side = claim.audit(_noting(run, known)), "server-simulated"
        assert audited.ruling.verdict in VERDICTS
        rows.append(Row(claim, audited, tuple(known), side))
    return Audit(tuple(rows))


def _check_executable(chosen: Sequence[Claim]) -> None:
    refused = [claim.id for claim in chosen if claim.execute is None]
    if refused:
        able = ", ".join(claim.id for claim in CLAIMS.values() if claim.execute is not None)
        raise UserError(f"claim {refused[0]!r}: is about a model and a card, and simulated; executed are {able}")


def _noting(run: Runner, known: dict[str, None]) -> Runner:
    """The same, and a line in ``known`` for each cost model that times a run."""

    def noting(tables: Tables) -> dict[str, Any]:
        summary = run(tables)
        known.setdefault(f"{summary['model']} on {summary['hardware']}: {error_of(summary['cost_model'])}")
        return summary

    return noting


def error_of(costs: Mapping[str, Any]) -> str:
    """A cost model and its stated error, in words."""
    band, error = costs.get("band"), costs.get("error")
    if band is not None:
        return f"roofline, {band['p5']:.2f} to {band['p95']:.2f} of measured times in 90 % of {band['runs']:,.0f} runs"
    if isinstance(error, Mapping) and "median" in error:
        return f"cost file {costs['name']}, error {percent(error['median'])} (median), {percent(error['p95'])} (p95)"
    return f"cost model {costs['name']}"


def _claim(claim_id: str) -> Claim:
    if claim_id not in CLAIMS:
        raise UserError(f"claim {claim_id!r}: unknown; known are {', '.join(CLAIMS)}{closest(claim_id, CLAIMS)}")
    return CLAIMS[claim_id]


def _row_dict(row: Row) -> dict[str, Any]:
    claim, audited, ruling = row.claim, row.audited, row.ruling
    return {
        **{"id": claim.id, "claim": claim.says, "verdict": ruling.verdict, "why": ruling.why},
        **({"missing": ruling.missing} if ruling.missing else {}),
        "bound": audited.bound,
        "figures": dict(audited.figures),
        "setup": dict(row.setup),
        "step_times": list(row.costs),
        "rule": claim.rule,
        "notes": list(audited.notes),
        "side": row.side,
    }
