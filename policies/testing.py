"""Tests of a policy of one's own, to inherit: subclass PolicyTests and give the fixture ``build``.

    from policies.testing import Limits, PolicyTests

    class TestMine(PolicyTests):
        @pytest.fixture
        def build(self):
            return lambda lim: Mine(lim.kv(), max_num_seqs=lim.max_num_seqs, max_model_len=lim.max_model_len)

``batchscope policies check FILE.py:CLASS`` runs the same checks without pytest. This is the one module of the project
that needs pytest and hypothesis (``pip install 'batchscope[testing]'``); nothing else imports it.
"""

from __future__ import annotations

try:
    import pytest
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"policies.testing needs pytest and hypothesis, and there is no {error.name}; pip install"
        " 'batchscope[testing]', or run 'batchscope policies check', which needs neither",
        name=error.name,
    ) from error

from policies.core.errors import closest
from policies.kit.checks import CHECKS, Check, CheckFailed
from policies.kit.play import Broken, Build, Kit
from policies.kit.scenarios import MAX_MODEL_LEN, Scenario
from policies.kit.script import Item, Limits

__all__ = ["Build", "Item", "Limits", "PolicyTests", "items", "scenarios"]

_NAMES = frozenset(check.name for check in CHECKS)


class PolicyTests:
    """Tests that every policy passes: one for each check, and random workloads that hypothesis makes small.

    ``chunked = True`` for a policy that splits prompts: its token budget is then smaller than a long prompt.
    ``deliver_at_batch_end = True`` for one whose rows hold their slots until the batch ends. ``leave_out`` names
    checks that the policy is not to pass, each with the reason.
    """

    chunked = False
    deliver_at_batch_end = False
    leave_out: dict[str, str] = {}  # noqa: RUF012  (a subclass gives another one)

    @pytest.fixture
    def build(self) -> Build:
        """To be given: a function that makes the policy for given Limits, anew each time."""
        pytest.fail(f"{type(self).__name__} has no fixture 'build' that returns the policy for given limits")

    @pytest.fixture
    def kit(self, build: Build, request: pytest.FixtureRequest) -> Kit:
        """The scenarios played so far on what ``build`` makes, one for each of its parameters."""
        call = getattr(request.node, "callspec", None)
        params = {} if call is None else {key: value for key, value in call.params.items() if key != "check"}
        kits: dict[str, Kit] | None = vars(type(self)).get("_kits")
        if kits is None:
            kits = {}
            setattr(type(self), "_kits", kits)  # noqa: B010  (of each subclass, not of this class)
        return kits.setdefault(repr(params), self._new_kit(build))

    def _new_kit(self, build: Build) -> Kit:
        return Kit(build, deliver_at_batch_end=self.deliver_at_batch_end, chunked=self.chunked)

    @pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
    def test_check(self, kit: Kit, check: Check) -> None:
        """One check of ``policies.kit.checks``."""
        for name in self.leave_out.keys() - _NAMES:
            pytest.fail(f"leave_out['{name}'] is no check{closest(name, _NAMES)}", pytrace=False)
        if check.name in self.leave_out:
            pytest.skip(self.leave_out[check.name])
        try:
            check.run(kit)
        except CheckFailed as error:
            pytest.fail(f"{check.words}? {error}", pytrace=False)

    @settings(
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,  # build makes a new policy in each example
            HealthCheck.differing_executors,  # each subclass is one
            HealthCheck.too_slow,
        ],
    )
    @given(data=st.data())
    def test_random_workload(self, build: Build, data: st.DataObject) -> None:
        """Any workload on any pool is served by the rules, and jumps change nothing."""
        scenario = data.draw(scenarios(), label="scenario")
        kit = self._new_kit(build)
        for found in (kit.stepped(scenario), kit.jumped(scenario)):
            if isinstance(found, Broken) and found.rule.name.lower() not in self.leave_out:
                pytest.fail(f"{found.rule.value}? {found.in_words()}", pytrace=False)


@st.composite
def items(draw: st.DrawFn, max_items: int = 10) -> list[Item]:
    """Requests in order of arrival; some come together, share prefixes, follow others, or are given up."""
    script: list[Item] = []
    step = 0
    for number in range(draw(st.integers(1, max_items))):
        step += draw(st.sampled_from((0, 0, 0, 1, 2, 5, 20)))
        script.append(_item(draw, step, number))
    return script


def _item(draw: st.DrawFn, step: int, number: int) -> Item:
    output = draw(st.integers(1, 24))
    kind = draw(st.sampled_from(("plain", "plain", "group", "group", "turn")))
    return Item(
        step=step,
        prompt_tokens=draw(st.one_of(st.integers(1, 20), st.integers(1, MAX_MODEL_LEN + 2))),
        output_tokens=output,
        max_tokens=draw(st.sampled_from((output, output, max(1, output // 2), output + 7))),
        patience=draw(st.one_of(st.none(), st.none(), st.integers(1, 30))),
        group=draw(st.integers(0, 1)) if kind == "group" else None,
        shared=draw(st.integers(1, 17)) if kind == "group" else 0,
        parent=draw(st.integers(0, number - 1)) if kind == "turn" and number else None,
        guess=draw(st.one_of(st.none(), st.integers(1, 30))),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Requests, and an engine for them whose pool holds at least one longest request."""
    limits = Limits(
        num_gpu_blocks=draw(st.one_of(st.integers(13, 24), st.just(200))),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=draw(st.sampled_from((1, 2, 3, 5, 8))),
        max_num_batched_tokens=64,
        num_cpu_blocks=draw(st.sampled_from((0, 12, 60))),
        enable_prefix_caching=draw(st.booleans()),
    )
    return Scenario("random", "requests drawn by hypothesis", limits, tuple(draw(items())))
