"""SGLang's modes, and the mirror that follows its tables: what the property tests of its policy run over."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.plan import Idle, StepPlan
from policies.core.protocols import Policy, Services
from policies.core.radix_kv import RadixKv
from policies.systems.sglang import SgLang
from policies.systems.sglang_queue import Scheduling
from tests.mirror import MirrorBackend
from tests.variants import Size


class Mode(NamedTuple):
    """SGLang with some of its settings; the mirror takes it for one of its variants."""

    name: str
    scheduling: Scheduling = "fcfs"
    caches_prefixes: bool = True
    mixed: bool = False
    ignore_eos: bool = False
    chunk: int = 7
    overlap: bool = False
    blocks: str = "chunks"
    deliver_at_batch_end: bool = False

    def build(self, size: Size, services: Services) -> Policy:
        """A policy with a slot for each token of that many blocks."""
        return SgLang(
            RadixKv(size.num_gpu_blocks * size.block_size, enable_prefix_caching=self.caches_prefixes),
            max_num_seqs=size.max_num_seqs,
            max_num_batched_tokens=size.max_num_batched_tokens,
            max_model_len=size.max_model_len,
            chunked_prefill_size=self.chunk,
            scheduling=self.scheduling,
            schedule_conservativeness=0.1,
            enable_mixed_chunk=self.mixed,
            ignore_eos=self.ignore_eos,
            overlap=self.overlap,
            fits_requests=False,
        )


MODES = {
    mode.name: mode
    for mode in (
        Mode("fcfs"),
        Mode("lpm", "lpm", chunk=0),
        Mode("dfs-weight", "dfs-weight", chunk=20),
        Mode("mixed", mixed=True),
        Mode("no-cache", caches_prefixes=False),
        Mode("no-cache-ignore-eos", caches_prefixes=False, ignore_eos=True, chunk=0),
        Mode("no-cache-mixed", "lof", caches_prefixes=False, mixed=True),
    )
}


class SlotMirror(MirrorBackend):
    """Follows tables whose duplicates were found."""

    def submit(self, plan: StepPlan | Idle) -> int:
        """Deltas, then the slots that take the place of others."""
        ticket = super().submit(plan)
        if isinstance(plan, StepPlan):
            for request_id, start, slots in plan.remaps:
                self.tables[request_id][start : start + len(slots)] = slots
        return ticket
