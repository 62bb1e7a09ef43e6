"""Runs the same requests again, changed or behind replicas, and keeps what is needed of each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import RunError, UserError
from sim.api import Setup, prepare, run_setup
from sim.config import RunConfig
from sim.explore.diagnose_advice import Advice, changed
from sim.explore.diagnose_effects import Change, Sample, changes, sample_of
from sim.report.view import RunView
from traces.workload.rows import TraceRow

ROUND_ROBIN = "what it does with the requests of one engine cannot be told: follow-ups wait for answers elsewhere"


class Tried(NamedTuple):
    """Advice and what came of it. ``why`` says why it could not be simulated (else ""); then there are no changes.

    ``changes`` are of the stated metrics; rates are output tokens a second before and after; ``served`` is how many
    requests got their whole answer, before and after."""

    advice: Advice
    changes: tuple[Change, ...]
    rates: tuple[float, float]
    served: tuple[int, int]
    why: str = ""

    def effect(self, metric: tuple[str, str]) -> str:
        """``better``, ``worse`` or ``none`` by the metric, ``worse`` too where more than 1 % of the answers are lost;
        ``unknown`` where it could not be told."""
        change = self.change(*metric)
        if change is None:
            return "unknown"
        return "worse" if self.served[1] < 0.99 * self.served[0] else change.effect

    def change(self, metric: str, statistic: str) -> Change | None:
        """The change of one metric, if both runs have it."""
        return next((of for of in self.changes if (of.metric, of.statistic) == (metric, statistic)), None)


class Reruns:
    """Re-simulates the first ``limit`` requests of a run, which makes the base of every comparison; ``base`` takes the
    place of its first run where it is known."""

    def __init__(self, config: RunConfig, limit: int, base: Sample | None = None) -> None:
        self._config = _limited(config, limit)
        self._bases: dict[bool, Sample] = {} if base is None else {False: base}

    def tried(self, advice: Advice) -> Tried:
        """Simulate the advice. What cannot be run, or dies, is said."""
        try:
            before = self.base(roofline=advice.roofline)
            after = self._sample(changed(self._config, advice), advice.replicas)
        except (UserError, RunError) as error:
            return Tried(advice, (), (0.0, 0.0), (0, 0), str(error))
        rates = before.output_tokens_per_s, after.output_tokens_per_s
        return Tried(advice, tuple(changes(before, after)), rates, (_served(before), _served(after)))

    def base(self, *, roofline: bool = False) -> Sample:
        """The run as it is, timed by its own cost model or by the roofline."""
        if roofline not in self._bases:
            config = self._config
            if roofline:
                config = changed(config, Advice("", "", "setting", roofline=True))
            self._bases[roofline] = self._sample(config, 1)
        return self._bases[roofline]

    def _sample(self, config: RunConfig, replicas: int) -> Sample:
        if replicas == 1:
            return sample_of([run_setup(prepare(config), keep=True).view])
        setups = [prepare(config) for _ in range(replicas)]
        if any(row.parent_id is not None for row in setups[0].workload.rows()):
            raise UserError(ROUND_ROBIN)
        views = [_one_of(setup, place, replicas) for place, setup in enumerate(setups)]
        return sample_of(views, [_numbered(place, replicas) for place in range(replicas)])


def _served(sample: Sample) -> int:
    return int(sample.requests["e2e_s"].notna().sum())


def _limited(config: RunConfig, limit: int) -> RunConfig:
    """The first requests alone, every token's time recorded."""
    given = config.workload.limit
    workload = config.workload.replace(limit=limit if given is None else min(limit, given))
    return config._replace(workload=workload, sim=config.sim.replace(record="tokens"))


def _one_of(setup: Setup, place: int, replicas: int) -> RunView:
    """What round robin sends to one of the replicas: every so manieth request, or clients of a closed loop."""
    workload = setup.workload
    clients = workload.concurrency

    def rows() -> Iterator[TraceRow]:
        return islice(workload.rows(), place, None, replicas)

    part = workload._replace(
        rows=rows,
        num_requests=len(range(place, workload.num_requests, replicas)),
        concurrency=None if clients is None else max(1, len(range(place, clients, replicas))),
    )
    return run_setup(setup._replace(workload=part), keep=True).view


def _numbered(place: int, replicas: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    return lambda ids: ids * replicas + place
