"""A run against its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.explore.fleet import Trial
from sim.explore.limits import Limit
from traces.metrics.requests import OUTCOMES
from traces.workload.quantiles import quantile

Floats = NDArray[np.float64]
_MISSED = [OUTCOMES.index(name) for name in ("rejected", "failed")]
_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Reading(NamedTuple):
    """What a run gave for one limit: the statistic (of latencies without their share for the prompt, where the limit
    has one), None without samples."""

    limit: Limit
    value_s: float | None

    @property
    def met(self) -> bool:
        """Whether the limit is kept; without samples there is nothing that breaks it."""
        return self.value_s is None or self.value_s <= self.limit.limit_s


class Verdict(NamedTuple):
    """A run against all limits. ``unstable``: the queue grows; ``message``: why the run did not complete."""

    readings: tuple[Reading, ...]
    unstable: bool
    message: str

    @property
    def met(self) -> bool:
        """Whether the load is carried: completed, keeps up, within all limits."""
        return not self.message and not self.unstable and all(reading.met for reading in self.readings)

    @property
    def broken(self) -> list[Limit]:
        """The limits that are not kept."""
        return [reading.limit for reading in self.readings if not reading.met]


def judge(trial: Trial, limits: Sequence[Limit]) -> Verdict:
    """The run against the limits. Requests that were refused or that the KV cache can never hold count as waiting for
    ever; those whose clients went away are left out."""
    readings = tuple(Reading(limit, reading_s(trial, limit)) for limit in limits)
    unstable = trial.stability is not None and not trial.stability.stable
    return Verdict(readings, unstable, trial.message)


def reading_s(trial: Trial, limit: Limit) -> float | None:
    """The statistic that a limit is about; None without samples."""
    if limit.latency == "itl":
        return None if trial.gaps is None else float(getattr(trial.gaps, limit.statistic))
    requests = trial.requests
    missed = np.isin(requests.outcome, _MISSED)
    values = np.where(missed, np.inf, getattr(requests, f"{limit.latency}_s"))
    values = values - np.where(missed, 0.0, limit.per_prompt_token_s * requests.prompt_tokens)
    counted = ~np.isnan(values) & (requests.prompt_tokens > limit.above)
    if limit.at_most is not None:
        counted &= requests.prompt_tokens <= limit.at_most
    return statistic_of(np.sort(values[counted]), limit.statistic)


def statistic_of(ordered: Floats, statistic: str) -> float | None:
    """Of ascending values, which may be infinite; None without any."""
    if not len(ordered):
        return None
    return float(np.mean(ordered)) if statistic == "mean" else quantile(ordered, _SHARES[statistic])
