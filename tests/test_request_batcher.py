"""Request-level batchers: tables worked out by hand, one line a batch:

    FORMED  REQUESTS  LEFT  START-END

The time at which the batch was closed, its requests, how many it left in the queue, and when its handler ran
(2 s and 1 s for each request). Times are whole seconds.
"""

from __future__ import annotations

import pytest

from policies.conformance.batches import decide_batches
from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.plan import Idle
from policies.core.request import Request
from policies.systems.request_batcher import RayServeBatch, RequestBatcher, TritonDynamic
from tests.stepping import Stepper, table

SECOND = 1_000_000


def ray(wait_s: float, *, size: int = 3, forms_ahead: bool = False, slots: int = 9) -> RayServeBatch:
    return RayServeBatch(
        KvManager(slots, 100),
        max_num_seqs=size,
        max_model_len=100,
        batch_wait_timeout_s=wait_s,
        forms_ahead=forms_ahead,
    )


def triton(wait_s: float, *, size: int = 8, preferred: str = "", slots: int = 9) -> TritonDynamic:
    return TritonDynamic(
        KvManager(slots, 100),
        max_num_seqs=size,
        max_model_len=100,
        batch_wait_timeout_s=wait_s,
        preferred_batch_sizes=preferred,
    )


def batches(policy: RequestBatcher, arrivals: str) -> list[str]:
    """What happens to requests A, B, ... that come at the given seconds."""
    times = [int(text) for text in arrivals.split()]
    requests = [Request(number, float(time), 1, 1) for number, time in enumerate(times)]
    lines = decide_batches(
        policy, requests, base_s=2.0, per_item_s=1.0, config={}, name=lambda number: chr(ord("A") + number)
    )
    assert lines[-1]["unfinished"] == 0
    return [_row(line) for line in lines if line["type"] == "batch"]


def _row(line: dict[str, object]) -> str:
    formed, start, end = (int(str(line[key])) / SECOND for key in ("formed_us", "start_us", "end_us"))
    ids = line["ids"]
    assert isinstance(ids, list)
    return f"{formed:g} {''.join(ids)} {line['left']} {start:g}-{end:g}"


# -- Ray Serve -----------------------------------------------------------------------------------------------


def test_without_a_timeout_a_batch_takes_what_is_there() -> None:
    assert batches(ray(0.0), "0 1 1 2 2 9") == table(
        """
        0   A    0  0-3
        3   BCD  1  3-8    # four waited, three are a batch
        8   E    0  8-11
        11  F    0  11-14
        """
    )


def test_the_window_opens_when_the_batcher_takes_its_first_request() -> None:
    assert batches(ray(4.0), "0 3 5 6 20 20 20") == table(
        """
        4   AB   0  4-8
        12  CD   0  12-16   # C came at 5, but the batcher was free at 8
        20  EFG  0  20-25   # closed early
        """
    )


def test_a_full_batch_is_closed_when_its_last_request_comes() -> None:
    assert batches(ray(4.0), "0 1 2 2 3") == table(
        """
        2   ABC  1  2-7
        11  DE   0  11-15
        """
    )


def test_batches_are_closed_while_others_run() -> None:
    assert batches(ray(2.0, forms_ahead=True), "0 1 3 4 6 6 6 7") == table(
        """
        2  AB   0  2-6
        5  CD   0  6-10    # the window from 3 to 5 ended while the first batch ran
        6  EFG  0  10-15
        9  H    0  15-18
        """
    )


def test_closed_ahead_without_a_timeout_each_request_is_alone() -> None:
    assert batches(ray(0.0, forms_ahead=True), "0 1 1 2") == table(
        """
        0  A   0  0-3
        1  BC  0  3-7      # they came together
        2  D   0  7-10
        """
    )


def test_a_batch_has_no_more_requests_than_the_pool_has_slots() -> None:
    assert batches(ray(0.0, slots=2), "0 0 0") == ["0 AB 1 0-4", "4 C 0 4-7"]


