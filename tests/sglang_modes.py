"""SGLang's modes, and what its step tables begin with."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.protocols import Policy, Services
from policies.core.radix_kv import RadixKv
from policies.systems.sglang import SgLang
from policies.systems.sglang_queue import Scheduling
from tests.decision_tables import check_script
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


# -- step tables ---------------------------------------------------------------------------------------------

MAX_MODEL_LEN = 200


def sglang(
    slots: int,
    *,
    cache: bool = False,
    seqs: int = 8,
    tokens: int = 100,
    chunk: int = 0,
    scheduling: Scheduling = "fcfs",
    conservativeness: float = 1.0,
    mixed: bool = False,
    ignore_eos: bool = False,
    overlap: bool = False,
    fits_requests: bool = False,
    max_model_len: int = MAX_MODEL_LEN,
    faithful: bool = True,
) -> SgLang:
    """A policy with that many slots."""
    return SgLang(
        RadixKv(slots, enable_prefix_caching=cache),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=max_model_len,
        chunked_prefill_size=chunk,
        scheduling=scheduling,
        schedule_conservativeness=conservativeness,
        enable_mixed_chunk=mixed,
        ignore_eos=ignore_eos,
        overlap=overlap,
        fits_requests=fits_requests,
        faithful=faithful,
    )


def check(policy: SgLang, script: str) -> None:
    """Assert that the policy takes exactly the steps of the script."""
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


RETRACTION = """
    +A 8/12
    +B 6/12
    +C 6/12
    0 | A:8@0* B:6@0* | 26 | C | - | - | -      # C: 18 is not less than 40 - 20 - 18
    1 | C:6@0* | 20 | - | A B | - | -
    2 | A:1@8* B:1@6* C:1@6* | 17 | - | A B C | - | -
    3 | A:1@9* B:1@7* C:1@7* | 14 | - | A B C | - | -
    4 | A:1@10* B:1@8* C:1@8* | 11 | - | A B C | - | -
    5 | A:1@11* B:1@9* C:1@9* | 8 | - | A B C | - | -
    6 | A:1@12* B:1@10* C:1@10* | 5 | - | A B C | - | -
    7 | A:1@13* B:1@11* C:1@11* | 2 | - | A B C | - | -
    """
"""Three requests until no slot is left for them."""
