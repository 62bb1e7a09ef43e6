"""llama.cpp's server and Ollama: step tables worked out by hand. The columns are explained in tests/decision_tables.py.

With split KV a block is a slot: FREE counts slots without KV. Of slots never used the highest number goes first, so A
gets slot 2 of three, B slot 1, C slot 0; prompts and tokens go in slot order. A request that has a slot but no KV yet
is listed as waiting.
"""

from __future__ import annotations

import pytest

from policies.core.kv import KvManager
from policies.core.request import Request
from policies.presets import build_policy, preset, resolve
from policies.systems.slots import SlotServer
from tests.decision_tables import check_script
from tests.stepping import Stepper, table


def server(
    slots: int,
    *,
    tokens: int = 100,
    context: int = 20,
    cells: int = 0,
    cont_batching: bool = True,
    keeps_order: bool = False,
    max_num_queued_reqs: int | None = None,
    faithful: bool = False,
) -> SlotServer:
    """So many slots with a context each, or with one pool of ``cells``."""
    return SlotServer(
        KvManager(cells, 1) if cells else KvManager(slots, context),
        max_num_seqs=slots,
        max_num_batched_tokens=tokens,
        max_model_len=context,
        cont_batching=cont_batching,
        kv_unified=bool(cells),
        keeps_order=keeps_order,
        max_num_queued_reqs=max_num_queued_reqs,
        faithful=faithful,
    )


def check(policy: SlotServer, script: str) -> None:
    check_script(policy, script, max_model_len=policy.max_model_len)


def test_tokens_first_then_prompts_in_slot_order_until_the_batch_is_full() -> None:
    check(
        server(3, tokens=8),
        """
        +A 5/3
        +B 6/2
        +C 2/2
        0 | C:2@0* B:6@0* | 1 | A | C B | - | -                # slots 0 and 1 use up the 8 tokens
        1 | C:1@2* B:1@6* A:5@0* | 0 | - | A | - | done C B
        +D 3/1
        +E 9/1
        2 | A:1@5* D:3@0* E:4@0 | 0 | - | E A | - | done D     # slot 0 was released before slot 1: D, then E
        3 | A:1@6* E:5@4* | 1 | - | - | - | done A E
        """,
    )


def test_one_prompt_may_take_all_tokens_and_overtake_an_earlier_request() -> None:
    check(
        server(2, tokens=4),
        """
        +A 3/1
        +B 10/1
        0 | B:4@0 | 1 | A | B | - | -
        1 | B:4@4 | 1 | A | B | - | -
        2 | B:2@8* A:2@0 | 0 | - | A | - | done B
        3 | A:1@2* | 1 | - | - | - | done A
        """,
    )


_TWO_RELEASED = """
        +A 2/2
        +B 2/2
        +C 2/1
        +D 2/1
        +E 2/1
        0 | B:2@0* A:2@0* | 0 | C D E | B A | - | -
        1 | B:1@2* A:1@2* | 0 | C D E | - | - | done B A       # slot 0 calls C, slot 1 calls D, in front of C
        """


def test_requests_called_by_one_step_take_the_slots_in_reverse_order() -> None:
    check(
        server(2),
        _TWO_RELEASED
        + """
        2 | D:2@0* C:2@0* | 0 | E | - | - | done D C           # D has slot 0, the one released first
        3 | E:2@0* | 1 | - | - | - | done E
        """,
    )


def test_ollama_hands_them_on_in_order() -> None:
    check(server(2, keeps_order=True), _TWO_RELEASED + "2 | C:2@0* D:2@0* | 0 | E | - | - | done C D")


def test_without_continuous_batching_prompts_wait_for_all_slots_that_generate() -> None:
    check(
        server(2, cont_batching=False),
        """
        +A 2/3
        0 | A:2@0* | 1 | - | A | - | -
        +B 2/1
        1 | A:1@2* | 1 | B | A | - | -
        2 | A:1@3* | 1 | B | - | - | done A
        3 | B:2@0* | 1 | - | - | - | done B
        """,
    )


def test_a_client_that_leaves_releases_its_slot_with_or_without_kv() -> None:
    check(
        server(2, tokens=4),
        """
        +A 3/9
        +B 6/2
        +C 2/1
        +D 2/1
        0 | B:4@0 | 1 | A C D | B | - | -
        xA
        1 | B:2@4* C:2@0* | 0 | D | B | - | aborted A, done C  # A had no KV; C has its slot
        xB
        2 | D:2@0* | 1 | - | - | - | aborted B, done D
        """,
    )