# -- Triton --------------------------------------------------------------------------------------------------


def test_without_a_delay_the_queue_goes_when_the_instance_is_free() -> None:
    assert batches(triton(0.0, size=3), "0 1 1 2 2") == table(
        """
        0  A    0  0-3
        3  BCD  1  3-8
        8  E    0  8-11
        """
    )


def test_the_largest_preferred_size_that_waits_goes_at_once() -> None:
    assert batches(triton(0.0, preferred="2,4"), "0 1 1 1 2 2 2 2 2") == table(
        """
        0   A     0  0-3
        3   BCDE  4  3-9    # eight wait; the largest preferred size is 4
        9   FGHI  0  9-15
        """
    )


def test_a_queue_without_a_preferred_size_waits_until_the_oldest_has_waited_long_enough() -> None:
    assert batches(triton(5.0, preferred="2,4"), "0 6 7 7 20 21") == table(
        """
        5   A   0  5-8      # alone, expired
        8   BC  1  8-12     # three wait: 2 is preferred, and nobody has waited for 5 s
        12  D   0  12-15    # it came at 7
        21  EF  0  21-25    # the second makes a preferred size
        """
    )


def test_an_expired_queue_goes_as_it_is() -> None:
    assert batches(triton(3.0, preferred="2", size=5), "0 0 1 1 1 2 2 2 2") == table(
        """
        0   AB     0  0-4
        4   CDEFG  2  4-11   # C has waited for 3 s: not 2 of them, but all that a batch takes
        11  HI     0  11-15
        """
    )


def test_the_default_preferred_size_is_the_largest_batch() -> None:
    assert batches(triton(9.0, size=3), "0 1 2 3 4") == ["2 ABC 0 2-7", "12 DE 0 12-16"]


# -- both ----------------------------------------------------------------------------------------------------


def test_the_batch_runs_as_a_static_one_and_answers_together() -> None:
    world = Stepper(ray(0.0, size=2), max_model_len=100, deliver_at_batch_end=True)
    world.arrive((1, 4, 3), (2, 6, 1), (3, 5, 2))
    assert world.run() == table(
        """
        0  1:0+4,2:0+6    0/12/0  2  3  7  -                batch      # padded to 6
        1  1:4+1,(2:6+1)  2/2/10  1  3  7  -                batch
        2  1:5+1,(2:7+1)  2/2/12  1  3  7  2=stop1,1=stop3  batch
        3  3:0+5          0/5/0   1  -  8  -                arrivals
        4  3:5+1          1/1/5   1  -  8  3=stop2          arrivals
        """
    )


def test_the_engine_sleeps_until_the_window_ends() -> None:
    policy = ray(4.0)
    world = Stepper(policy, max_model_len=100, deliver_at_batch_end=True)
    world.arrive((1, 4, 1))
    idle = policy.schedule(0.0)
    assert isinstance(idle, Idle)
    assert (idle.reason, idle.wake_at_s) == ("batch_window", 4.0)
    assert world.step() == "idle"
    assert world.time == 4
    assert world.step().startswith("0 1:0+4 ")


def test_an_abort_empties_a_place_of_its_batch() -> None:
    policy = ray(1.0, size=2, forms_ahead=True)
    world = Stepper(policy, max_model_len=100, deliver_at_batch_end=True)
    world.arrive((1, 4, 5))
    assert world.step() == "idle"
    assert world.step().startswith("0 1:0+4 ")
    world.arrive((2, 4, 1), (3, 4, 1), (4, 4, 1))
    lines = world.steps(2)
    world.abort(2)
    world.abort(4)
    lines += world.run()
    assert [line.split()[1] for line in lines if ":0+" in line] == ["3:0+4"]


@pytest.mark.parametrize("wait_s", [-1.0, float("inf"), float("nan")])
def test_impossible_windows(wait_s: float) -> None:
    with pytest.raises(ConfigError, match=r"batch_wait_timeout_s is .* give seconds, at least 0"):
        ray(wait_s)
