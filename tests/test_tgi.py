"""Text Generation Inference 1.4 and 3: step tables worked out by hand, with the columns of tests/decision_tables.py.

Blocks have 4 tokens. A request of prompt p and limit m holds ceil((p + m - 1) / 4) blocks from its prefill to its end.
"""

from __future__ import annotations

import pytest

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.request import Request
from policies.presets import build_policy, preset, resolve
from policies.systems.tgi import Tgi
from policies.systems.tgi_chunked import TgiChunked
from sim import simulate
from tests.decision_tables import check_script
from tests.stepping import Stepper


def tgi(
    blocks: int,
    *,
    waiting_served_ratio: float = 1.2,
    max_waiting_tokens: int = 4,
    max_batch_prefill_tokens: int = 100,
    max_batch_total_tokens: int = 0,
    max_input_length: int = 0,
    max_concurrent_requests: int = 0,
    max_num_seqs: int = 8,
    max_model_len: int = 60,
    by_blocks: bool = False,
    faithful: bool = False,
    cls: type[Tgi] = Tgi,
) -> Tgi:
    """TGI 1.4, or one that asks for blocks alone as 3 does, with a pool of that many blocks of four tokens."""
    return cls(
        KvManager(blocks, 4),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_batch_prefill_tokens=max_batch_prefill_tokens,
        max_batch_total_tokens=max_batch_total_tokens,
        max_input_length=max_input_length,
        waiting_served_ratio=waiting_served_ratio,
        max_waiting_tokens=max_waiting_tokens,
        max_concurrent_requests=max_concurrent_requests,
        by_blocks=by_blocks,
        faithful=faithful,
    )


def check(policy: Tgi, script: str) -> None:
    check_script(policy, script, max_model_len=policy.max_model_len)


def test_new_requests_wait_until_they_are_enough_to_interrupt_the_running_ones() -> None:
    check(
        tgi(20),
        """
        +A 4/6
        +B 3/6
        0 | A:4@0* B:3@0* | 15 | - | A B | - | -       # 3 + 2 blocks for 9 and 8 tokens
        +C 4/2
        1 | A:1@4* B:1@3* | 15 | C | A B | - | -       # 2 running: at least floor(2 * 1.2) = 2 must come together
        2 | A:1@5* B:1@4* | 15 | C | A B | - | -
        +D 2/1
        3 | C:4@0* D:2@0* | 12 | - | A B C | - | done D   # two are enough; the running ones pause
        4 | A:1@6* B:1@5* C:1@4* | 13 | - | A B | - | done C
        +E 4/3
        5 | A:1@7* B:1@6* | 15 | E | A B | - | -
        6 | A:1@8* B:1@7* | 15 | E | - | - | done A B
        7 | E:4@0* | 18 | - | E | - | -                # nothing runs: any number will do
        8 | E:1@4* | 18 | - | E | - | -
        9 | E:1@5* | 18 | - | - | - | done E
        """,
    )


def test_after_enough_tokens_any_number_may_start_and_a_decode_follows_every_such_prefill() -> None:
    check(
        tgi(20),
        """
        +A 2/9
        +B 2/9
        0 | A:2@0* B:2@0* | 14 | - | A B | - | -
        +C 4/4
        1 | A:1@2* B:1@2* | 14 | C | A B | - | -       # 1 token made since the prefill began
        2 | A:1@3* B:1@3* | 14 | C | A B | - | -
        3 | A:1@4* B:1@4* | 14 | C | A B | - | -       # 3 of max_waiting_tokens = 4
        4 | C:4@0* | 12 | - | A B C | - | -            # alone, after 3 decodes
        +D 1/1
        +E 1/1
        +F 1/1
        5 | A:1@5* B:1@5* C:1@4* | 12 | D E F | A B C | - | -    # three would be enough, but the queue is not asked
        6 | D:1@0* E:1@0* F:1@0* | 9 | - | A B C | - | done D E F
        7 | A:1@6* B:1@6* C:1@5* | 12 | - | A B C | - | -
        8 | A:1@7* B:1@7* C:1@6* | 12 | - | A B | - | done C
        9 | A:1@8* B:1@8* | 14 | - | A B | - | -
        10 | A:1@9* B:1@9* | 14 | - | - | - | done A B
        """,
    )


