"""Static batching: step tables worked out by hand. The columns are explained in tests/stepping.py."""

from __future__ import annotations

import pytest

from policies.core.kv import KvManager
from policies.systems.static import Static
from tests.stepping import Stepper, table


def static(
    *,
    slots: int,
    max_num_seqs: int = 32,
    max_model_len: int = 100,
    return_early: bool = False,
    pads_context: bool = False,
) -> Stepper:
    kv = KvManager(slots, max_model_len)
    policy = Static(
        kv,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        return_early=return_early,
        pads_context=pads_context,
    )
    return Stepper(policy, max_model_len=max_model_len, deliver_at_batch_end=not return_early)


def test_batch_end_keeps_slot_and_cost_of_finished_rows_and_delivers_together() -> None:
    world = static(slots=3)
    world.arrive((1, 4, 1), (2, 6, 4), (3, 5, 2), (4, 2, 2))
    assert world.run() == table(
        """
        0  1:0+4,2:0+6,3:0+5         0/18/0    3  4  0  -                        batch  # padded: 3 x 6
        1  (1:4+1),2:6+1,3:5+1       3/3/15    2  4  0  -                        batch  # 1 ended, is charged
        2  (1:5+1),2:7+1,(3:6+1)     3/3/18    1  4  0  -                     batch
        3  (1:6+1),2:8+1,(3:7+1)     3/3/21    1  4  0  1=stop1,3=stop2,2=stop4  batch  # in order of ends
        4  4:0+2                     0/2/0     1  -  2  -                     arrivals
        5  4:2+1                     1/1/2     1  -  2  4=stop2               arrivals
        """
    )
    assert world.step() == "idle"


def test_a_naive_call_of_generate_pays_for_padding_in_every_step() -> None:
    world = static(slots=3, pads_context=True)
    world.arrive((1, 4, 1), (2, 6, 4), (3, 5, 2), (4, 2, 2))
    assert world.run() == table(
        """
        0  1:0+4,2:0+6,3:0+5         0/18/0    3  4  0  -                        batch  # padded: 3 x 6
        1  (1:4+1),2:6+1,3:5+1       3/3/18    2  4  0  -                        batch  # 3 x 6, not 4 + 6 + 5
        2  (1:5+1),2:7+1,(3:6+1)     3/3/21    1  4  0  -                        batch  # 3 x 7
        3  (1:6+1),2:8+1,(3:7+1)     3/3/24    1  4  0  1=stop1,3=stop2,2=stop4  batch
        4  4:0+2                     0/2/0     1  -  2  -                        arrivals
        5  4:2+1                     1/1/2     1  -  2  4=stop2                  arrivals
        """
    )


def test_early_return_frees_the_slot_but_nobody_joins() -> None:
    world = static(slots=3, return_early=True)
    world.arrive((1, 4, 1), (2, 6, 4), (3, 5, 2), (4, 2, 2))
    assert world.run() == table(
        """
        0  1:0+4,2:0+6,3:0+5  0/18/0  3  4  0  1=stop1  batch
        1  2:6+1,3:5+1        2/2/11  2  4  1  3=stop2  batch   # one slot free, 4 waits all the same
        2  2:7+1              1/1/7   1  4  2  -        batch
        3  2:8+1              1/1/8   1  4  2  2=stop4  batch
        4  4:0+2              0/2/0   1  -  2  -        arrivals
        5  4:2+1              1/1/2   1  -  2  4=stop2  arrivals
        """
    )


def test_a_batch_takes_what_waits_when_it_starts_and_no_more_than_max_num_seqs() -> None:
    world = static(slots=8, max_num_seqs=2)
    world.arrive((1, 3, 2))
    lines = [world.step()]
    world.arrive((2, 3, 1), (3, 3, 1), (4, 3, 1))
    lines += world.run()
    assert lines == table(
        """
        0  1:0+3        0/3/0  1  -      7  -                arrivals
        1  1:3+1        1/1/3  1  2,3,4  7  1=stop2          batch
        2  2:0+3,3:0+3  0/6/0  2  4      6  2=stop1,3=stop1  batch     # 4 is over max_num_seqs
        3  4:0+3        0/3/0  1  -      7  4=stop1          arrivals
        """
    )


def test_output_beyond_the_model_length_is_cut_and_a_prompt_of_that_length_is_refused() -> None:
    world = static(slots=2, max_model_len=6, return_early=True)
    world.arrive((1, 4, 5), (2, 6, 1))
    assert world.run() == table(
        """
        0  1:0+4  0/4/0  1  -  1  -          arrivals
        1  1:4+1  1/1/4  1  -  1  1=length2  arrivals
        """
    )


