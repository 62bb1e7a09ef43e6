"""Columns of all requests of a run, and the latencies and counts they give."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from traces.metrics.stats import Stats, describe
from traces.record.columns import RequestTable
from traces.record.schema import outcome

OUTCOMES = ("finished", "rejected", "aborted", "failed", "unfinished")
FINISHED = OUTCOMES.index("finished")
REJECTED = OUTCOMES.index("rejected")
UNFINISHED = OUTCOMES.index("unfinished")

Floats = NDArray[np.float64]

_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "waited_s")
_COUNTS = ("prompt_tokens", "output_tokens", "client")
_SUMS = (
    "recompute_preemptions",
    "swap_preemptions",
    "recomputed_tokens",
    "hit_tokens_new",
    "hit_tokens_resumed",
)


@dataclass(frozen=True)
class RequestTimes:
    """The latencies of requests, from what was recorded of them. One entry a request; times are float64 seconds, NaN
    where it never happened, and a latency is NaN where a request has none. ``outcome`` indexes ``OUTCOMES``."""

    arrival_s: Floats
    first_scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    output_tokens: NDArray[np.integer]
    outcome: NDArray[np.int8]

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Which requests completed."""
        finished: NDArray[np.bool_] = self.outcome == FINISHED
        return finished

    @property
    def queue_s(self) -> Floats:
        """From arrival to the first step that works on it."""
        return self.first_scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token, queueing included."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """``(tN - t1) / (N - 1)`` of those that completed with N > 1 tokens."""
        gaps = np.where(self.is_finished & (self.output_tokens > 1), self.output_tokens - 1.0, np.nan)
        result: Floats = (self.finish_s - self.first_token_s) / gaps
        return result

    @property
    def e2e_s(self) -> Floats:
        """From arrival to the end of those that completed."""
        return np.where(self.is_finished, self.finish_s - self.arrival_s, np.nan)

    @property
    def normalized_latency_s(self) -> Floats:
        """E2E over the number of output tokens."""
        return self.e2e_s / np.where(self.output_tokens > 0, self.output_tokens, np.nan)


@dataclass(frozen=True)
class RequestColumns(RequestTimes):
    """All that the metrics need of requests, in order of their end; ``client`` indexes ``RequestStore.clients``."""

    waited_s: Floats
    prompt_tokens: NDArray[np.int32]
    priority: NDArray[np.int64]
    client: NDArray[np.int32]

    def where(self, picked: NDArray[np.bool_]) -> RequestColumns:
        """The picked requests."""
        return RequestColumns(*(getattr(self, column.name)[picked] for column in fields(self)))

    def batch_s(self) -> Floats:
        """Time in the batch of each request that completed: without queueing and requeueing."""
        spent: Floats = (self.finish_s - self.arrival_s - self.waited_s)[self.is_finished]
        return spent

    def mean_context_tokens(self) -> float | None:
        """Mean context of an output token: prompt and earlier output of its request; None without tokens."""
        tokens = self.output_tokens.astype(np.float64)
        if not tokens.any():
            return None
        return float(np.sum(tokens * (self.prompt_tokens + (tokens - 1.0) / 2.0)) / tokens.sum())

    def latencies(self) -> dict[str, Stats | None]:
        """Statistics by name. TTFT is over all requests that got a token, queue and waiting time over all
        that ran, the others over those that completed."""
        ran = ~np.isnan(self.first_scheduled_s)
        names = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "normalized_latency_s")
        return {**{name: _known(getattr(self, name)) for name in names}, "waited_s": _known(self.waited_s[ran])}


class RequestStore:
    """Collects tables of requests; 61 bytes a request. ``clients`` are their names, each with its place."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in (*_TIMES, *_COUNTS, "priority", "outcome")
        }
        self.clients: dict[str, int] = {}
        self.reasons: Counter[str] = Counter()
        self.sums: Counter[str] = Counter(dict.fromkeys(_SUMS, 0))

    def add(self, table: RequestTable) -> NDArray[np.int8]:
        """Keep a batch; gives its outcomes."""
        numbers = table.numbers
        for name in _TIMES:
            self._parts[name].append(numbers[name].copy())
        for name in _COUNTS[:-1]:
            self._parts[name].append(numbers[name].astype(np.int32))
        self._parts["client"].append(self._clients(table.client_id))
        self._parts["priority"].append(numbers["priority"].astype(np.int64))
        outcomes = outcome_codes(table.reason)
        self._parts["outcome"].append(outcomes)
        self.reasons.update(table.reason)
        for name in _SUMS:
            self.sums[name] += int(numbers[name].sum())
        return outcomes

    def columns(self) -> RequestColumns:
        """All requests so far."""
        for name, parts in self._parts.items():
            self._parts[name] = [np.concatenate(parts) if parts else np.empty(0, _kind(name))]
        return RequestColumns(**{name: parts[0] for name, parts in self._parts.items()})  # type: ignore[arg-type]

    def _clients(self, names: list[str]) -> NDArray[np.int32]:
        codes = self.clients
        for name in dict.fromkeys(names):
            codes.setdefault(name, len(codes))
        if len(codes) == 1:
            return np.zeros(len(names), np.int32)
        return np.fromiter(map(codes.__getitem__, names), np.int32, len(names))

    def counts(self) -> dict[str, int]:
        """Number of requests with each outcome, 0 included."""
        counts = dict.fromkeys(OUTCOMES, 0)
        for reason, number in self.reasons.items():
            counts[outcome(reason)] += number
        return counts


def _kind(name: str) -> str:
    if name in _TIMES:
        return "f8"
    return {"priority": "i8", "outcome": "i1"}.get(name, "i4")


def outcome_codes(reasons: list[str]) -> NDArray[np.int8]:
    """The places in ``OUTCOMES`` of what became of requests that ended for these reasons."""
    codes = {reason: OUTCOMES.index(outcome(reason)) for reason in set(reasons)}
    return np.fromiter(map(codes.__getitem__, reasons), np.int8, len(reasons))


def _known(values: Floats) -> Stats | None:
    return describe(values[~np.isnan(values)])
