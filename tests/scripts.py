"""Random scripts and engine sizes for the mirror: from pools that hold hardly a request to ample ones."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.mirror_run import Item
from tests.variants import Size

BLOCK_SIZE = 4
MAX_MODEL_LEN = 48


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
        prompt_tokens=draw(st.one_of(st.integers(1, 20), st.integers(1, 50))),
        output_tokens=output,
        max_tokens=draw(st.sampled_from((output, output, max(1, output // 2), output + 7))),
        patience=draw(st.one_of(st.none(), st.none(), st.integers(1, 30))),
        group=draw(st.integers(0, 1)) if kind == "group" else None,
        shared=draw(st.integers(1, 17)) if kind == "group" else 0,
        parent=draw(st.integers(0, number - 1)) if kind == "turn" and number else None,
        guess=draw(st.one_of(st.none(), st.integers(1, 30))),
    )