def test_prompts_of_a_batch_keep_within_the_prefill_budget_and_the_first_batch_may_be_joined_at_once() -> None:
    check(
        tgi(20, max_batch_prefill_tokens=9, max_input_length=9),
        """
        +A 8/2
        +B 6/2
        +C 3/1
        0 | A:8@0* | 17 | B C | A | - | -              # 8 of 12 = 9 in whole blocks; B is 8 more
        1 | B:6@0* C:3@0* | 14 | - | A B | - | done C  # 8 + 4; a batch of one needs one more at least
        2 | A:1@8* B:1@6* | 15 | - | - | - | done A B
        """,
    )


def test_admission_counts_whole_blocks_of_both_lengths_and_running_requests_what_they_hold() -> None:
    check(
        tgi(8),
        """
        +A 5/5
        +B 5/5
        +C 1/1
        +D 1/1
        0 | A:5@0* B:5@0* | 2 | C D | A B | - | -      # 8 + 8 each of 32; but ceil(9 / 4) = 3 blocks are held
        1 | A:1@5* B:1@5* | 2 | C D | A B | - | -      # 8 of 32 are left, C counts 4 + 4, D as well: one is too few
        2 | A:1@6* B:1@6* | 2 | C D | A B | - | -
        3 | A:1@7* B:1@7* | 2 | C D | A B | - | -
        4 | C:1@0* | 1 | D | A B | - | done C          # the fourth token lets one start
        5 | A:1@8* B:1@8* | 2 | D | - | - | done A B
        6 | D:1@0* | 7 | - | - | - | done D
        """,
    )


def test_max_batch_total_tokens_leaves_part_of_the_pool_unused() -> None:
    check(
        tgi(20, max_batch_total_tokens=16),
        """
        +A 4/4
        +B 4/4
        0 | A:4@0* B:4@0* | 16 | - | A B | - | -
        +C 4/4
        1 | A:1@4* B:1@4* | 16 | C | A B | - | -       # 16 - 4 blocks of 4: no token is left for C
        xA
        2 | C:4@0* | 16 | - | B C | - | aborted A      # 8 are left, C counts 4 + 4, and one is enough beside one
        3 | B:1@5* C:1@4* | 16 | - | B C | - | -
        """,
    )


def test_a_head_that_can_never_fit_ends_or_hides_everybody() -> None:
    script = "+L 17/15\n+B 4/1\n"  # 20 + 16 of 32 tokens, though its 31 tokens would fit
    check(tgi(8), script + "0 | B:4@0* | 7 | - | - | - | L=kv_capacity:0, done B")
    check(tgi(8, faithful=True), script + "0 | Stuck")


# -- TGI 3 -------------------------------------------------------------------------------------------------------


def chunked(blocks: int, *, budget: int = 8, faithful: bool = False) -> Tgi:
    """TGI 3 that cuts prompts."""
    return tgi(blocks, max_batch_prefill_tokens=budget, by_blocks=True, faithful=faithful, cls=TgiChunked)


def test_prompts_are_cut_to_the_budget_and_run_with_the_decodes() -> None:
    check(
        chunked(20),
        """
        +A 5/4
        +B 9/3
        0 | A:5@0* B:3@0 | 15 | - | A B | - | -            # 8 tokens; 2 + 3 blocks to the end
        1 | A:1@5* B:6@3* | 15 | - | A B | - | -           # what is left of B, at most 8 less one for A
        +C 20/2
        2 | A:1@6* B:1@9* C:8@0 | 9 | - | A B C | - | -    # 8 less 2 decodes are 6, in whole blocks 8
        3 | A:1@7* B:1@10* C:6@8 | 9 | - | C | - | done A B    # 8 less one each for A and B
        +D 3/2
        4 | C:6@14* D:3@0* | 13 | - | C D | - | -          # 8 less C's last 6, in whole blocks 4
        +E 1/1
        5 | C:1@20* D:1@3* | 13 | E | - | - | done C D     # after a pass with new requests the queue is not asked
        6 | E:1@0* | 19 | - | - | - | done E
        """,
    )


def test_the_queue_is_asked_again_right_after_a_batch_that_started_alone() -> None:
    check(
        chunked(20),
        """
        +A 8/3
        +B 2/2
        0 | A:8@0* | 17 | B | A | - | -                    # no token is left for B
        1 | A:1@8* B:2@0* | 16 | - | A B | - | -
        2 | A:1@9* B:1@2* | 16 | - | - | - | done A B
        """,
    )


