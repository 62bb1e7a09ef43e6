"""A class from a file that breaks the contract ends in one line that names the request and the remedy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from policies.core.errors import ContractError, UserError
from policies.core.protocols import OWED
from sim.api import prepare, run_setup
from sim.config import load_config
from tests.command import batchscope, chat, message_of, settings

pytestmark = pytest.mark.usefixtures("in_empty_folder")

GOOD = """
from policies.core.plan import Chunk, Finish, Horizon, Idle
from policies.systems.base import BatchingPolicy


class Ok(BatchingPolicy):
    def __init__(self, kv, *, max_num_seqs, max_model_len, most=8):
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.most = most

    def schedule(self, now_s):
        joins, chunks = [], []
        while self.waiting and len(self.running) < self.most:
            row = self.waiting.popleft()
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, self.kv.blocks_for(row.num_tokens))))
            chunks.append(Chunk(row.id, 0, row.num_tokens, True))
            row.num_computed_tokens = row.num_tokens
        if not self.running:
            return self.idle("no_requests")
        return self.make_plan(decode=True, chunks=chunks, joins=joins, grants=self.decode.grant())

    def horizon(self):
        return Horizon(0, True)
"""

WORK = (
    *settings("workload.generator=constant", 'workload.prompt={dist="fixed",value=100}'),
    *settings('workload.output={dist="fixed",value=100}'),
    *settings("workload.rate_per_s=10", "workload.num_requests=40"),
)
RUN = ("run", "--policy", "bad.py:Ok", *WORK)


def said(code: str, *more: object) -> str:
    """What running this class says, beyond the address of the class."""
    message = message_of(*RUN, *more, "--json", files={"bad.py": code})
    return message.removeprefix("engine.policy = 'bad.py:Ok': ")


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_the_good_one_runs() -> None:
    Path("bad.py").write_text(GOOD)
    summary = batchscope(*RUN, "--json").summary
    assert summary["requests"]["finished"] == 40
    assert (summary["policy"], summary["preset"]) == ("bad.py:Ok", "vllm-0.11")


MISUSES = {
    "no grants": (
        ", grants=self.decode.grant()",
        "",
        "step 13: request 0 decodes its 113th token with 7 blocks (112 tokens);"
        " pass grants=self.decode.grant() to make_plan",
    ),
    "half the prompt": (
        "Chunk(row.id, 0, row.num_tokens, True)",
        "Chunk(row.id, 0, row.num_tokens // 2, True)",
        "step 0: a chunk of request 0 ends at token 50 of 100 and says emits=True;"
        " it emits if and only if it ends at row.num_tokens",
    ),
    "more than the prompt": (
        "Chunk(row.id, 0, row.num_tokens, True)",
        "Chunk(row.id, 0, row.num_tokens + 5, True)",
        "step 0: a chunk of request 0 goes to token 105 and 100 are known; end it at row.num_tokens",
    ),
    "one block for any prompt": (
        "self.kv.blocks_for(row.num_tokens)",
        "1",
        "step 0: request 0 prefills up to its 100th token with 1 block (16 tokens);"
        " open its table with kv.blocks_for(row.num_tokens) blocks",
    ),
    "no joins": (
        "joins=joins, ",
        "",
        "step 0: request 0 computes and never joined; put (row.id, blocks) into joins of make_plan",
    ),
    "joins without blocks": (
        "joins.append((row.id, self.kv.open(row.id, self.kv.blocks_for(row.num_tokens))))",
        "self.kv.open(row.id, self.kv.blocks_for(row.num_tokens)); joins.append((row.id, ()))",
        "step 0: the plans told of 0 blocks of request 0, its table has 7;"
        " put its blocks at entry into joins and all later ones into grants",
    ),
    "num_computed_tokens": (
        "row.num_computed_tokens = row.num_tokens",
        "pass",
        "step 0: request 0 has a chunk up to token 100 and num_computed_tokens = 0;"
        " set row.num_computed_tokens with each chunk, as self.admit does",
    ),
    "the same chunk again": (
        "Chunk(row.id, 0, row.num_tokens, True)",
        "Chunk(row.id, 50, 50, True)",
        "step 0: a chunk of request 0 starts at token 50 and 0 are computed;"
        " start at row.num_computed_tokens and raise that by each chunk",
    ),
    "horizon": (
        "Horizon(0, True)",
        "Horizon(1 << 40, False)",
        "step 10: at step 9 horizon promised 1099511627776 steps without a decision, whatever arrives,"
        " and now a request joined; Horizon(0, True) is always right",
    ),
    "no table": (
        "self.kv.open(row.id, self.kv.blocks_for(row.num_tokens))",
        "()",
        "step 0: request 0 computes without a KV table; call self.admit(row) (or kv.open)",
    ),
    "schedule returns nothing": (
        "return self.make_plan",
        "self.make_plan",
        "step 0: schedule returned None; return self.make_plan(...), or self.idle(reason) if nothing can run",
    ),
    "a plan of nothing": (
        "if not self.running",
        "if False",
        "the plan computes nothing; return self.idle('no_requests') instead",
    ),
    "a time that has passed": (
        'self.idle("no_requests")',
        'self.idle("no_requests", wake_at_s=now_s)',
        "s; plan now",
    ),
    "horizon returns a number": (
        "return Horizon(0, True)",
        "return 0",
        "step 1: horizon returned 0; return Horizon(0, True) if unsure",
    ),
    "an exception": (
        "joins, chunks = [], []",
        "joins, chunks = [], [][1]",
        "step 0: schedule fails at bad.py, line 12 with IndexError: list index out of range",
    ),
    "an exception at the start": (
        "self.most = most",
        "self.most = 1 / 0",
        "__init__ fails at bad.py, line 9 with ZeroDivisionError: division by zero",
    ),
    "rows left out of the batch": (
        "    def horizon",
        "    def batch_order(self):\n        rows = super().batch_order()\n"
        "        return [row for row in rows if row.id or row.num_tokens > 1]\n\n    def horizon",
        "step 1: all rows decode, and request 0 is not in batch_order;"
        " use make_plan, and self.pause(row) to leave a row out",
    ),
    "too many rows": (
        "self.most = most",
        "self.max_num_seqs, self.most = 1, most",
        "more than max_num_seqs = 1",
    ),
    "blocks are kept": (
        "    def horizon",
        "    def remove(self, row):\n        self.detach(row)\n\n    def horizon",
        "step 100: request 0 has ended and keeps its blocks; call self.remove(row)",
    ),
    "leaves are lost": (
        "        joins, chunks = [], []",
        "        self._leaves.clear()\n        joins, chunks = [], []",
        "step 100: request 0 left the batch and is not in leaves; use make_plan, idle",
    ),
    "a made-up end": (
        "chunks=chunks",
        "chunks=chunks, rejected=[Finish(99, 'stop', 5)]",
        "step 0: request 99 is rejected and is not among the unfinished ones",
    ),
    "more blocks than there are": (
        "self.kv.blocks_for(row.num_tokens)",
        "10**9",
        "step 0: schedule fails at bad.py, line 16 with ContractError: 1000000000 KV blocks asked for",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_ends_in_one_line(name: str) -> None:
    old, new, message = MISUSES[name]
    assert message in said(changed(old, new))


def test_an_abort_that_returns_a_wrong_count() -> None:
    code = GOOD + "\n    def on_abort(self, request_id):\n        return super().on_abort(request_id) + 1\n"
    assert "on_abort returns" in said(code, *settings(workload__abort_after_s=0.9))


def test_jumps_are_checked_where_they_can_be() -> None:
    code = changed("Horizon(0, True)", "Horizon(50, True)") + "\n    def skip(self, steps):\n        return ()\n"
    message = said(code, *settings(sim__skip_ahead=True))
    assert "pass grants=self.decode.grant() to make_plan" in message


def test_a_run_that_breaks_a_rule_leaves_no_record() -> None:
    Path("bad.py").write_text(changed("chunks=chunks", "chunks=()"))
    ended = batchscope(*RUN)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert not list(Path("runs").iterdir())


def test_the_original_error_is_the_cause() -> None:
    Path("bad.py").write_text(changed("joins, chunks = [], []", "joins, chunks = [], [][1]"))
    setup = prepare(load_config(policy="bad.py:Ok", overrides=chat(8, 5)[1::2]))
    with pytest.raises(UserError) as caught:
        run_setup(setup)
    assert isinstance(caught.value.__cause__, IndexError)
    assert not isinstance(caught.value, ContractError)


# -- parameters of its own -----------------------------------------------------------------------------------


def test_keys_of_the_policy_table_are_keyword_arguments() -> None:
    Path("bad.py").write_text(GOOD)
    Path("run.toml").write_text("[policy]\nmost = 1\n")
    for given in (settings(policy__most=1), ("run.toml",)):
        summary = batchscope(*RUN, *given, "--json").summary
        assert summary["steps"]["rows_mean"] <= 1.0
        assert summary["config"]["policy"] == {"most": 1}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("most=[1]", "policy.most = [1]: give a number, a text, true or false"),
        ("most=nan", "policy.most = nan: give a finite number"),
        ("most=-inf", "policy.most = -inf: give a finite number"),
        ("self=1", "policy.self: __init__ of Ok takes no such argument; it takes most"),
        ("to_dict=1", "policy.to_dict: a name that this table uses itself; name the argument otherwise"),
        ("mots=1", "policy.mots: __init__ of Ok takes no such argument; it takes most; did you mean 'most'?"),
        ("max_num_seqs=1", "policy.max_num_seqs: the preset gives this one; set engine.max_num_seqs"),
    ],
)
def test_a_key_that_the_class_does_not_take(key: str, message: str) -> None:
    assert said(GOOD, "--set", f"policy.{key}") == message


def test_presets_take_no_keys_of_a_policy() -> None:
    assert message_of("run", "--trace", "own.csv", "--set", "policy.most=1", "--json").startswith(
        "policy.most = 1: for engine.policy = 'FILE.py:CLASS' only; the parameters of preset vllm-0.11 are"
    )


# -- whose results they are ----------------------------------------------------------------------------------


def test_a_class_is_named_in_table_and_folder() -> None:
    Path("bad.py").write_text(GOOD)
    stdout = batchscope(*RUN).stdout
    assert stdout.startswith("bad.py:Ok (parameters and KV memory of vllm-0.11), llama-2-7b on a100-80gb (")
    assert "record: runs/Ok-1\n" in stdout


def test_what_a_policy_owes_is_what_its_interface_leaves_open() -> None:
    source = (Path(__file__).parents[1] / "policies" / "core" / "protocols.py").read_text(encoding="utf-8")
    (interface,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Policy")
    methods = [node for node in interface.body if isinstance(node, ast.FunctionDef)]
    assert sorted(node.name for node in methods if node.decorator_list) == list(OWED)
