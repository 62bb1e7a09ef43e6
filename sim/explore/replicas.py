"""The fewest replicas that carry a rate within stated limits."""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.explore.bounds import Refusal, refusals
from sim.explore.bracket import fewest
from sim.explore.loads import Loads, Probe

MOST = 4_096
"""More replicas are not tried."""
LONGER = 3


class ReplicasResult(NamedTuple):
    """The fewest replicas: of the numbers that independent samples need (``per_sample``, from ``low`` to ``high``) the
    least with which a longer run keeps the limits, too. None where no number is enough, for the reason that ``refused``
    gives. ``confirmed`` are the longer runs, up to the one with these replicas.
    """

    replicas: int | None
    low: int
    high: int
    per_sample: tuple[int, ...]
    refused: tuple[Refusal, ...] = ()
    confirmed: tuple[Probe, ...] = ()

    @property
    def is_confirmed(self) -> bool:
        """Whether a longer run with these replicas keeps the limits."""
        return bool(self.confirmed) and self.confirmed[-1].verdict.met


def find_replicas(loads: Loads, rate_per_s: float, *, confirm: bool = True) -> ReplicasResult:
    """The fewest replicas that carry this rate."""
    refused = tuple(refusals(loads, loads.limits))
    if refused:
        return ReplicasResult(None, 0, 0, (), refused)
    needed: list[int] = []
    if least_replicas(loads, rate_per_s) > MOST:
        return ReplicasResult(None, 0, 0, ())
    for place in range(len(loads.draws)):

        def carried(replicas: int, place: int = place) -> bool:
            return loads.probe(place, rate_per_s, replicas).verdict.met

        start = needed[-1] if needed else least_replicas(loads, rate_per_s)
        found = fewest(carried, start, MOST)
        if found is None:
            return ReplicasResult(None, 0, 0, tuple(needed))
        needed.append(found)
    least, most = min(needed), max(needed)
    confirmed: list[Probe] = []
    longer = loads.more(LONGER) if confirm else None
    replicas = most if longer is None else least
    while longer is not None:
        confirmed.append(loads.run(longer, rate_per_s, replicas))
        if confirmed[-1].verdict.met or replicas >= most:
            break
        replicas += 1
    return ReplicasResult(replicas, least, most, tuple(needed), (), tuple(confirmed))


def least_replicas(loads: Loads, rate_per_s: float) -> int:
    """So many at least: by the hardware bound of each."""
    return max(1, math.ceil(rate_per_s / loads.most_per_s))