def test_a_cut_prompt_leaves_no_tokens_to_others_until_its_last_piece() -> None:
    check(
        chunked(20),
        """
        +A 18/1
        0 | A:8@0 | 15 | - | A | - | -
        +B 1/1
        1 | A:8@8 | 15 | B | A | - | -
        2 | A:2@16* B:1@0* | 14 | - | - | - | done A B
        """,
    )


def test_memory_is_asked_for_in_blocks_and_the_first_misfit_stops() -> None:
    check(
        chunked(6, budget=40),
        """
        +A 5/5
        +B 9/8
        +C 1/1
        0 | A:5@0* | 3 | B C | A | - | -                   # 3 blocks; B needs 4, C one, but is behind B
        1 | A:1@5* | 3 | B C | A | - | -
        """,
    )
    check(
        tgi(6, by_blocks=True),
        """
        +A 5/5
        +B 5/5
        0 | A:5@0* B:5@0* | 0 | - | A B | - | -            # TGI 1.4 would count 16 of 24 tokens for each
        """,
    )


def test_tgi_3_without_chunks_starts_small_batches_sooner() -> None:
    check(
        tgi(7, by_blocks=True, waiting_served_ratio=0.3),
        """
        +A 5/5
        +B 5/5
        0 | A:5@0* B:5@0* | 1 | - | A B | - | -
        +C 1/1
        1 | C:1@0* | 0 | - | A B | - | done C              # floor(2 * 0.3) = 0: one is enough
        2 | A:1@5* B:1@5* | 1 | - | A B | - | -
        """,
    )


def test_tgi_3_ends_or_keeps_a_head_that_can_never_fit() -> None:
    script = "+L 17/8\n+B 4/1\n"  # 24 tokens, 6 blocks of 5
    check(chunked(5), script + "0 | B:4@0* | 4 | - | - | - | L=kv_capacity:0, done B")
    check(chunked(5, faithful=True), script + "0 | Stuck")


def test_the_preset_of_tgi_3_cuts_prompts_or_not() -> None:
    chosen = preset("tgi-3")
    for changes, cls, longest in (({}, TgiChunked, 8_191), ({"enable_chunked_prefill": False}, Tgi, 8_191)):
        parameters = resolve(chosen, {"max_batch_total_tokens": 1_600, **changes}, max_model_len=8_192)
        policy, _ = build_policy(parameters, num_gpu_blocks=700, kv_bytes_per_token=1)
        assert type(policy) is cls
        assert (policy.max_input_length, policy.by_blocks, policy.max_requests) == (longest, True, 128)
        assert policy.kv.num_blocks - policy.unused_blocks == 99  # 1,600 tokens are 100 blocks, block 0 is not used
    assert parameters.values["max_batch_prefill_tokens"] == 8_191
    assert resolve(chosen, {}, max_model_len=8_192).values["max_batch_prefill_tokens"] == 4_096


# -- the door ----------------------------------------------------------------------------------------------------


def test_what_the_router_refuses_at_its_door() -> None:
    policy = tgi(20, max_input_length=10, max_concurrent_requests=2, max_model_len=20)
    world = Stepper(policy, max_model_len=20)
    sent = [(1, 11, 1), (2, 10, 11), (3, 10, 10), (4, 2, 2), (5, 2, 2)]
    ends = [world.engine.add(Request(number, 0.0, prompt, limit), 0.0) for number, prompt, limit in sent]
    assert [end and end.reason for end in ends] == ["prompt_too_long", "over_length", None, None, "overloaded"]
    assert policy.refusal(Request(4, 0.0, 2, 2)) is None  # inside
    world.engine.abort(4, 0.0)
    assert world.engine.add(Request(6, 0.0, 2, 2), 0.0) is None


def test_whoever_ends_makes_room_at_the_door() -> None:
    policy = tgi(20, max_concurrent_requests=1)
    world = Stepper(policy, max_model_len=60)
    world.arrive((1, 4, 2))
    for number, refused in ((2, True), (3, False)):
        world.step()
        end = world.engine.add(Request(number, 0.0, 4, 1), 0.0)
        assert (end is not None) == refused, number


