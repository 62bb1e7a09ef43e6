"""A class from a file whose methods return nonsense: one line that names method or field, and what it should be."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from time import sleep

import pytest

from policies.kit import hang
from policies.kit.forms import ENDS, LIMITS
from sim.report.words import CAUSES, SHORT_CAUSES
from tests.command import batchscope, chat, message_of, settings
from tests.examples import shortest_prompt_first
from traces.record.schema import outcome

CODE = Path(shortest_prompt_first.__file__).read_text(encoding="utf-8")
PLAN = """
def schedule(self, now_s):
    plan = super().schedule(now_s)
    return plan if isinstance(plan, Idle) else plan._replace({})
"""
RUN = ("run", "--policy", "own.py:Own", *chat(20, 12), *settings(engine__num_gpu_blocks=400), "--json")

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def said(body: str, *more: str) -> str:
    """What a run says of the example with these methods in place of its own."""
    source = f"{CODE}\nfrom policies.core.plan import Load, Transfer\n\nclass Own(ShortestPromptFirst):\n"
    message = message_of(*RUN, *more, files={"own.py": source + indent(body, "    ")})
    assert message.startswith("engine.policy = 'own.py:Own': ")
    return message.removeprefix("engine.policy = 'own.py:Own': ")


FIELDS = {
    "step=-1": "step 0: the plan has step = -1; give a whole number of at least 0",
    "step=7": "step 0: the plan says that it is step 7; make it by make_plan",
    "num_tokens=None": "step 0: the plan has num_tokens = None; give a whole number",
    "sum_context=10**30": "step 0: the plan has sum_context = 1000000000000000000000000000000; give a whole number",
    "max_context=0": "the plan states max_context = 0 and its rows have ",
    "decode=None": "the plan has decode = None; give Decode.ALL, Decode.NONE or a tuple of request ids",
    "chunks=[None]": "the plan has chunks = [None]; give a tuple of Chunk(id, start, num_tokens, emits)",
    "chunks=iter(())": "the plan has chunks = a tuple_iterator; give a tuple of Chunk(",
    "chunks=plan.chunks * 2": "step 0: chunks hold request 0 twice in one step",
    "joins=None": "the plan has joins = None; give a tuple of (request id, blocks)",
    "joins=plan.joins * 2": "step 0: request 0 joins and is in the batch; later blocks go into grants",
    "joins=tuple((id, blocks[::-1]) for id, blocks in plan.joins)": "there; give what kv.open and kv.extend return",
    "grants=[(0, None)]": "the plan has grants = [(0, None)]; give a tuple of (request id, blocks)",
    "leaves=5": "the plan has leaves = 5; give a tuple of request ids",
    "preempted=[(7, 'recompute')]": "request 7 is preempted and does not leave the batch; self.detach(row) it",
    "preempted=[(0, 'drop')]": "give a tuple of (request id, 'recompute' or 'swap')",
    "transfers=[None]": "the plan has transfers = [None]; give a tuple of what kv.swap_out and kv.swap_in return",
    "transfers=[Transfer(1, 0, 'out', (1,), (1,), True)]": "the plan moves blocks of request 0 out, and the KV manager",
    "rejected=[Finish(0, None, 0)]": "give a tuple of Finish(id, reason, num_output_tokens)",
    "limited_by='nothing'": "the plan has limited_by = 'nothing'; give one of arrivals, max_num_seqs, token_budget,",
}


@pytest.mark.parametrize("change", FIELDS)
def test_a_field_of_a_plan_that_is_of_no_use(change: str) -> None:
    assert FIELDS[change] in said(PLAN.format(change))


RETURNS = {
    "schedule(self, now_s): return Idle(None)": "step 0: Idle has reason = None; give a text,",
    "schedule(self, now_s): return Idle('blocked', wake_at_s='soon')": "give a time in seconds or None",
    "schedule(self, now_s): return self.idle('blocked', wake_at_s=now_s + 1e-9)": (
        "step 0: request 0 waits, and 10,000 times in a row the policy asks to be called again"
    ),
    "load(self): return None": "load returned None; return Load(...), or leave load to the base class",
    "load(self): return super().load()._replace(running=-1)": "Load has running = -1; give a whole number",
    "batch_order(self): return super().batch_order() * 2": "batch_order has request 0 twice in one step",
    "batch_order(self): return [1, 2]": "batch_order returned [1, 2]; return a tuple of BatchRow(",
    "horizon(self): return Horizon(1.5, True)": "Horizon has steps = 1.5; give a whole number of at least 0",
    "refusal(self, request): return 'full'": (
        "refusal returned 'full'; return None, or one of kv_capacity, prompt_too_long, over_length, overloaded"
    ),
    "on_arrival(self, request): pass": "request 0 has not ended and is in no queue; put its row back, and call",
    "schedule(self, now_s): raise GeneratorExit": "schedule fails at own.py, line ",
}


@pytest.mark.parametrize("method", RETURNS)
def test_a_method_that_returns_something_else(method: str) -> None:
    assert RETURNS[method] in said(f"def {method}\n")


def test_methods_that_only_some_runs_call() -> None:
    aborts = settings(workload__abort_after_s=0.2)
    assert "on_abort returned None; return the number" in said("def on_abort(self, request_id): pass\n", *aborts)
    jumps = settings(sim__skip_ahead=True)
    assert "skip returned None; return a tuple of (request id, blocks)" in said("def skip(self, steps): pass\n", *jumps)
    log = ("--out", "record", *settings("sim.record=decisions"))
    assert "queues returned 5; return Queues(" in said("def queues(self): return 5\n", *log)
    assert "plan_details returned {'a': nan}; return fields" in said(
        "def plan_details(self): return {'a': float('nan')}\n", *log
    )


@pytest.mark.parametrize("change", ["self.kv.tables[0] = 5", "self.kv.tables[0] = 0.5"])
def test_memory_that_the_class_has_broken(change: str) -> None:
    body = f"def schedule(self, now_s):\n    plan = super().schedule(now_s)\n    {change}\n    return plan\n"
    assert "self.kv cannot be read any more (" in said(body)


def test_any_class_runs_on_the_memory_of_any_preset() -> None:
    Path("own.py").write_text(f"{CODE}\nOwn = ShortestPromptFirst\n", encoding="utf-8")
    for name in ("sglang-0.4.9", "llamacpp-unified", "orca-oracle", "tgi-3", "triton-dynamic"):
        pool = settings(f"engine.preset={name}", "engine.num_gpu_blocks=2000")
        summary = batchscope("run", "--policy", "own.py:Own", *chat(20, 12), *pool, "--json").summary
        assert summary["requests"]["finished"] == 12, name


def test_a_coroutine_is_no_plan() -> None:
    assert "schedule returned a coroutine; return self.make_plan(" in said("async def schedule(self, now_s): pass\n")


BUILT = {
    "def __init__(self, kv, **more): pass": "Own.kv is not the KvManager that __init__ is given",
    "def __new__(cls, kv, **more): return 5": "Own(...) gives a int; leave __new__ to Policy",
    "max_in_flight = 0": "Own.max_in_flight = 0: give a whole number of at least 1",
    "num_scheduler_steps = 'two'": "Own.num_scheduler_steps = 'two': give a whole number of at least 1",
    "tokens_past_length = -1": "Own.tokens_past_length = -1: give a whole number of at least 0",
}


@pytest.mark.parametrize("body", BUILT)
def test_a_class_that_cannot_be_driven(body: str) -> None:
    assert BUILT[body] in said(body + "\n")


def test_a_call_that_never_comes_back_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "RUN_PATIENCE_S", 0.1)
    assert "a call does not come back: after 0.1 s it is in schedule (own.py, line " in said(
        "def schedule(self, now_s):\n    while True:\n        pass\n"
    )


def test_time_outside_of_calls_is_no_hang() -> None:
    with hang.ends_hangs("own.py:Own", patience_s=0.02):
        sleep(0.1)  # as a simulation that is slow between the calls of a policy


def test_what_a_policy_may_say_is_what_records_and_pages_know() -> None:
    assert set(LIMITS) == CAUSES.keys() == SHORT_CAUSES.keys()
    assert {outcome(reason) for reason in ENDS} == {"rejected", "failed"}


def test_a_name_that_a_class_uses_for_something_else() -> None:
    Path("own.py").write_text(f"{CODE}\n\nclass Own(ShortestPromptFirst):\n    swap_exhausted = None\n", "utf-8")
    assert batchscope(*RUN).summary["requests"]["finished"] == 12