def test_abort_at_batch_end_leaves_the_slot_occupied_until_the_batch_ends() -> None:
    world = static(slots=2)
    world.arrive((1, 4, 5), (2, 6, 4), (3, 2, 1))
    lines = world.steps(2)
    aborted = world.abort(1)
    assert (aborted.reason, aborted.num_output_tokens) == ("abort", 2)
    lines += world.run()
    assert lines == table(
        """
        0  1:0+4,2:0+6    0/12/0  2  3  0  -        batch
        1  1:4+1,2:6+1    2/2/10  2  3  0  -        batch     # then the client of 1 leaves
        2  (1:5+1),2:7+1  2/2/12  1  3  0  -        batch
        3  (1:6+1),2:8+1  2/2/14  1  3  0  2=stop4  batch
        4  3:0+2          0/2/0   1  -  1  3=stop1  arrivals
        """
    )


def test_a_batch_whose_last_live_request_is_aborted_ends_after_one_more_step() -> None:
    world = static(slots=2)
    world.arrive((1, 4, 9), (2, 6, 1), (3, 2, 1))
    lines = world.steps(2)
    assert world.policy.horizon().steps > 1000
    world.abort(1)
    lines.append(world.step())
    lines += world.run()
    assert lines == table(
        """
        0  1:0+4,2:0+6      0/12/0  2  3  0  -        batch
        1  1:4+1,(2:6+1)    2/2/10  1  3  0  -        batch     # then the client of 1 leaves
        2  (1:5+1),(2:7+1)  2/2/12  0  3  0  2=stop1  batch     # nobody is left: the answer of 2 goes out
        3  3:0+2            0/2/0   1  -  1  3=stop1  arrivals
        """
    )


def test_abort_of_an_answer_that_waits_for_its_batch_counts_once() -> None:
    world = static(slots=2)
    world.arrive((1, 4, 3), (2, 6, 1))
    world.step()
    assert world.abort(2).num_output_tokens == 1
    assert world.run()[-1].split()[6] == "1=stop3"
    assert world.engine.num_unfinished == 0


def test_abort_with_early_return_and_in_the_queue() -> None:
    world = static(slots=2, return_early=True)
    world.arrive((1, 4, 5), (2, 6, 3), (3, 2, 1), (4, 2, 1))
    lines = world.steps(2)
    assert world.abort(1).num_output_tokens == 2
    assert world.abort(3).num_output_tokens == 0
    lines += world.run()
    assert lines == table(
        """
        0  1:0+4,2:0+6  0/12/0  2  3,4  0  -        batch
        1  1:4+1,2:6+1  2/2/10  2  3,4  0  -        batch     # then the clients of 1 and 3 leave
        2  2:7+1        1/1/7   1  4    1  2=stop3  batch
        3  4:0+2        0/2/0   1  -    1  4=stop1  arrivals
        """
    )


def test_finished_rows_store_what_they_had() -> None:
    world = static(slots=2)
    world.arrive((1, 4, 9), (2, 6, 2))
    stored = []
    for _ in range(5):
        world.step()
        stored.append(world.policy.load().stored_tokens)
    # Prompts 4 + 6; then both add one; 2 has ended and stores 7 from then on.
    assert stored == [10, 12, 13, 14, 15]


def test_horizon_reaches_to_the_end_of_the_batch_and_only_the_first_arrival_matters() -> None:
    world = static(slots=1)
    world.arrive((1, 4, 50))
    world.step()
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, True)
    world.arrive((2, 4, 50))
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, False)


@pytest.mark.parametrize(
    ("outputs", "useful", "slot_steps", "wasted"),
    [([20] * 7 + [500], 640, 4_000, 0.84), ([100] * 31 + [2_000], 5_100, 64_000, 0.9203125)],
    ids=["slots-8", "slots-32"],
)
def test_wasted_slot_steps(outputs: list[int], useful: int, slot_steps: int, wasted: float) -> None:
    world = static(slots=len(outputs), max_model_len=4_096)
    world.arrive(*((index, 16, output) for index, output in enumerate(outputs)))
    lines = world.run()
    assert len(lines) == max(outputs)
    assert (world.useful, world.slot_steps) == (useful, slot_steps)
    assert 1 - world.useful / world.slot_steps == pytest.approx(wasted)
