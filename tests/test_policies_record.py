"""``policies record``: what it writes is a log that conforms, and what it needs is said in one line.

The loop and the lines are tried on this project's own policy in the place of vLLM's scheduler; where vLLM is installed,
on that.
"""

from __future__ import annotations

import gzip
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from policies.conformance.decisions import Line
from policies.conformance.engines import build_policy
from policies.conformance.installed_vllm import SIZES
from policies.conformance.log import DecisionLog, read_log
from policies.conformance.recording import ScriptedRequest, random_requests, record, requests_of
from policies.conformance.replay import replay
from policies.core.engine import Engine
from policies.core.plan import Idle, StepPlan, StepResult
from policies.core.request import Request, output_segment
from policies.core.stops import Stop, StopCalendar
from tests.command import batchscope

GOLDEN = Path(__file__).parent / "golden"
TIGHT = GOLDEN / "v1_tight.0.11.2.jsonl.gz"

pytestmark = pytest.mark.usefixtures("in_empty_folder")


class OwnScheduler:
    """This project's policy for a log's settings, as if it were the real one."""

    def __init__(self, log: DecisionLog) -> None:
        self.policy = build_policy(log)
        self.max_in_flight = self.policy.max_in_flight
        self._engine = Engine(self.policy)
        self._calendar = StopCalendar()
        self._names: list[str] = []
        self._plan: StepPlan | None = None
        self._order: list[str] = []
        self._seen: set[str] = set()
        self._step = 0

    def add(self, request: ScriptedRequest) -> None:
        number = len(self._names)
        self._names.append(request.name)
        segments = tuple((self._key(key), length) for key, length in request.segments)
        taken = Request(
            number, 0.0, request.prompt_tokens, request.output_tokens, request.priority, segments=segments
        )
        assert self._engine.add(taken, 0.0) is None
        self._calendar.add(number, Stop(request.output_tokens, "stop"))

    def _key(self, key: str) -> str:
        kind, _, name = key.partition(":")
        return output_segment(self._names.index(name)) if kind == "out" else key

    def abort(self, name: str) -> bool:
        number = self._names.index(name)
        if number not in self._calendar:
            return False
        self._calendar.remove(number)
        self._engine.abort(number, 0.0)
        return True

    def plan(self) -> Line:
        plan = self._engine.plan(float(self._step))
        self._plan = None if isinstance(plan, Idle) else plan
        rows = [] if self._plan is None else self.policy.batch_order()
        names = self._names
        joins = [] if self._plan is None else [key for key, _ in self._plan.joins]
        grants = () if self._plan is None else (*self._plan.joins, *self._plan.grants)
        if self._plan is not None:
            self._calendar.apply(self._plan)
        self._order = [names[row.id] for row in rows]
        new = [names[key] for key in joins if names[key] not in self._seen]
        self._seen.update(new)
        preempted = () if self._plan is None else self._plan.preempted
        return {
            "preempted": [names[key] for key, _ in preempted],
            "sched": [[names[row.id], row.num_tokens, row.context, int(row.emits)] for row in rows],
            "tokens": sum(row.num_tokens for row in rows),
            "new": new,
            "resumed": [names[key] for key in joins if names[key] not in new],
            "hits": {names[row.id]: row.context for row in rows if row.id in joins and row.context},
            "new_blocks": {names[key]: list(blocks) for key, blocks in grants if blocks},
            "free_after_schedule": self.policy.kv.num_free,
        }

    def finish_oldest(self) -> list[str]:
        assert self._plan is not None
        finished = self._calendar.complete(self._plan, 1)
        self._step += 1
        self._engine.complete(StepResult(self._plan.step, 0.0, 0.0, finished=finished))
        ended = {self._names[finish.id] for finish in finished}
        return [name for name in self._order if name in ended]

    def state(self) -> Line:
        queues = self.policy.queues()
        waiting, running = ([self._names[key] for key in ids] for ids in (queues.waiting, queues.running))
        return {"waiting": waiting, "running": running, "free": self.policy.kv.num_free}


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@pytest.mark.parametrize("name", ["v1_tight", "v1_chunked", "v1_prefix", "v1_priority"])
def test_a_log_recorded_again_is_the_same(name: str) -> None:
    golden = GOLDEN / f"{name}.0.11.2.jsonl.gz"
    log = read_log(golden)
    written: list[Line] = []
    config = {key: value for key, value in log.config.items() if key not in ("type", "schema")}
    record(OwnScheduler(log), requests_of(log), config, written.append)
    assert written == lines_of(golden)


