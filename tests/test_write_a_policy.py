"""docs/write-a-policy.md: its example is the file, is short, runs both ways, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies.core.engine import Engine
from policies.core.kv import KvManager
from policies.core.plan import Idle, StepPlan
from policies.core.request import Request
from tests.command import batchscope, chat, settings
from tests.examples.shortest_prompt_first import ShortestPromptFirst

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "examples" / "shortest_prompt_first.py"
PAGE = (ROOT / "docs" / "write-a-policy.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_the_page_shows_the_file() -> None:
    code = EXAMPLE.read_text(encoding="utf-8")
    assert re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) == [code]
    assert len(code.splitlines()) <= 50
    assert len(PAGE.splitlines()) <= 160


def test_the_shortest_waiting_prompt_starts_first() -> None:
    policy = ShortestPromptFirst(KvManager(100, 16), max_num_seqs=2, max_model_len=400)
    engine = Engine(policy)
    for number, prompt_tokens in enumerate([30, 10, 20]):
        engine.add(Request(number, 0.0, prompt_tokens, 5), 0.0)
    plan = engine.plan(0.0)
    assert isinstance(plan, StepPlan)
    assert [(chunk.id, chunk.num_tokens) for chunk in plan.chunks] == [(1, 10), (2, 20)]
    assert [(key, len(blocks)) for key, blocks in plan.joins] == [(1, 1), (2, 2)]
    assert plan.limited_by == "kv_blocks"


def test_nobody_there_is_idle() -> None:
    plan = Engine(ShortestPromptFirst(KvManager(100, 16), max_num_seqs=2, max_model_len=400)).plan(0.0)
    assert plan == Idle("no_requests")


def test_one_that_came_first_is_overtaken_by_much_shorter_ones_only() -> None:
    policy = ShortestPromptFirst(KvManager(100, 16), max_num_seqs=1, max_model_len=400, ageing_tokens=10)
    engine = Engine(policy)
    for number, prompt_tokens in enumerate([30, 15, 25]):
        engine.add(Request(number, 0.0, prompt_tokens, 5), 0.0)
    plan = engine.plan(0.0)
    assert isinstance(plan, StepPlan)
    assert [chunk.id for chunk in plan.chunks] == [1]


@pytest.mark.parametrize("num_gpu_blocks", [200, 2_000])
def test_the_example_runs_supervised_and_jumps_to_the_same_figures(num_gpu_blocks: int) -> None:
    run = ("run", "--policy", f"{EXAMPLE}:ShortestPromptFirst", *chat(8, 60, engine__num_gpu_blocks=num_gpu_blocks))
    stepped, jumped = (
        batchscope(*run, *settings(sim__skip_ahead=jumps), "--json").summary for jumps in (False, True)
    )
    assert stepped["requests"]["finished"] == 60
    for name in ("throughput", "ttft_s", "itl_s", "e2e_s", "kv", "limited_by", "duration_s"):
        assert stepped[name] == jumped[name]


def test_its_own_parameter_is_set_as_the_page_says() -> None:
    run = ("run", "--policy", f"{EXAMPLE}:ShortestPromptFirst", *chat(8, 30), "--json")
    some, none = (batchscope(*run, *settings(policy__ageing_tokens=tokens)).summary for tokens in (1, 0))
    assert some["requests"] == none["requests"]
    assert none["config"]["policy"] == {"ageing_tokens": 0}


@pytest.mark.parametrize("name", ["admit", "idle", "enter", "detach", "kv.open", "decode.grant", "make_plan"])
def test_every_helper_is_on_the_page(name: str) -> None:
    assert f"self.{name}" in PAGE or f"`{name}" in PAGE
