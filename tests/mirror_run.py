"""Drives a built-in policy from a script (``policies.kit.drive``) and asks for more than any policy owes: exact
charges, exactly the blocks of each row's tokens, grants in running order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.core.plan import StepPlan
from policies.kit.drive import Log, ScriptRun
from policies.kit.script import Guesses, Item
from policies.systems.paged_027 import Paged027
from policies.systems.static import Static
from tests.variants import Size, Variant

__all__ = ["Guesses", "Item", "Log", "MirrorRun"]

_MAX_EMPTY_PLANS = 2


class MirrorRun(ScriptRun):
    """One run of a script; ``run`` does it and returns the log."""

    def __init__(
        self, variant: Variant, size: Size, items: Sequence[Item], chooser: Random | None = None
    ) -> None:
        super().__init__(
            variant.build(size, Guesses(items)),
            items,
            max_model_len=size.max_model_len,
            deliver_at_batch_end=variant.deliver_at_batch_end,
            chooser=chooser,
        )
        self.variant, self.size = variant, size
        self._empty_plans = 0

    def ended(self) -> None:
        """Fewer wait, and who went away may have been all that the next step was to run."""
        self._empty_plans = 0

    def check_plan(self, plan: StepPlan) -> None:
        """What the step is charged with, its limits, and that each row has exactly the blocks of its tokens."""
        super().check_plan(plan)
        rows, decodes = self.mirror.rows, self.mirror.decodes()
        contexts = [rows[key].computed for key in decodes]
        assert plan.num_seqs == len(decodes)
        pads_context = getattr(self.policy, "pads_context", False)
        assert plan.sum_context == (len(contexts) * max(contexts, default=0) if pads_context else sum(contexts))
        assert plan.max_context == max(contexts, default=0)
        prompts = [chunk.num_tokens for chunk in plan.chunks]
        pads = isinstance(self.policy, Static | Paged027) and prompts
        assert plan.num_tokens == (len(prompts) * max(prompts) if pads else len(decodes) + sum(prompts))
        assert plan.num_tokens <= getattr(self.policy, "max_num_batched_tokens", plan.num_tokens)
        assert len(decodes) + len(prompts) <= self.size.max_num_seqs
        self._empty_plans = 0 if plan.num_tokens else self._empty_plans + 1
        assert self._empty_plans <= _MAX_EMPTY_PLANS, "requests wait and no plan computes anything"
        places = [self.log.seen[self.time].running.index(key) for key, _ in plan.grants]
        assert places == sorted(places), "grants are not in running order"
        if self.stepwise and self.time <= self.promised_until:
            self._check_promise(plan)
        self._check_blocks(plan, set(decodes))

    def _check_promise(self, plan: StepPlan) -> None:
        changes = (plan.joins, plan.leaves, plan.preempted, plan.rejected, plan.transfers, plan.chunks)
        assert plan.is_quiet, "not quiet within the horizon"
        assert not any(changes), "a decision within the horizon"

    def _check_blocks(self, plan: StepPlan, decodes: set[int]) -> None:
        ends = {chunk.id: chunk.start + chunk.num_tokens for chunk in plan.chunks}
        for key, table in self.mirror.tables.items():
            row = self.mirror.rows[key]
            tokens = row.computed + self.policy.num_scheduler_steps if key in decodes else ends.get(key, row.computed)
            if self.variant.blocks == "prompts" and key not in self.mirror.decoding:
                tokens = row.known
            needed = -(-tokens // self.mirror.block_size)
            if self.variant.blocks == "slots":
                assert row.ended or len(table) >= needed
            else:
                assert len(table) == needed, f"request {key} has {len(table)} blocks for {tokens} tokens"
