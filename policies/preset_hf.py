"""Preset of naive batches with Hugging Face transformers."""

from __future__ import annotations

from types import MappingProxyType

from policies.preset import Preset

HF_STATIC = Preset(
    name="hf-static",
    system="Hugging Face transformers",
    version="model.generate",
    source="transformers' generate on a padded batch, from general knowledge; no recordings",
    summary="one generate call at a time on what waits; prompts padded, rows pay to the end, answers together",
    policy="policies.systems.static:Static",
    defaults=MappingProxyType({"max_num_seqs": 8}),
    fixed=MappingProxyType({"pads_context": True}),
    delivery="batch_end",
    blocks="slot",
    modelled=(
        "a call takes the requests that wait when the last one returns, at most max_num_seqs; nobody joins it",
        "prompts are padded to the longest, in the prefill and in every step after it: each row is charged with the"
        " context of the longest",
        "a request that ends is padded on until all have ended; then all answers return",
    ),
    left_out=(
        "max_num_seqs is assumed: whoever calls generate makes the batch (a pipeline takes 1 unless told otherwise)",
        "the cache grows by concatenation; here a request counts as max_model_len tokens, so that no call runs out of"
        " memory",
        "speed of its kernels: the cost model is that of every preset, and host time, which is long, is not in it",
    ),
)
"""A naive server around ``generate``."""
