"""What really happened to every token of a stepped run, noted by an observer, and what its record says of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import isnan

import numpy as np

from policies.core.null_observer import NullObserver
from policies.core.plan import Decode, Finish, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.request import RequestId
from tests.worlds import Kept
from traces.metrics.steps import regular_gaps
from traces.record.expand import blocks_taken


class TokenWatch(NullObserver):
    """Notes when each token came and how many blocks were free, step by step. Only for runs without skip-ahead."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self.token_times: dict[RequestId, list[float]] = defaultdict(list)
        self.free_blocks: list[int] = []
        self.check_memory = False
        self._decoding: dict[RequestId, None] = {}
        self._runs: StepPlan | None = None
        self._ended: set[RequestId] = set()

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Look at the memory."""
        assert self.policy is not None
        assert fresh or self.policy.num_scheduler_steps > 1, "a stepped run plans every step"
        self.free_blocks.append(self.policy.load().free_blocks)
        if self.check_memory:
            self.policy.kv.check()

    def _follow(self, plan: StepPlan) -> None:
        """The deltas of a plan, when its step runs: that of an engine which plans ahead begins long before."""
        prompts = {chunk.id for chunk in plan.chunks}
        for request_id in plan.leaves:
            self._decoding.pop(request_id, None)
        for request_id, _ in plan.joins:
            if request_id not in prompts:
                self._decoding[request_id] = None

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """One token for each row that decodes and each prompt that is complete."""
        assert result.steps == 1
        if plan is not self._runs:
            self._runs = plan
            self._follow(plan)
        mode = plan.decode
        decodes = list(self._decoding) if mode is Decode.ALL else [] if mode is Decode.NONE else list(mode)
        emits = [key for key in decodes if result.emitted.get(key, 1)]
        for chunk in plan.chunks:
            if chunk.emits:
                self._decoding[chunk.id] = None
                emits += [chunk.id] if result.emitted.get(chunk.id, 1) else []
        for request_id in emits:
            if request_id in self._ended:
                continue
            self.token_times[request_id].append(result.end_s)
        self._ended.update(finish.id for finish in result.finished)

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """The row emits nothing any more."""
        self._ended.add(finish.id)
        assert finish.num_output_tokens == len(self.token_times.get(finish.id, ()))


def recorded_token_times(kept: Kept) -> dict[RequestId, list[float]]:
    """When each token came, by the segments of the requests and the decode steps of the record."""
    table, steps = kept.expanded()
    decode_ends = steps.end_s[steps.each(table.numbers["emitting"]) > 0].tolist()
    times: dict[RequestId, list[float]] = {}
    for row in kept.request_rows:
        mine = times[row.id] = []
        for token_s, ordinal, count in row.segments:
            mine += [] if isnan(token_s) else [token_s]
            mine += decode_ends[ordinal : ordinal + count]
    return times


def recorded_gaps(kept: Kept) -> Counter[float]:
    """Every inter-token gap of the record: regular ones of the steps, and stalls."""
    table, steps = kept.expanded()
    gaps: Counter[float] = Counter()
    for gap_s, count in zip(*(values.tolist() for values in regular_gaps(table, steps)), strict=True):
        gaps[gap_s] += count
    for stall in kept.stall_rows:
        gaps[stall.gap_s] += stall.num_gaps
    return gaps


def gaps_of(token_times: Mapping[RequestId, list[float]]) -> Counter[float]:
    """Every gap between neighbouring tokens of a request."""
    return Counter(gap_s for times in token_times.values() for gap_s in np.diff(times).tolist())


def recorded_free_blocks(kept: Kept) -> list[int]:
    """Free blocks at the start of every step, its own ones booked."""
    table, steps = kept.expanded()
    free = steps.each(table.numbers["free_blocks"]) - blocks_taken(table, steps)
    return [int(count) for count in free]


def check_against(kept: Kept, watch: TokenWatch, *, at_batch_end: bool, num_in_flight: int = 0) -> None:
    """The record says of every token, gap and block what the observer saw. ``num_in_flight`` steps at most had begun
    when the run was stopped."""
    recorded = recorded_token_times(kept)
    for request_id, times in recorded.items():
        assert times == watch.token_times.get(request_id, []), f"tokens of request {request_id}"
    assert watch.token_times.keys() <= recorded.keys()
    for row in kept.request_rows:
        assert row.output_tokens == len(recorded[row.id])
        if recorded[row.id] and not at_batch_end:
            assert row.first_token_s == recorded[row.id][0], "TTFT is that of the first token"
    if not at_batch_end:
        assert recorded_gaps(kept) == gaps_of(watch.token_times)
    free_blocks = recorded_free_blocks(kept)
    assert free_blocks == watch.free_blocks[: len(free_blocks)]
    assert len(watch.free_blocks) - len(free_blocks) in range(num_in_flight + 1), "steps in flight when the run ended"
