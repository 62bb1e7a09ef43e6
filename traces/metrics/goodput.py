"""Requests that meet all stated limits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.core.request import Slo
from traces.metrics.requests import OUTCOMES, RequestColumns

ITL_JUDGED_BY = "tpot_s"
"""The latency that a limit of single gaps is held against."""

_MISSED = [OUTCOMES.index(name) for name in ("rejected", "failed")]


class Goodput(NamedTuple):
    """``met`` of ``judged`` requests meet every limit. Rejected and failed ones are misses.

    Left out of both and counted: ``unfinished`` (cut off by the end of the run), ``aborted`` (the client went
    away), ``unmeasurable`` (completed, but a limit has nothing to judge: TPOT of one token). The inter-token
    limit is judged by ``itl_judged_by``, as single token times are not kept. ``within`` has the share for each limit
    alone.
    """

    requests_per_s: float
    attainment: float | None
    met: int
    judged: int
    unfinished: int
    aborted: int
    unmeasurable: int
    within: dict[str, float]
    itl_judged_by: str = ITL_JUDGED_BY


def goodput(requests: RequestColumns, limits: Slo, duration_s: float) -> Goodput:
    """How many requests meet all ``limits``, per second of the run and as a share."""
    meets = known = requests.is_finished
    missed = int(np.count_nonzero(np.isin(requests.outcome, _MISSED)))
    within = {}
    for name, limit in limits._asdict().items():
        if limit is not None:
            measured = getattr(requests, ITL_JUDGED_BY if name == "itl_s" else name)
            fast, measurable = measured <= limit, ~np.isnan(measured)
            meets, known = meets & fast, known & measurable
            base = int(np.count_nonzero(requests.is_finished & measurable)) + missed
            if base:
                within[name] = int(np.count_nonzero(requests.is_finished & fast)) / base
    met = int(np.count_nonzero(meets & known))
    judged = int(np.count_nonzero(known)) + missed
    return Goodput(
        requests_per_s=met / duration_s if duration_s > 0.0 else 0.0,
        attainment=met / judged if judged else None,
        met=met,
        judged=judged,
        unfinished=_count(requests, "unfinished"),
        aborted=_count(requests, "aborted"),
        within=within,
        unmeasurable=int(np.count_nonzero(requests.is_finished & ~known)),
    )


def _count(requests: RequestColumns, name: str) -> int:
    return int(np.count_nonzero(requests.outcome == OUTCOMES.index(name)))
