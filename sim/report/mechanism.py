"""How a policy works, for a reader who has never heard of it: who joins the batch, and what memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.core.errors import UserError
from policies.presets import preset

ENDS_TOGETHER = frozenset({"ft-static-early-return", "sarathi-96f9911-ft", "trtllm-static"})
"""Presets that run static batches, yet answer each request when it ends; so do all that deliver at the batch's end."""

MEMORY = {
    "slot": "A request holds KV cache for {longest} from its start, whatever its own length",
    "reserved": "A request holds KV cache for {longest} from its start, whatever its own length",
    "token": "A request reserves KV cache for its prompt and the answer expected of it when it starts",
    "whole": "A request gets all the KV cache that its prompt and longest answer can need when it starts",
    "paged": "A request takes KV cache in small blocks, one after the other, as its answer grows",
    "cell": "A request takes KV cache token by token, as its answer grows",
    "radix": "A request takes KV cache token by token, as its answer grows; prompts that begin alike share theirs",
}
"""What a request takes of the KV cache and when, by ``Preset.blocks``."""


def how_it_works(summary: Mapping[str, Any]) -> str:
    """Two sentences on the policy of a run: who may join its batch, and how it hands out memory.

    Empty for a preset that is not known here; of a class of the user's only the memory is known, which is its preset's.
    """
    try:
        chosen = preset(summary["preset"])
    except UserError:
        return ""
    length = summary["config"]["parameters"].get("max_model_len")
    longest = "the longest request allowed" + (f" ({length:,} tokens)" if length else "")
    memory = f"{MEMORY[chosen.blocks].format(longest=longest)}."
    if ":" in summary["policy"]:
        return memory if chosen.blocks != "paged" else ""
    if chosen.delivery == "batch_end":
        return f"A batch runs until its last answer ends; nobody joins it, and all answers come then. {memory}"
    if chosen.name in ENDS_TOGETHER:
        return f"A batch runs until its last answer ends, and nobody joins it. {memory}"
    steps = int(summary["config"]["parameters"].get("num_scheduler_steps", 1))
    if steps > 1:
        between = "requests join and leave, and get their tokens, in between"
        return f"Decode steps run {steps} at a time: {between}. {memory}"
    return f"Requests join and leave the batch between any two steps. {memory}"
