"""Orders of requests from the literature, for ``policies.systems.ranked_budget``.

Each gives a request a value, small ones first. While a request waits its value stands still; while it decodes it may
move with the tokens it makes, by as much as ``num_tokens`` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

from policies.core.protocols import Services
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.length_predictor import LengthPredictor

Order = Literal["priority", "sjf", "srtf", "edf", "least-laxity"]


class Targets(NamedTuple):
    """When tokens are due that no ``slo`` of a request says: the first after ``ttft_s``, each further one ``tpot_s``
    after the one before."""

    ttft_s: float
    tpot_s: float

    def of(self, request: Request) -> tuple[float, float]:
        """TTFT and TPOT that a request is to get: its own limits where it has them."""
        slo = request.slo
        if slo is None:
            return self
        ttft_s = self.ttft_s if slo.ttft_s is None else slo.ttft_s
        return ttft_s, self.tpot_s if slo.tpot_s is None else slo.tpot_s


class RankedRow(Row):
    """A request with what its ranking knows of it, and how often a better one has taken its place."""

    ranked_by = 0.0
    evictions = 0


class Ranking(ABC):
    """One order. ``worsens``: the value of a running request may grow with its tokens."""

    worsens = False

    def note(self, row: RankedRow) -> None:
        """A request has come: keep in ``row.ranked_by`` what its value is made from."""
        row.ranked_by = 0.0

    @abstractmethod
    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """Value of a request of which ``num_tokens`` are known, prompt and output."""


class ByPriority(Ranking):
    """Static priority, small first; a second of waiting is worth ``ageing_per_s`` levels."""

    def __init__(self, ageing_per_s: float) -> None:
        self._ageing_per_s = ageing_per_s

    def note(self, row: RankedRow) -> None:
        """All ages grow alike, so only the time of arrival tells requests apart."""
        row.ranked_by = row.request.priority + self._ageing_per_s * row.request.arrival_s

    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """Level, less the age up to a constant that all share."""
        return row.ranked_by


class ShortestJob(Ranking):
    """Fewest predicted output tokens first; a second of waiting is worth ``ageing_per_s`` tokens."""

    def __init__(self, predictor: LengthPredictor, ageing_per_s: float) -> None:
        self._predictor = predictor
        self._ageing_per_s = ageing_per_s

    def note(self, row: RankedRow) -> None:
        """Predicted once, when it comes."""
        request = row.request
        row.ranked_by = self._predictor.predict(request) + self._ageing_per_s * request.arrival_s

    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """Predicted tokens, less the age up to a constant that all share."""
        return row.ranked_by


class ShortestRemaining(ShortestJob):
    """Fewest predicted tokens still to come first. One that has made more than predicted is as good as done."""

    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """Every token made brings a request forward, so running ones never fall behind waiting ones."""
        return row.ranked_by - (num_tokens - row.prompt_tokens)


class EarliestDeadline(Ranking):
    """The request whose next token is due first: the first one at arrival + TTFT limit, each further one a TPOT limit
    later."""

    worsens = True

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """When the next token is due."""
        ttft_s, tpot_s = self._targets.of(row.request)
        return row.request.arrival_s + ttft_s + (num_tokens - row.prompt_tokens) * tpot_s


class LeastLaxity(EarliestDeadline):
    """The request that must start first to be in time: its deadline less the time that computing what it lacks will
    take, by the cost model. The present time takes part in all laxities alike and is left out."""

    def __init__(self, services: Services, targets: Targets) -> None:
        super().__init__(targets)
        self._services = services

    def note(self, row: RankedRow) -> None:
        """The prompt alone in a step."""
        row.ranked_by = self._services.recompute_time_s(row.prompt_tokens, 0)

    def value(self, row: RankedRow, num_tokens: int, *, waits: bool) -> float:
        """The latest moment to start: a waiting request computes all its tokens first, a running one hardly any."""
        due_s = super().value(row, num_tokens, waits=waits)
        if not waits:
            return due_s
        is_new = num_tokens == row.prompt_tokens
        return due_s - (row.ranked_by if is_new else self._services.recompute_time_s(num_tokens, 0))