@pytest.mark.parametrize(
    ("running", "ratio", "least"), [(1, 1.2, 1), (4, 1.2, 4), (5, 1.2, 6), (9, 1.2, 10), (10, 0.3, 3), (3, 0.3, 0)]
)
def test_the_least_batch_is_rounded_down(running: int, ratio: float, least: int) -> None:
    policy = tgi(400, waiting_served_ratio=ratio, max_waiting_tokens=99, max_num_seqs=99)
    world = Stepper(policy, max_model_len=60)
    world.arrive(*((number, 4, 40) for number in range(running)))
    world.step()
    arrived = 0
    while policy.queues().waiting or not arrived:
        world.arrive((100 + arrived, 4, 40))
        arrived += 1
        world.step()
    assert arrived == max(least, 1)


def test_a_quiet_run_ends_when_the_queue_may_be_asked_again() -> None:
    policy = tgi(12, max_waiting_tokens=20)
    world = Stepper(policy, max_model_len=60)
    world.arrive((1, 4, 30), (2, 4, 2))
    world.steps(2)
    world.arrive((3, 4, 30))
    world.engine.plan(2.0)
    assert world.policy.horizon() == (1 << 40, False)  # 9 + 9 of 12 blocks: nothing but an end helps
    other = Stepper(tgi(40, max_waiting_tokens=20), max_model_len=60)
    other.arrive((1, 4, 30), (2, 4, 30))
    other.steps(1)
    other.arrive((3, 4, 30))
    other.engine.plan(1.0)
    assert other.policy.horizon() == (18, True)  # asked with 1 token now; with 2 to 19 in vain; with 20 it goes


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"max_input_length": 60}, "max_input_length is 60; TGI wants less than max_model_len = 60"),
        ({"max_batch_prefill_tokens": 50}, "max_batch_prefill_tokens is 50; TGI wants at least max_input_length = 59"),
    ],
)
def test_lengths_with_which_the_launcher_does_not_start(lengths: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tgi(20, **lengths)  # type: ignore[arg-type]


def test_the_preset_has_the_lengths_of_the_launcher() -> None:
    chosen = preset("tgi-1.4")
    values = resolve(chosen, {}, max_model_len=4_096).values
    lengths = ("max_model_len", "max_input_length", "max_batch_prefill_tokens", "max_concurrent_requests")
    assert [values[name] for name in lengths] == [2_048, 1_024, 4_096, 128]
    longer = {"max_model_len": 4_096, "max_input_length": 3_000}
    assert resolve(chosen, longer, max_model_len=4_096).max_model_len == 4_096
    short = resolve(chosen, {}, max_model_len=512).values
    assert [short[name] for name in lengths] == [512, 511, 4_096, 128]
    policy, _ = build_policy(
        resolve(chosen, {"max_concurrent_requests": 7}, max_model_len=4_096), num_gpu_blocks=100, kv_bytes_per_token=1
    )
    assert isinstance(policy, Tgi)
    assert (policy.max_num_seqs, policy.max_requests, policy.max_total_tokens) == (7, 7, 1_600)
    with pytest.raises(ConfigError, match=r"engine\.waiting_served_ratio = -1: give a number of at least 0"):
        resolve(chosen, {"waiting_served_ratio": -1}, max_model_len=4_096)


def test_faithful_refuses_to_start_with_a_pool_smaller_than_one_request() -> None:
    parameters = resolve(preset("tgi-1.4"), {"faithful": True}, max_model_len=4_096)
    with pytest.raises(ConfigError, match="refuses to start with a KV pool of 1600 tokens"):
        build_policy(parameters, num_gpu_blocks=100, kv_bytes_per_token=1)


@pytest.mark.parametrize("preset_name", ["tgi-1.4", "tgi-3"])
def test_any_number_of_places_will_do(preset_name: str) -> None:
    workload = {
        "generator": "constant",
        "rate_per_s": 10,
        "num_requests": 4,
        "prompt": {"dist": "fixed", "value": 20},
        "output": {"dist": "fixed", "value": 5},
    }
    places = [f"engine.{name}={10**30}" for name in ("max_concurrent_requests", "max_num_seqs")]
    given = [f"engine.{name}" for name in preset(preset_name).defaults]
    overrides = [key for key in places if key.partition("=")[0] in given]
    summary = simulate({"workload": workload}, preset=preset_name, overrides=[*overrides, "engine.num_gpu_blocks=300"])
    assert summary.summary["requests"]["finished"] == 4
