"""Orca: step tables worked out by hand. The columns are explained in tests/stepping.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.request import Request
from policies.systems.orca import Orca, Reservation
from tests.stepping import Predictions, Stepper, table


def orca(
    reservation: Reservation,
    *,
    tokens: int,
    predicted: dict[int, int] | None = None,
    max_num_seqs: int = 8,
    max_model_len: int = 100,
) -> Stepper:
    """An Orca with a pool of ``tokens`` slots and predictions by request."""
    kv = KvManager(tokens // max_model_len, max_model_len) if reservation == "max" else KvManager(tokens, 1)
    services = Predictions(predicted or {})
    policy = Orca(
        kv,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        reservation=reservation,
        services=services,
    )
    return Stepper(policy, max_model_len=max_model_len)


def test_max_reserves_the_model_length_and_joins_at_the_iteration_after_a_finish() -> None:
    world = orca("max", tokens=200)
    world.arrive((1, 4, 2), (2, 6, 4), (3, 5, 1))
    lines = [world.step()]
    world.arrive((4, 3, 2))
    lines += world.run()
    assert lines == table(
        """
        0  1:0+4,2:0+6  0/10/0  2  3    0  -                kv_blocks
        1  1:4+1,2:6+1  2/2/10  2  3,4  0  1=stop2          kv_blocks
        2  2:7+1,3:0+5  1/6/7   2  4    0  3=stop1          kv_blocks  # increments and prompts mix
        3  2:8+1,4:0+3  1/4/8   2  -    0  2=stop4          arrivals
        4  4:3+1        1/1/3   1  -    1  4=stop2          arrivals
        """
    )
    assert world.step() == "idle"


def test_oracle_reserves_prompt_and_output_and_the_first_misfit_stops_admission() -> None:
    world = orca("oracle", tokens=20, predicted={1: 3, 2: 9, 3: 1})
    world.arrive((1, 5, 3), (2, 6, 9), (3, 2, 1))
    assert world.steps(5) == table(
        """
        0  1:0+5        0/5/0  1  2,3  12  -        kv_blocks  # 20 - 8; 2 needs 15, 3 only 3
        1  1:5+1        1/1/5  1  2,3  12  -        kv_blocks
        2  1:6+1        1/1/6  1  2,3  12  1=stop3  kv_blocks
        3  2:0+6,3:0+2  0/8/0  2  -    2   3=stop1  arrivals   # 20 - 15 - 3
        4  2:6+1        1/1/6  1  -    5   -        arrivals
        """
    )


def test_max_num_seqs_is_named_when_it_stops_admission() -> None:
    world = orca("oracle", tokens=100, predicted={1: 2, 2: 2, 3: 1}, max_num_seqs=2)
    world.arrive((1, 5, 2), (2, 5, 2), (3, 5, 1))
    assert world.run() == table(
        """
        0  1:0+5,2:0+5  0/10/0  2  3  86  -                max_num_seqs
        1  1:5+1,2:5+1  2/2/10  2  3  86  1=stop2,2=stop2  max_num_seqs
        2  3:0+5        0/5/0   1  -  94  3=stop1          arrivals
        """
    )


@pytest.mark.parametrize(
    ("reservation", "prompt", "predicted", "tokens"),
    [
        ("pow2", 10, 1, 11),
        ("pow2", 10, 2, 12),
        ("pow2", 10, 3, 14),
        ("pow2", 10, 4, 14),
        ("pow2", 10, 5, 18),
        ("pow2", 10, 33, 74),
        ("pow2", 10, 65, 100),  # 10 + 128 exceeds the model
        ("oracle", 10, 33, 43),
        ("oracle", 10, 95, 100),
        ("max", 10, 1, 100),
    ],
)
def test_reserved_tokens(reservation: Reservation, prompt: int, predicted: int, tokens: int) -> None:
    policy = orca(reservation, tokens=200, predicted={7: predicted}).policy
    assert isinstance(policy, Orca)
    assert policy.reserved_tokens(Request(7, 0.0, prompt, 99)) == tokens
    assert policy.reserved_tokens(Request(7, 0.0, prompt, 1)) == (100 if reservation == "max" else prompt + 1)


def test_reservations_are_whole_from_the_first_iteration_on() -> None:
    world = orca("pow2", tokens=40, predicted={1: 3, 2: 5, 3: 2})
    world.arrive((1, 10, 3), (2, 10, 5), (3, 6, 2))
    assert world.steps(3) == table(
        """
        0  1:0+10,2:0+10,3:0+6  0/26/0  3  -  0  -        arrivals  # 10 + 4, 10 + 8, 6 + 2 of 40
        1  1:10+1,2:10+1,3:6+1  3/3/26  3  -  0  3=stop2  arrivals
        2  1:11+1,2:11+1        2/2/22  2  -  8  1=stop3  arrivals
        """
    )


def test_a_reservation_beyond_the_whole_pool_ends_at_once_and_lets_the_next_one_in() -> None:
    world = orca("oracle", tokens=20, predicted={1: 11, 2: 1})
    world.arrive((1, 10, 11), (2, 3, 1))
    assert world.run() == table("0  2:0+3  0/3/0  1  -  16  !1=kv_capacity0,2=stop1  arrivals")
    world.policy.kv.check()


def test_only_impossible_requests_leave_the_engine_idle() -> None:
    world = orca("oracle", tokens=20, predicted={1: 11})
    world.arrive((1, 10, 11))
    assert world.step() == "idle !1=kv_capacity0"


def test_an_outgrown_reservation_is_doubled_in_the_step_that_needs_it() -> None:
    world = orca("oracle", tokens=20, predicted={1: 2, 2: 1})
    world.arrive((1, 4, 8), (2, 13, 1))
    assert world.run() == table(
        """
        0  1:0+4,2:0+13  0/17/0  2  -  0  2=stop1  arrivals  # 4 + 2 and 13 + 1 of 20
        1  1:4+1   1/1/4   1  -  14  -        arrivals
        2  1:5+1   1/1/5   1  -  14  -        arrivals
        3  1:6+1   1/1/6   1  -  12  -        arrivals   # 6 slots are full: 4 + 4
        4  1:7+1   1/1/7   1  -  12  -        arrivals
        5  1:8+1   1/1/8   1  -  8   -        arrivals   # 4 + 8
        6  1:9+1   1/1/9   1  -  8   -        arrivals
        7  1:10+1  1/1/10  1  -  8   1=stop8  arrivals
        """
    )


def test_without_a_free_slot_an_outgrown_request_ends_and_what_it_made_counts() -> None:
    world = orca("oracle", tokens=13, predicted={1: 1, 2: 3, 3: 1})
    world.arrive((1, 4, 9), (2, 5, 3), (3, 9, 1))
    assert world.run() == table(
        """
        0  1:0+4,2:0+5  0/9/0  2  3  0  -  kv_blocks               # 5 + 8 of 13
        1  1:4+1,2:5+1  2/2/9  2  3  0  -  kv_blocks
        2  2:6+1        1/1/6  1  3  5  !1=kv_capacity2,2=stop3  kv_blocks
        3  3:0+9        0/9/0  1  -  3  3=stop1  arrivals
        """
    )


def test_an_outgrown_request_takes_what_is_left_when_doubling_does_not_fit() -> None:
    world = orca("oracle", tokens=10, predicted={1: 4})
    world.arrive((1, 4, 9))
    lines = world.run()
    free = [int(line.split()[5]) for line in lines if not line.startswith("idle")]
    # 4 + 4 slots, then the last two, for 10 cached tokens: 7 output tokens, the last of them without KV.
    assert free == [2, 2, 2, 2, 2, 0, 0]
    assert lines[-1] == "idle !1=kv_capacity7"


def test_the_horizon_ends_before_the_step_that_outgrows() -> None:
    world = orca("oracle", tokens=60, predicted={1: 4, 2: 9})
    world.arrive((1, 4, 20), (2, 4, 9))
    world.step()
    horizons = []
    for _ in range(6):
        world.step()
        horizons.append(world.policy.horizon())
    # As of the step planned next, step 5 finds 8 cached tokens of request 1 in 8 slots.
    assert [steps for steps, _ in horizons[:3]] == [2, 1, 0]
    assert all(matters for _, matters in horizons)


def test_a_blocked_head_hides_arrivals_and_a_free_queue_does_not() -> None:
    world = orca("max", tokens=100)
    world.arrive((1, 4, 20))
    world.step()
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, True)
    world.arrive((2, 4, 20))
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, False)


def test_aborts_free_the_reservation_wherever_the_request_is() -> None:
    world = orca("oracle", tokens=20, predicted={1: 9, 2: 9, 3: 2})
    world.arrive((1, 5, 9), (2, 5, 9), (3, 4, 2))
    lines = world.steps(2)
    assert world.abort(1).num_output_tokens == 2
    assert world.abort(2).num_output_tokens == 0
    lines += world.run()
    assert lines == table(
        """
        0  1:0+5  0/5/0  1  2,3  6   -        kv_blocks
        1  1:5+1  1/1/5  1  2,3  6   -        kv_blocks   # then the clients of 1 and 2 leave
        2  3:0+4  0/4/0  1  -    14  -        arrivals
        3  3:4+1  1/1/4  1  -    14  3=stop2  arrivals
        """
    )


def test_predictions_are_asked_for_at_construction() -> None:
    with pytest.raises(ConfigError, match="orca-max"):
        Orca(KvManager(20, 1), max_num_seqs=2, max_model_len=20, reservation="oracle")


_LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)), min_size=1)


@given(_LENGTHS, st.sampled_from(["oracle", "pow2"]), st.integers(4, 40))
def test_every_request_ends_and_cached_tokens_never_exceed_slots(
    lengths: list[tuple[int, int, int]], reservation: Reservation, tokens: int
) -> None:
    predicted = {index: guess for index, (_, _, guess) in enumerate(lengths)}
    world = orca(reservation, tokens=tokens, predicted=predicted, max_model_len=20)
    world.arrive(*((index, prompt, output) for index, (prompt, output, _) in enumerate(lengths)))
    world.run()
    assert world.policy.load().running == 0
    assert world.policy.kv.num_free == tokens
