"""What the host takes of a step, from the times at which steps ended one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from calibrate.gpu.drive import StepLine


class HostTime(NamedTuple):
    """Medians over decode steps of ``clients`` sequences: from the end of a step to the end of the next, of that the
    device's time from the first copy to the last, and what is left; ``outside_graph_s`` is what the interval takes
    beyond the graph alone (sampling and all copies count as host's), None without graphs."""

    clients: int
    steps: int
    interval_s: float
    device_s: float
    host_s: float
    outside_graph_s: float | None


def host_time(
    steps: Sequence[StepLine], clients: int, graph_s: Callable[[float], float] | None = None
) -> HostTime | None:
    """Over the decode steps of all clients that follow another step at once; None where there is none. ``graph_s``
    gives the seconds of their graph by the mean context."""
    pairs = [
        (after.end_s - before.end_s, after)
        for before, after in pairwise(steps)
        if after.num_seqs == clients and not after.chunks and not after.moved and not before.chunks
    ]
    if not pairs:
        return None
    outside = None
    if graph_s is not None:
        beyond = [interval - graph_s(step.sum_context / step.num_seqs + 1) for interval, step in pairs]
        outside = statistics.median(beyond)
    return HostTime(
        clients,
        len(pairs),
        statistics.median(interval for interval, _ in pairs),
        statistics.median(step.device_s for _, step in pairs),
        statistics.median(interval - step.device_s for interval, step in pairs),
        outside,
    )
