"""The requests of a capacity search: the same ones at every rate, only closer together.

What the model's length refuses is left out first, since no rate can serve it. Times are scaled so that the requests
that stay come at the wanted mean rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from policies.core.errors import ConfigError
from policies.core.request import Request, output_segment
from sim.api import Setup, prepare
from sim.config import RunConfig
from sim.notes import group_name
from traces.workload.rows import TraceRow
from traces.workload.source import build_source

LEAST = 200
"""Fewer requests in a window say nothing about a 99th percentile."""


class Draw(NamedTuple):
    """One independent sample of requests: ``rows`` with times from 0 and the mean rate of 1, and how many rows the
    model's length refused (``left_out``)."""

    rows: Sequence[TraceRow]
    left_out: int

    def at(self, rate_per_s: float) -> Iterator[TraceRow]:
        """The rows at that mean rate."""
        new = tuple.__new__
        for row in self.rows:
            yield new(TraceRow, (row[0] / rate_per_s, *row[1:]))

    def apart(self, gap_s: float, most: int) -> Iterator[TraceRow]:
        """At most so many of the rows, evenly picked, each so long after the one before that it is alone."""
        step = max(1, len(self.rows) // most)
        new = tuple.__new__
        for number, row in enumerate(self.rows[::step]):
            yield new(TraceRow, (number * gap_s, *row[1:7], None, *row[8:]))


class Source:
    """Where the requests of a search come from: seeds of a generator or profile, or windows of a trace."""

    def __init__(self, config: RunConfig) -> None:
        if config.workload.concurrency is not None:
            raise ConfigError("workload.concurrency: clients that wait for answers have no rate to find; leave it out")
        self.config = config
        self._setup = prepare(config)
        self._trace: list[TraceRow] | None = None

    @property
    def description(self) -> str:
        """The workload in words."""
        return self._setup.workload.description

    def facts(self) -> dict[str, str]:
        """What is simulated: preset, policy, model, hardware and the cost model that times it."""
        setup = self._setup
        return {
            "preset": setup.parameters.preset.name,
            "policy": setup.parameters.custom or type(setup.policy).__name__,
            "model": setup.shape.name,
            "hardware": group_name(setup.card.name, setup.shape.tp),
            "cost_model": f"{setup.costs.name}, version {setup.costs.version}",
        }

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader must know of the workload and the costs."""
        return self._setup.notices

    @property
    def has_seeds(self) -> bool:
        """Whether there are as many independent samples as wanted; a trace has only its windows."""
        return self.config.workload.trace is None

    def setup(self) -> Setup:
        """A new engine and policy for one run; the costs are shared, and the workload is not looked at again."""
        return prepare(self.config, costs=self._setup.costs, workload=self._setup.workload)

    def draw(self, seed: int, num_requests: int) -> Draw:
        """``num_requests`` requests of that seed, those that are refused among them."""
        spec = self.config.workload.replace(seed=seed, num_requests=num_requests, limit=None)
        return self._scaled(list(build_source(spec, self._setup.parameters.max_model_len).rows()))

    def windows(self, number: int) -> list[Draw]:
        """A trace cut into that many windows of neighbours."""
        if self._trace is None:
            self._trace = list(self._setup.workload.rows())
        rows = self._trace
        size = len(rows) // number
        if size < LEAST:
            raise ConfigError(
                f"{self.config.workload.trace}: {len(rows):,} requests make no {number} windows of at least {LEAST};"
                " give a longer trace, or make a profile of it ('batchscope traces fit')"
            )
        return [self._scaled(rows[place * size : (place + 1) * size]) for place in range(number)]

    def whole(self) -> Draw:
        """The whole trace."""
        if self._trace is None:
            self._trace = list(self._setup.workload.rows())
        return self._scaled(self._trace)

    def _scaled(self, rows: Sequence[TraceRow]) -> Draw:
        refused = {number for number, row in enumerate(rows) if self._is_refused(number, row)}
        kept = [(number, row) for number, row in enumerate(rows) if number not in refused]
        if len(kept) < 2:
            raise ConfigError("workload: no two requests fit engine.max_model_len; give shorter ones, or raise it")
        start_s = kept[0][1].arrival_s
        span_s = kept[-1][1].arrival_s - start_s
        if span_s <= 0:
            raise ConfigError("workload: all requests come at once, which is no rate; give a trace with times")
        to_unit = (len(kept) - 1) / span_s
        place = {number: new for new, (number, _) in enumerate(kept)}
        scaled = [
            row._replace(
                arrival_s=(row.arrival_s - start_s) * to_unit,
                parent_id=None if row.parent_id is None else place.get(row.parent_id),
                segments=tuple((_renamed(name, place), length) for name, length in row.segments),
            )
            for _, row in kept
        ]
        return Draw(scaled, len(refused))

    def _is_refused(self, number: int, row: TraceRow) -> bool:
        limit, most = row.max_tokens, self._setup.parameters.max_model_len
        if self._setup.workload.over_length == "reject" and row.prompt_tokens + row.output_tokens > most:
            return True
        request = Request(number, 0.0, row.prompt_tokens, row.output_tokens if limit is None else limit)
        return self._setup.policy.refusal(request) is not None


def _renamed(segment: str, place: dict[int, int]) -> str:
    """The answer of a request as a segment, under its new number; one that is not there stays without an equal."""
    mark, _, number = segment.partition(":")
    if mark != "out" or not number.isdecimal():
        return segment
    return output_segment(place[int(number)]) if int(number) in place else f"left {segment}"
