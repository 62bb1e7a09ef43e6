"""Holds a policy's memory, queues and views against the mirror's; each RuleBroken names the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.plan import Finish, Queues, StepPlan
from policies.core.protocols import Policy
from policies.core.request import RequestId
from policies.kit.mirror import MirrorBackend, MirrorRow
from policies.kit.rules import Rule, RuleBroken

Tables = Mapping[RequestId, Sequence[int]]

_GIVEN_UP = ("abort", "kv_capacity", "prompt_too_long")


def check_tables(tier: str, told: Tables, true: Tables) -> None:
    """What the plans told of the tables of a tier is what they are."""
    if told != true:
        for key in sorted(told.keys() | true.keys()):
            if told.get(key) != true.get(key):
                said = f"by the plans the {tier} table of request {key} is {told.get(key)}, it is {true.get(key)}"
                raise RuleBroken(Rule.TOLD, said)


def check_memory(kv: KvManager) -> None:
    """Blocks are conserved on each tier."""
    try:
        kv.check()
    except ContractError as error:
        raise RuleBroken(Rule.BLOCKS, str(error)) from error


def check_places(
    queues: Queues, mirror: MirrorBackend, live: Collection[RequestId], *, ended_may_stay: bool
) -> None:
    """Each live request is in exactly one queue, and nobody else is in any; those that run have tables."""
    held = Counter((*queues.waiting, *queues.running, *queues.swapped))
    for key, count in held.items():
        if count != 1:
            raise RuleBroken(Rule.PLACE, f"request {key} is in the queues {count} times")
        if key not in live and not (ended_may_stay and mirror.rows[key].ended):
            raise RuleBroken(Rule.PLACE, f"request {key} has ended and is still in a queue")
    for key in live:
        if key not in held:
            raise RuleBroken(Rule.PLACE, f"request {key} has not ended and is in no queue")
    arriving = {key for key in queues.swapped if key in mirror.tables}  # their blocks are back before they run again
    for name, queue, tables in (
        ("running", {*queues.running, *arriving}, mirror.tables),
        ("swapped", set(queues.swapped) - arriving, mirror.cpu_tables),
    ):
        if tables.keys() != queue:
            odd = min(tables.keys() ^ queue)
            raise RuleBroken(Rule.PLACE, f"request {odd} is in the {name} queue or has its blocks, but not both")


def check_sharing(tables: Tables, *, may_share: bool) -> None:
    """Blocks in more than one table hold a shared prefix, so they stand at the same place in each."""
    places = Counter(block for table in tables.values() for block in table)
    for block, count in places.items():
        if count > 1:
            where = {table.index(block) for table in tables.values() if block in table}
            if not may_share or len(where) > 1:
                raise RuleBroken(Rule.BLOCKS, f"block {block} is in {count} tables and no shared prefix")


def check_views(plan: StepPlan, policy: Policy, mirror: MirrorBackend) -> None:
    """The longest context that a plan states, and ``load``."""
    rows, decodes = mirror.rows, mirror.decodes()
    longest = max((rows[key].computed for key in decodes), default=0)
    if plan.max_context < longest:
        said = f"the plan states max_context = {plan.max_context} and a row has {longest}; make it by make_plan"
        raise RuleBroken(Rule.CHARGE, said)
    load, free = policy.load(), policy.kv.num_free
    lengths = tuple(map(len, policy.queues()))
    if load[:3] != lengths:
        raise RuleBroken(Rule.VIEWS, f"load() tells of queues of {load[:3]} requests, queues() of {lengths}")
    if load.free_blocks != free:
        raise RuleBroken(Rule.VIEWS, f"load() tells of {load.free_blocks} free blocks, and {free} are free")
    emitting = sum(not rows[key].ended for key in decodes)
    if decodes and load.emitting != emitting:
        raise RuleBroken(Rule.VIEWS, f"load() tells of {load.emitting} rows that gain a token, and {emitting} do")


def check_count(finish: Finish, produced: int) -> None:
    """The end of a request states the tokens that it made."""
    if finish.num_output_tokens != produced:
        said = f"request {finish.id} has made {produced} tokens, its end ({finish.reason}) says"
        raise RuleBroken(Rule.TOKENS, f"{said} {finish.num_output_tokens}")


def check_output(finish: Finish, row: MirrorRow) -> None:
    """A request made all that it was to make, unless it was given up."""
    check_count(finish, row.produced)
    wanted = row.stop.num_output_tokens
    if row.produced != wanted and finish.reason not in _GIVEN_UP:
        raise RuleBroken(
            Rule.TOKENS, f"request {finish.id} ends ({finish.reason}) after {row.produced} of {wanted} tokens"
        )


def check_all_free(kv: KvManager) -> None:
    """Nobody is left, and nobody's blocks are."""
    cpu = kv.cpu_pool
    for tier, total, free in (("KV", kv.num_blocks, kv.num_free), ("CPU", cpu.num_blocks, cpu.num_free)):
        if free != total:
            raise RuleBroken(Rule.BLOCKS, f"nobody is left, and {total - free} {tier} blocks are not free")
