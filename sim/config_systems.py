"""Keys of [engine] that one real system has: those of TGI, TensorRT-LLM, llama.cpp and Ollama."""

from __future__ import annotations

from typing import Literal

from sim.config_keys import Section, boolean, choice, key, number, whole

_count = whole(1)
_size = whole(0)


class SystemKeys(Section):
    """Keys of presets of engines that have limits and budgets of their own."""

    _table = "engine"

    num_scheduler_steps: int | None = key(
        _count, "Decode steps that are planned at once and whose tokens come together (vLLM 0.6).", default=None
    )
    max_batch_prefill_tokens: int | None = key(_count, "Most prompt tokens that start in a step (TGI).", default=None)
    max_batch_total_tokens: int | None = key(
        _size, "Most tokens that running requests may grow to; 0 takes all of the KV pool (TGI).", default=None
    )
    max_input_length: int | None = key(_size, "Longest prompt that is let in (TGI).", default=None)
    waiting_served_ratio: float | None = key(
        number(at_least=0), "New requests, per running one, that decodes are interrupted for (TGI).", default=None
    )
    max_waiting_tokens: int | None = key(
        _size, "Tokens of the running batch after which any number of requests may start (TGI).", default=None
    )
    max_concurrent_requests: int | None = key(
        _count, "Requests inside, waiting or running; who comes on top is refused (TGI).", default=None
    )
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] | None = key(
        choice("guaranteed_no_evict", "max_utilization", "static_batch"),
        "For how much memory a request must find room to start (TensorRT-LLM).",
        default=None,
    )
    context_chunking_policy: Literal["first_come_first_served", "equal_progress"] | None = key(
        choice("first_come_first_served", "equal_progress"),
        "How prompts share the tokens of a step, with enable_chunked_prefill (TensorRT-LLM).",
        default=None,
    )
    cont_batching: bool | None = key(
        boolean, "Compute prompts beside slots that generate (llama.cpp, Ollama).", default=None
    )
    max_num_queued_reqs: int | None = key(
        _size, "Requests that may wait; who comes on top is refused (Ollama: OLLAMA_MAX_QUEUE).", default=None
    )