@pytest.mark.parametrize("more", [{}, {"enable_prefix_caching": True}, {"policy": "priority", "max_num_seqs": 9}])
def test_random_requests_make_a_log_that_conforms(more: dict[str, object]) -> None:
    config = {"system": "vllm", "engine": "v1", "version": "0.11.2", **SIZES, "num_blocks": 61, **more}
    requests = random_requests(3, 40, config, 0.2)
    assert random_requests(3, 40, config, 0.2) == requests
    empty = [{"type": "config", **config}, {"type": "end", "preemptions": 0, "unfinished": 0}]
    Path("config.jsonl").write_text("\n".join(map(json.dumps, empty)))
    with Path("new.jsonl").open("w") as stream:
        log = read_log(Path("config.jsonl"))
        record(OwnScheduler(log), requests, config, lambda line: stream.write(json.dumps(line) + "\n"))
    new = read_log(Path("new.jsonl"))
    assert len(new.requests) == 40
    assert any("aborted" in step for step in new.steps)
    result = replay(Path("new.jsonl"))
    assert (result.first_difference, result.matched) == (None, len(new.steps))


def test_an_engine_that_dies_ends_the_log() -> None:
    class Dies(OwnScheduler):
        def plan(self) -> Line:
            if self._step == 5:
                raise RuntimeError("no more")
            return super().plan()

    log = read_log(TIGHT)
    written: list[Line] = []
    record(Dies(log), requests_of(log), dict(log.config), written.append)
    assert (written[-2]["error"], written[-2]["detail"], written[-2]["t"]) == ("no more", "RuntimeError", 5)
    assert written[-1]["steps"] == 5


def test_a_run_without_an_end_is_stopped() -> None:
    log = read_log(TIGHT)
    written: list[Line] = []
    record(OwnScheduler(log), requests_of(log), dict(log.config), written.append, max_steps=7)
    assert (written[-1]["steps"], written[-1]["stopped"]) == (7, True)


# -- the command -----------------------------------------------------------------------------------------------------


def fails(*options: object) -> str:
    ended = batchscope("policies", "record", "new.jsonl", *options)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert not Path("new.jsonl").exists()
    return ended.stderr


@pytest.fixture
def vllm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package of that name, found before any other."""
    site = tmp_path_factory.mktemp("site-packages")
    (site / "vllm").mkdir()
    monkeypatch.syspath_prepend(site)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    return site / "vllm" / "__init__.py"


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert "there is no vllm in this environment; install it here" in fails()


@pytest.mark.parametrize("version", ["0.6.3.post1", "0.10.2"])
def test_an_old_vllm_is_refused(version: str, vllm: Path) -> None:
    vllm.write_text(f"__version__ = '{version}'\n")
    assert f"vllm {version} is installed; engine V1 of 0.11 or newer is needed" in fails()


def test_a_vllm_that_has_changed_is_refused_and_leaves_no_file(vllm: Path) -> None:
    vllm.write_text("__version__ = '0.99.0+cpu'\n")
    said = fails()
    assert "this vllm cannot be used here (ModuleNotFoundError: No module named 'vllm.config')" in said
    assert "knows 0.11.2 and 0.33.0" in said


def test_mistakes_of_the_user(vllm: Path) -> None:
    vllm.write_text("__version__ = '0.33.0'\n")
    assert "unknown setting 'num_block'; did you mean 'num_blocks'?" in fails("--set", "num_block=7")
    assert "'num_blocks' is not KEY=VALUE" in fails("--set", "num_blocks")
    assert "cannot be read" in fails("--like", "nothing.jsonl")
    Path("old.jsonl").write_text("")
    ended = batchscope("policies", "record", "old.jsonl")
    assert (ended.exit_code, Path("old.jsonl").read_text()) == (2, "")
    assert "old.jsonl exists; give the path of a new file" in ended.stderr


@pytest.mark.skipif(find_spec("vllm") is None, reason="no vllm is installed here")
def test_the_installed_vllm_is_recorded() -> None:
    assert batchscope("policies", "record", "new.jsonl", "--requests", 20).exit_code == 0
    assert len(read_log(Path("new.jsonl")).requests) == 20
