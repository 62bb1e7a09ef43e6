"""The sink that turns a run record into metrics while the run goes on, in memory that does not grow with
tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from policies.core.request import Slo
from traces.metrics.goodput import Goodput, goodput
from traces.metrics.groups import Grouping, groupings
from traces.metrics.pool import PairPool
from traces.metrics.queue import Stability, littles_law_error, stability
from traces.metrics.requests import FINISHED, REJECTED, UNFINISHED, RequestColumns, RequestStore
from traces.metrics.stats import Stats
from traces.metrics.steps import StepMetrics, StepSums, regular_gaps, tokens_of_steps
from traces.metrics.window import TokenTimeline
from traces.record.columns import RequestTable, RowsToColumns, StallTable, StepTable
from traces.record.expand import chunks, expand

Delivery = Literal["step", "every_k", "batch_end"]


@dataclass(frozen=True)
class Throughput:
    """Rates over the run, per second; None where there is nothing to divide.

    Output tokens are those produced, whatever became of the request; prompt tokens those of requests that got
    a token. ``steady_completions`` are those up to the last arrival, where the window of the steady rate ends.
    """

    output_tokens: int
    prompt_tokens: int
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    requests_per_s: float | None
    steady_output_tokens_per_s: float | None
    steady_completions: int


@dataclass(frozen=True)
class Preemptions:
    """Events and their price; ``moved_bytes`` went over the swap link, both ways together."""

    recompute: int
    swap: int
    recomputed_tokens: int
    moved_bytes: int


@dataclass(frozen=True)
class RunMetrics:
    """Every metric of one run, in seconds, tokens and bytes. None: no samples.

    ``duration_s`` runs from the first arrival to the last completion, or to the last step if requests are
    unfinished. ``latencies``: ttft_s, itl_s, tpot_s, e2e_s, queue_s, waited_s, normalized_latency_s.
    ``prefix_hit_rate_new`` is over the prompt tokens of the requests that ran; ``prefix_hit_rate_resumed``
    over the tokens that preempted requests found again or recomputed.
    """

    offered: int
    counts: dict[str, int]
    reasons: dict[str, int]
    duration_s: float
    throughput: Throughput
    latencies: dict[str, Stats | None]
    itl_is_exact: bool
    stability: Stability | None
    littles_law_error: float | None
    goodput: Goodput | None
    prefix_hit_rate_new: float | None
    prefix_hit_rate_resumed: float | None
    preemptions: Preemptions
    mean_context_tokens: float | None
    groups: dict[str, Grouping] = field(repr=False)
    steps: StepMetrics = field(repr=False)


class MetricsSink(RowsToColumns):
    """A ``RecordSink`` (and ``TableSink``) of one run; ``result`` may be asked at any time, most often at the
    end.

    With ``delivery`` batch_end all tokens of a request are delivered when it finishes: they are credited
    then, and its inter-token gaps are 0 whatever the steps say.
    """

    def __init__(
        self, *, max_num_seqs: int, num_gpu_blocks: int, block_size: int, delivery: Delivery = "step"
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self._by_step = delivery != "batch_end"
        self._gaps, self._timeline = PairPool(), TokenTimeline()
        self._requests = RequestStore()
        self._steps = StepSums(num_gpu_blocks, block_size)

    def step_table(self, table: StepTable) -> None:
        """Book a batch of steps."""
        for part in chunks(table):
            steps = expand(part.numbers)
            self._steps.add(part, steps)
            if self._by_step:
                self._gaps.add(*regular_gaps(part, steps))
                self._timeline.add(steps.end_s, tokens_of_steps(part, steps))

    def request_table(self, table: RequestTable) -> None:
        """Book a batch of requests."""
        numbers = table.numbers
        finished = self._requests.add(table) == FINISHED
        if not self._by_step and np.any(finished):
            tokens = numbers["output_tokens"][finished]
            self._timeline.add(numbers["finish_s"][finished], tokens)
            self._gaps.add(np.zeros(len(tokens)), tokens - 1)
        first_s = np.min(numbers["finish_s"][finished], initial=np.inf)
        self._timeline.note(float(first_s), float(np.max(numbers["arrival_s"])))

    def stall_table(self, table: StallTable) -> None:
        """Book irregular gaps."""
        if self._by_step:
            self._gaps.add(table.gap_s, table.num_gaps)

    def close(self) -> None:
        """Nothing is held open."""

    def result(self, limits: Slo | None = None) -> RunMetrics:
        """All metrics of what has been recorded; ``goodput`` where ``limits`` state at least one limit."""
        requests, sums = self._requests.columns(), self._requests.sums
        start_s, end_s = self._span(requests)
        duration_s = max(end_s - start_s, 0.0)
        ran = ~np.isnan(requests.first_scheduled_s)
        ended_s = np.where(requests.outcome == UNFINISHED, np.nan, requests.finish_s)
        resumed = sums["hit_tokens_resumed"] + sums["recomputed_tokens"]
        steps = self._steps.metrics(duration_s, self._max_num_seqs)
        if limits is not None and all(limit is None for limit in limits):
            limits = None
        return RunMetrics(
            offered=len(requests.arrival_s),
            counts=self._requests.counts(),
            reasons=dict(sorted(self._requests.reasons.items())),
            duration_s=duration_s,
            throughput=self._throughput(requests, duration_s),
            latencies={**requests.latencies(), "itl_s": self._gaps.stats()},
            itl_is_exact=self._gaps.is_exact,
            stability=stability(requests.arrival_s, ended_s, requests.batch_s()),
            littles_law_error=self._littles_law_error(requests),
            goodput=goodput(requests, limits, duration_s) if limits else None,
            prefix_hit_rate_new=_ratio(
                sums["hit_tokens_new"], int(requests.prompt_tokens[ran].sum(dtype=np.int64))
            ),
            prefix_hit_rate_resumed=_ratio(sums["hit_tokens_resumed"], resumed),
            preemptions=Preemptions(
                sums["recompute_preemptions"],
                sums["swap_preemptions"],
                sums["recomputed_tokens"],
                steps.moved_bytes,
            ),
            mean_context_tokens=requests.mean_context_tokens(),
            groups=groupings(requests, list(self._requests.clients), limits, duration_s),
            steps=steps,
        )

    def _littles_law_error(self, requests: RequestColumns) -> float | None:
        """Of the batch; None where aborted requests keep their slots until it ends, and so count as running."""
        if not self._by_step and self._requests.reasons["abort"]:
            return None
        ran = ~np.isnan(requests.first_scheduled_s)
        unfinished = requests.outcome == UNFINISHED
        left_s = np.where(unfinished, self._steps.end_s, requests.finish_s)
        return littles_law_error(
            self._steps.running_s, requests.arrival_s[ran], left_s[ran], requests.waited_s[ran]
        )

    def _span(self, requests: RequestColumns) -> tuple[float, float]:
        """First arrival, and the last completion (the last step, if something was left unfinished)."""
        if not len(requests.arrival_s):
            return 0.0, 0.0
        start_s = float(requests.arrival_s.min())
        served = (requests.outcome != REJECTED) & (requests.outcome != UNFINISHED)
        end_s = float(np.max(requests.finish_s[served], initial=start_s))
        if np.any(requests.outcome == UNFINISHED):
            end_s = max(end_s, self._steps.end_s, float(requests.arrival_s.max()))
        return start_s, end_s

    def _throughput(self, requests: RequestColumns, duration_s: float) -> Throughput:
        output = int(requests.output_tokens.sum(dtype=np.int64))
        prompt = int(requests.prompt_tokens[~np.isnan(requests.first_token_s)].sum(dtype=np.int64))
        done_s = requests.finish_s[requests.is_finished]
        return Throughput(
            output_tokens=output,
            prompt_tokens=prompt,
            output_tokens_per_s=_ratio(output, duration_s),
            total_tokens_per_s=_ratio(output + prompt, duration_s),
            requests_per_s=_ratio(len(done_s), duration_s),
            steady_output_tokens_per_s=self._timeline.output_tokens_per_s(),
            steady_completions=int(np.count_nonzero(done_s <= np.max(requests.arrival_s, initial=-np.inf))),
        )


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None