def test_a_request_ends_when_its_context_is_full_and_a_prompt_as_long_is_refused() -> None:
    world = Stepper(server(1, context=6), max_model_len=6)
    world.arrive((1, 4, 5), (2, 6, 1))
    assert world.run() == table(
        """
        0  1:0+4  0/4/0  1  -  0  -          arrivals
        1  1:4+1  1/1/4  1  -  0  1=length2  arrivals
        """
    )


_CROWDED = """
        +A 4/9
        +B 4/9
        0 | B:4@0* A:4@0* | 2 | - | B A | - | -
        1 | B:1@4* A:1@4* | 0 | - | B A | - | -
        """


def test_slots_share_a_pool_and_the_last_that_came_ends_when_a_token_has_no_cell() -> None:
    check(
        server(3, cells=10),
        _CROWDED
        + """
        2 | A:1@5* | 4 | - | A | - | B=kv_capacity:2           # two cells wanted, none free: B gives its five
        3 | A:1@6* | 3 | - | A | - | -
        """,
    )


def test_the_real_server_fails_everybody_then() -> None:
    check(server(3, cells=10, faithful=True), _CROWDED + "2 | idle | B=kv_capacity:2 | A=kv_capacity:2")


def test_a_prompt_gets_the_cells_that_are_left() -> None:
    script = "+A 6/5\n0 | A:6@0* | 4 | - | A | - | -\n+B 6/1\n"
    check(
        server(3, cells=10),
        script
        + """
        1 | A:1@6* B:3@0 | 0 | - | B A | - | -
        2 | A:1@7* | 2 | - | A | - | B=kv_capacity:0           # A's next token comes before B's prompt
        """,
    )
    check(server(3, cells=10, faithful=True), script + "1 | idle | B=kv_capacity:0 | A=kv_capacity:1")


def test_a_prompt_that_the_pool_cannot_hold_ends() -> None:
    check(
        server(1, cells=10, tokens=6),
        """
        +A 11/1
        +B 3/1
        0 | A:6@0 | 4 | B | A | - | -
        1 | A:4@6 | 0 | B | A | - | -
        2 | B:3@0* | 7 | - | - | - | A=kv_capacity:0, done B
        """,
    )


def test_more_than_may_wait_are_refused() -> None:
    world = Stepper(server(1, max_num_queued_reqs=2), max_model_len=20)
    ends = [world.engine.add(Request(number, 0.0, 4, 2), 0.0) for number in range(4)]
    assert [end and end.reason for end in ends] == [None, None, None, "overloaded"]  # one with a slot, two wait
    assert world.engine.add(Request(4, 0.0, 20, 2), 0.0) is not None
    world.engine.abort(1, 0.0)
    assert world.engine.add(Request(5, 0.0, 4, 2), 0.0) is None


def test_a_quiet_run_lasts_until_a_slot_is_released() -> None:
    world = Stepper(server(1), max_model_len=20)
    world.arrive((1, 4, 9))
    world.step()
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, True)
    world.arrive((2, 4, 9))
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, False)


@pytest.mark.parametrize(
    ("name", "slots", "tokens", "most_inside", "length"),
    [("llamacpp", 4, 2_048, 0, 8_192), ("llamacpp-unified", 4, 2_048, 0, 8_192), ("ollama", 1, 512, 513, 4_096)],
)
def test_presets(name: str, slots: int, tokens: int, most_inside: int, length: int) -> None:
    parameters = resolve(preset(name), {}, max_model_len=8_192)
    policy, _ = build_policy(parameters, num_gpu_blocks=7_000, kv_bytes_per_token=1)
    assert isinstance(policy, SlotServer)
    found = (policy.max_num_seqs, policy.max_num_batched_tokens, policy.max_requests, policy.max_model_len)
    assert found == (slots, tokens, most_inside, length)
    assert policy.kv_unified == (policy.kv.block_size == 1) == (name == "llamacpp-unified")
    assert policy.keeps_order == (name == "ollama")


def test_ollama_counts_parallel_requests_and_those_that_wait() -> None:
    changes = {"max_num_seqs": 4, "max_num_queued_reqs": 0}
    parameters = resolve(preset("ollama"), changes, max_model_len=4_096)
    policy, _ = build_policy(parameters, num_gpu_blocks=7_000, kv_bytes_per_token=1)
    assert isinstance(policy, SlotServer)
    assert (policy.max_num_seqs, policy.max_requests) == (4, 4)
