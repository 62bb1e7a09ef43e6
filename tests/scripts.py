"""Random scripts and engine sizes for the mirror: from pools that hold hardly a request to ample ones."""

from __future__ import annotations

from hypothesis import strategies as st

from policies.kit.scenarios import MAX_MODEL_LEN
from policies.kit.script import Item
from policies.testing import items
from tests.variants import Size

__all__ = ["BLOCK_SIZE", "MAX_MODEL_LEN", "items", "prompts_that_no_pool_holds", "sizes"]

BLOCK_SIZE = 4


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    """Limits of an engine with blocks of four tokens."""
    max_num_seqs = draw(st.sampled_from((1, 2, 3, 5, 8)))
    return Size(
        num_gpu_blocks=draw(st.one_of(st.integers(4, 16), st.integers(10, 40), st.just(200))),
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw(st.sampled_from((3, 6, 11, 20, 64)))),
        num_cpu_blocks=draw(st.sampled_from((0, 5, 12, 60))),
        kv_bytes_per_token=1,
        pieces_per_block=1,
    )


def prompts_that_no_pool_holds() -> tuple[Size, list[Item]]:
    """Prompts, one after the other, that end before they run: some systems plan an empty step for each of them."""
    size = Size(
        num_gpu_blocks=4,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=1,
        max_num_batched_tokens=3,
        num_cpu_blocks=0,
        kv_bytes_per_token=1,
        pieces_per_block=1,
    )
    return size, [Item(step, prompt_tokens=MAX_MODEL_LEN, output_tokens=1, max_tokens=1) for step in (0, 4, 8, 12)]
