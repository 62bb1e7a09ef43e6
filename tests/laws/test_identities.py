"""Little's law and work conservation: on random runs of every policy, and on records that were tampered with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.kv import KvManager
from policies.core.request import Request
from policies.systems.base import BatchingPolicy
from policies.systems.token_budget import TokenBudget
from sim.world.services import SimServices
from tests.laws.costs import AffineCosts
from tests.laws.identities import Tape, idle_spells_s, idle_with_work_s, littles_law_error
from tests.laws.replica import Served, serve, workload_of
from tests.variants import VARIANTS, Size, Variant
from traces.record.schema import RecordSink, RequestRow, Stall, StepRow
from traces.workload.rows import TraceRow

SIZE = Size(
    num_gpu_blocks=60,
    block_size=4,
    max_model_len=64,
    max_num_seqs=5,
    max_num_batched_tokens=24,
    num_cpu_blocks=40,
)


class SwapCosts(AffineCosts):
    """Affine steps; each block that moves takes 2 ms."""

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        return 0.002 * pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        return 0.0005 * num_tokens


class TrueLengths(SimServices):
    """Predicts what the rows say."""

    def __init__(self, costs: SwapCosts, rows: list[TraceRow]) -> None:
        super().__init__(costs)
        self._rows = rows

    def predict_output_len(self, request: Request) -> int:
        return self._rows[request.id].output_tokens


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRow]:
    """Bursts and pauses, prompts that do not fit, clients that lose patience."""
    number = draw(st.integers(1, 30))
    gaps = draw(st.lists(st.sampled_from((0.0, 0.001, 0.01, 0.05, 3.0)), min_size=number, max_size=number))
    prompts, outputs = (draw(st.lists(st.integers(1, top), min_size=number, max_size=number)) for top in (66, 40))
    patience = draw(st.lists(st.sampled_from((None, None, 0.004, 0.2)), min_size=number, max_size=number))
    times = np.cumsum(gaps).tolist()
    return [
        TraceRow(time_s, prompt, output, output, abort_after_s=wait_s)
        for time_s, prompt, output, wait_s in zip(times, prompts, outputs, patience, strict=True)
    ]


def serve_rows(
    variant: Variant,
    rows: list[TraceRow],
    *,
    max_time_s: float | None = None,
    also: Sequence[RecordSink] = (),
) -> Served:
    """Run rows against a policy in a pool too small for them."""
    costs = SwapCosts(0.01, 0.002)
    policy = variant.build(SIZE, TrueLengths(costs, rows))
    assert isinstance(policy, BatchingPolicy)
    return serve(
        policy,
        workload_of(rows),
        costs,
        max_model_len=SIZE.max_model_len,
        deliver_at_batch_end=variant.deliver_at_batch_end,
        max_time_s=max_time_s,
        also=also,
    )


@pytest.mark.parametrize("name", VARIANTS)
@given(rows=workloads(), max_time_s=st.sampled_from((None, None, 0.1, 0.5)))
def test_identities_hold_on_every_run(name: str, rows: list[TraceRow], max_time_s: float | None) -> None:
    variant = VARIANTS[name]
    if variant.deliver_at_batch_end:  # an aborted request would keep its slot, and count as running, to the end
        rows = [row._replace(abort_after_s=None) for row in rows]
    served = serve_rows(variant, rows, max_time_s=max_time_s)
    window_s = variant.batch_window_s  # for which an engine may idle with work, waiting for more
    assert (littles_law_error(served.tape, may_idle=window_s > 0.0) or 0.0) < 1e-9
    assert (served.metrics.littles_law_error or 0.0) < 1e-9
    assert np.max(idle_spells_s(served.tape), initial=0.0) <= window_s * (1.0 + 1e-9)
    assert sum(served.metrics.counts.values()) == served.outcome.offered


class Rows:
    """A sink that keeps the rows of a record."""

    def __init__(self) -> None:
        self.step_rows: list[StepRow] = []
        self.request_rows: list[RequestRow] = []

    def steps(self, rows: Collection[StepRow]) -> None:
        self.step_rows += [StepRow(*row) for row in rows]

    def requests(self, rows: Collection[RequestRow]) -> None:
        self.request_rows += [RequestRow(*row) for row in rows]

    def stalls(self, rows: Sequence[Stall]) -> None:
        pass

    def close(self) -> None:
        pass


def tape_of(steps: Sequence[StepRow], requests: Sequence[RequestRow]) -> Tape:
    tape = Tape()
    tape.steps(steps)
    tape.requests(requests)
    return tape


@pytest.fixture(scope="module")
def recorded() -> Rows:
    """Ten requests, some of them preempted, some waiting; the last one comes when all others have left."""
    rows = [TraceRow(0.011 * number, 20, 30, 30) for number in range(9)] + [TraceRow(50.0, 4, 3, 3)]
    kept = Rows()
    served = serve_rows(VARIANTS["v1"], rows, also=[kept])
    assert served.metrics.preemptions.recompute > 0
    assert littles_law_error(tape_of(kept.step_rows, kept.request_rows)) == littles_law_error(served.tape)
    return kept


STEPS_TAMPERED: dict[str, Callable[[list[StepRow]], list[StepRow]]] = {
    "a lost step": lambda rows: rows[:7] + rows[8:],
    "one running too many": lambda rows: [rows[0]._replace(running=rows[0].running + 1), *rows[1:]],
    "one waiting too few": lambda rows: [
        row._replace(waiting=max(0, row.waiting - (place == 9))) for place, row in enumerate(rows)
    ],
    "a last step that is too long": lambda rows: [*rows[:-1], rows[-1]._replace(end_s=rows[-1].end_s + 0.001)],
}
REQUESTS_TAMPERED: dict[str, Callable[[list[RequestRow]], list[RequestRow]]] = {
    "a lost request": lambda rows: rows[1:],
    "one told twice": lambda rows: [rows[4], *rows],
    "an early end": lambda rows: [rows[0]._replace(finish_s=rows[0].finish_s - 0.001), *rows[1:]],
    "an end before the arrival": lambda rows: [*rows[:-1], rows[-1]._replace(finish_s=49.0)],
}


@pytest.mark.parametrize("what", STEPS_TAMPERED)
def test_littles_law_notices_steps_with(what: str, recorded: Rows) -> None:
    error = littles_law_error(tape_of(STEPS_TAMPERED[what](recorded.step_rows), recorded.request_rows))
    assert error is not None
    assert error > 1e-6


@pytest.mark.parametrize("what", REQUESTS_TAMPERED)
def test_littles_law_notices_requests_with(what: str, recorded: Rows) -> None:
    error = littles_law_error(tape_of(recorded.step_rows, REQUESTS_TAMPERED[what](recorded.request_rows)))
    assert error is not None
    assert error > 1e-6


def test_work_conservation_notices_a_pause(recorded: Rows) -> None:
    """All steps from the eighth row on, and the ends that follow, come 5 ms later, those of the last request too:
    so nothing runs for 5 ms while somebody is there, and again when that request has come."""
    pause_s, place = 0.005, 8
    since_s = recorded.step_rows[place].start_s
    steps = [
        row if number < place else row._replace(start_s=row.start_s + pause_s, end_s=row.end_s + pause_s)
        for number, row in enumerate(recorded.step_rows)
    ]
    requests = [
        row if row.finish_s <= since_s else row._replace(finish_s=row.finish_s + pause_s)
        for row in recorded.request_rows
    ]
    assert idle_with_work_s(tape_of(steps, requests)) == pytest.approx(2.0 * pause_s)
    assert idle_with_work_s(tape_of(recorded.step_rows, recorded.request_rows)) == 0.0


def waited_s(rows: Rows) -> dict[int, float]:
    """Waiting time by request."""
    return {row.id: row.waited_s for row in rows.request_rows}


def test_who_leaves_while_waiting_has_waited_until_then() -> None:
    """One slot, steps of 12 ms; the second request gives up at 20 ms, seen at 24 ms; the third waits to the end."""
    rows = [TraceRow(0.0, 1, 8, 8), TraceRow(0.001, 1, 8, 8, abort_after_s=0.019), TraceRow(0.002, 1, 8, 8)]
    kept = Rows()
    policy = TokenBudget(KvManager(60, 4), max_num_seqs=1, max_num_batched_tokens=24, max_model_len=64)
    served = serve(policy, workload_of(rows), SwapCosts(0.01, 0.002), max_model_len=64, max_time_s=0.04, also=[kept])
    assert waited_s(kept) == pytest.approx({0: 0.0, 1: 0.023, 2: 0.046})
    assert served.metrics.reasons == {"abort": 1, "unfinished": 2}


def test_what_comes_in_the_last_step_of_a_run_is_unfinished() -> None:
    rows = [TraceRow(0.0, 1, 8, 8), TraceRow(0.039, 1, 8, 8), TraceRow(0.05, 1, 8, 8)]
    kept = Rows()
    served = serve_rows(VARIANTS["v1"], rows, max_time_s=0.04, also=[kept])
    assert served.outcome.offered == 2
    assert waited_s(kept) == pytest.approx({0: 0.0, 1: 0.048 - 0.039})


def test_a_run_that_sticks_when_its_first_request_comes_ends_there() -> None:
    kept = Rows()
    policy = TokenBudget(KvManager(4, 4), max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, faithful=True)
    served = serve(
        policy, workload_of([TraceRow(5.0, 30, 5, 5)]), SwapCosts(0.01, 0.002), max_model_len=64, also=[kept]
    )
    assert (served.outcome.status, served.outcome.end_s) == ("stuck", 5.0)
    assert waited_s(kept) == {0: 0.0}
