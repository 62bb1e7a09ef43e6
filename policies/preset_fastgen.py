"""Preset of DeepSpeed-FastGen, as DeepSpeed-MII schedules it."""

from __future__ import annotations

from types import MappingProxyType

from policies.preset import Preset

FASTGEN = Preset(
    name="fastgen-8abdd98",
    system="DeepSpeed-FastGen",
    version="MII 8abdd98",
    source="DeepSpeed-MII 8abdd98, mii/batching/ragged_batching.py; recorded decisions of that commit",
    summary="Dynamic SplitFuse: 768 tokens a step, generations first, prompts split, planned a step ahead",
    policy="policies.systems.splitfuse:SplitFuse",
    defaults=MappingProxyType({"max_num_batched_tokens": 768, "max_num_seqs": 512, "block_size": 64}),
    modelled=(
        "each call of the loop runs the batch that the call before planned, with an empty call before the first",
        "generations first, in the order of their last token; then prompts, of which all that is left must fit"
        " into free blocks, though only the tokens left in the step are computed",
        "nothing to schedule: the last request in the buffer that holds KV is computed again, from its end",
        "blocks of a finished request come back two calls later, blocks of a victim one call later",
    ),
    left_out=(
        "head sizes up to 64, for which a block has 128 tokens: set block_size",
        "max_tracked_sequences (2048), which more requests than run would have to reach",
        "aborts, which MII has not: the blocks of one that goes away are flushed like those of a finished one",
        "tensor parallelism between processes, streaming, tokenization: no host term",
    ),
    guarded=(
        "nothing can be scheduled, nobody in the buffer holds KV and no flush is under way yet: the loop goes on;"
        " the engine ends on an assertion",
        "a prompt that the whole pool cannot hold ends with kv_capacity; the engine ends on that assertion",
        "prompts join up to max_num_seqs requests; the engine takes one more and ends on an index error",
    ),
)
"""Dynamic SplitFuse with DeepSpeed's defaults."""
