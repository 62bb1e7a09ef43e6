"""What may help against each cause: other settings of the same run, to be tried by simulating them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from policies.core.errors import ConfigError
from policies.presets import preset
from sim.api import Setup
from sim.config import RunConfig, config_from_tables
from sim.costs.load import is_shipped
from sim.costs.pool import kv_pool

KINDS = {"setting": 0, "engine": 0, "prediction": 1, "accuracy": 1, "hardware": 2}
"""What advice asks for, and how dear that is: a setting, another engine or version, knowing answer lengths in advance,
less accurate numbers, more cards."""


_WITH_PRIORITIES = ("vllm-0.11", "vllm-0.33", "vllm-0.6")
"""Presets that have a variant by priority, ``NAME-priority``."""

_LOOKED_AT = 2_000
"""Requests whose lengths and priorities are looked at."""


class Advice(NamedTuple):
    """One thing to change. ``changes`` are keys of RUN.toml with new values (None: back to the default); ``replicas``
    > 1 puts as many engines behind round robin. ``roofline``: both runs are timed by the roofline, as no cost file
    times what is changed."""

    lever: str
    text: str
    kind: str
    changes: tuple[tuple[str, object], ...] = ()
    replicas: int = 1
    roofline: bool = False


def changed(config: RunConfig, advice: Advice) -> RunConfig:
    """The configuration with the advice in it. Raises a ConfigError where that is none.

    Another preset keeps the keys that it knows; ``num_gpu_blocks`` and ``gpu_memory_utilization`` replace each other.
    """
    tables = {name: dict(table) for name, table in config.to_dict().items()}
    changes = dict(advice.changes)
    if "engine.preset" in changes:
        known = {"preset", "max_model_len", "faithful", "num_gpu_blocks", "gpu_memory_utilization"}
        known |= set(preset(str(changes["engine.preset"])).defaults)
        tables["engine"] = {key: value for key, value in tables["engine"].items() if key in known}
    for pool, other in (("num_gpu_blocks", "gpu_memory_utilization"), ("gpu_memory_utilization", "num_gpu_blocks")):
        if changes.get(f"engine.{pool}") is not None:
            tables["engine"].pop(other, None)
    if advice.roofline:
        changes["hardware.cost_model"] = "roofline"
    for name, value in changes.items():
        section, _, key = name.partition(".")
        if value is None:
            tables.setdefault(section, {}).pop(key, None)
        else:
            tables.setdefault(section, {})[key] = value
    return config_from_tables(tables)


def advice_for(cause: str, setup: Setup) -> list[Advice]:
    """What to try against a cause in this run, the likeliest first."""
    return [advice for make in _MAKERS[cause] for advice in make(setup)]


Maker = Callable[[Setup], Iterator[Advice]]


def _has(setup: Setup, key: str) -> bool:
    return key in setup.parameters.preset.defaults


def _set(setup: Setup, key: str, value: object) -> tuple[tuple[str, object], ...]:
    """One key of [engine], with the token budget raised where vLLM wants it to hold a token of every sequence."""
    changes: list[tuple[str, object]] = [(f"engine.{key}", value)]
    budget = setup.parameters.values.get("max_num_batched_tokens")
    if key == "max_num_seqs" and budget is not None and int(str(value)) > int(budget):
        changes.append(("engine.max_num_batched_tokens", value))
    return tuple(changes)


def _more_slots(setup: Setup) -> Iterator[Advice]:
    if not _has(setup, "max_num_seqs"):
        return
    now, system = setup.parameters.max_num_seqs, setup.parameters.preset.system
    for factor in (2, 8):
        value = now * factor
        changes = _set(setup, "max_num_seqs", value)
        text = f"max_num_seqs = {value:,} in place of {now:,}"
        if len(changes) > 1:
            text += f", and as many tokens a step (max_num_batched_tokens), which {system} wants"
        yield Advice("max_num_seqs", text, "setting", changes)


def _fewer_slots(setup: Setup) -> Iterator[Advice]:
    """As many as fit the pool at their mean length: who is let in later is preempted less."""
    if setup.parameters.preset.blocks != "paged" or not _has(setup, "max_num_seqs"):
        return
    lengths = [row.prompt_tokens + row.output_tokens for row in islice(setup.workload.rows(), _LOOKED_AT)]
    pool, now = setup.policy.kv.num_blocks * setup.policy.kv.block_size, setup.parameters.max_num_seqs
    value = max(1, int(pool * len(lengths) / max(sum(lengths), 1)))
    if value < now:
        text = f"max_num_seqs = {value:,} in place of {now:,}: as many requests as fit the KV pool at their mean length"
        yield Advice("max_num_seqs", text, "setting", _set(setup, "max_num_seqs", value))


def _wider_budget(setup: Setup) -> Iterator[Advice]:
    now = setup.parameters.values.get("max_num_batched_tokens")
    if now is None:
        return
    for factor in (4, 16):
        text = f"max_num_batched_tokens = {int(now) * factor:,} in place of {int(now):,}"
        changes = (("engine.max_num_batched_tokens", int(now) * factor),)
        yield Advice("max_num_batched_tokens", text, "setting", changes)


def _narrower_budget(setup: Setup) -> Iterator[Advice]:
    """Only where prompts are cut: elsewhere a step must take the longest."""
    values = setup.parameters.values
    now = values.get("max_num_batched_tokens")
    cuts = values.get("enable_chunked_prefill", not setup.parameters.preset.checks_like_vllm)
    if now is None or not cuts:
        return
    for value in (512, 256):
        if setup.parameters.max_num_seqs <= value < int(now):
            text = f"max_num_batched_tokens = {value:,} in place of {int(now):,}: shorter steps"
            changes = (("engine.max_num_batched_tokens", value),)
            yield Advice("max_num_batched_tokens", text, "setting", changes)


def _chunked(setup: Setup) -> Iterator[Advice]:
    if _has(setup, "enable_chunked_prefill") and not setup.parameters.values["enable_chunked_prefill"]:
        changes: tuple[tuple[str, object], ...] = (("engine.enable_chunked_prefill", True),)
        for budget in (512, 2048):
            with_budget = (*changes, ("engine.max_num_batched_tokens", budget))
            text = f"chunked prefill, {budget:,} tokens a step: prompts are computed in pieces beside the answers"
            if budget >= setup.parameters.max_num_seqs:
                yield Advice("chunked prefill", text, "setting", with_budget)


def _sglang_chunks(setup: Setup) -> Iterator[Advice]:
    values = setup.parameters.values
    now = values.get("chunked_prefill_size")
    if now is not None and int(now) != 512:
        text = f"chunked_prefill_size = 512 in place of {int(now):,}: prompts are computed in shorter pieces"
        yield Advice("chunked_prefill_size", text, "setting", (("engine.chunked_prefill_size", 512),))
    if "enable_mixed_chunk" in values and not values["enable_mixed_chunk"]:
        changes = (("engine.enable_mixed_chunk", True), ("engine.chunked_prefill_size", 512))
        text = "enable_mixed_chunk, with 512 tokens of prompts a step: answers go on beside prompts"
        yield Advice("chunked prefill", text, "setting", changes)


def _cut_long_prompts(setup: Setup) -> Iterator[Advice]:
    if _has(setup, "long_prefill_token_threshold") and not setup.parameters.values["long_prefill_token_threshold"]:
        changes = (("engine.long_prefill_token_threshold", 256),)
        text = "long_prefill_token_threshold = 256: at most so many tokens of one prompt in a step"
        yield Advice("long_prefill_token_threshold", text, "setting", changes)


def _larger_pool(setup: Setup) -> Iterator[Advice]:
    """All the blocks that memory holds, and what a higher utilisation adds."""
    given = setup.config.engine.num_gpu_blocks
    now = setup.policy.kv.num_gpu_blocks
    for share in (0.9, 0.95):
        if given is None and share <= (setup.config.engine.gpu_memory_utilization or 0.9):
            continue
        blocks = _blocks_at(setup, share)
        if given is not None and blocks <= given:
            continue
        text = f"gpu_memory_utilization = {share:g}: {blocks:,} KV blocks" + (
            f" in place of {given:,} (num_gpu_blocks)" if given is not None else f" in place of {now:,}"
        )
        changes = (("engine.gpu_memory_utilization", share),)
        yield Advice("KV pool", text, "setting", changes)
        return


def _blocks_at(setup: Setup, utilization: float) -> int:
    parameters = setup.parameters
    try:
        return kv_pool(
            setup.shape,
            setup.card,
            max_num_batched_tokens=parameters.max_num_batched_tokens,
            max_num_seqs=parameters.max_num_seqs,
            block_size=parameters.pool_block_size,
            utilization=utilization,
        ).num_gpu_blocks
    except ConfigError:
        return 0


def _watermark(setup: Setup) -> Iterator[Advice]:
    if _has(setup, "watermark") and setup.policy.kv.num_gpu_blocks >= 40:
        now = float(setup.parameters.values["watermark"])
        text = f"watermark = {max(0.1, 2 * now):g} in place of {now:g}: admission leaves more blocks free"
        yield Advice("watermark", text, "setting", (("engine.watermark", max(0.1, 2 * now)),))


def _preemption_mode(setup: Setup) -> Iterator[Advice]:
    if not _has(setup, "preemption_mode"):
        return
    other = "recompute" if setup.parameters.values["preemption_mode"] == "swap" else "swap"
    text = f"preemption_mode = {other} in place of {setup.parameters.values['preemption_mode']}"
    yield Advice("preemption mode", text, "setting", (("engine.preemption_mode", other),))


def _whole_block_copies(setup: Setup) -> Iterator[Advice]:
    if setup.config.hardware.swap_layout == "layers":
        text = "KV blocks copied whole, not layer by layer (a change in the engine's memory layout)"
        yield Advice("swap layout", text, "engine", (("hardware.swap_layout", "block"),))


def _shorter_limit(setup: Setup) -> Iterator[Advice]:
    """Where each request reserves memory for max_model_len tokens."""
    if setup.parameters.preset.blocks not in ("slot", "reserved"):
        return
    longest = max((row.prompt_tokens + row.output_tokens for row in setup.workload.rows()), default=0)
    value = -(-longest // 64) * 64
    if 0 < value < setup.parameters.max_model_len:
        text = f"max_model_len = {value:,}, which no request exceeds, in place of {setup.parameters.max_model_len:,}"
        yield Advice("max_model_len", text, "setting", (("engine.max_model_len", value),))


def _paged(setup: Setup) -> Iterator[Advice]:
    """In place of presets without host terms alone, and without that of vLLM, so that the engines are as fast."""
    if setup.costs.host.at(1) or setup.parameters.custom is not None:
        return
    if setup.parameters.preset.delivery == "batch_end" or setup.parameters.preset.blocks in ("slot", "reserved"):
        changes = (("engine.preset", "vllm-0.11"), ("hardware.host_term", False))
        text = "continuous batching with paged KV cache (vllm-0.11) and the same slots"
        yield Advice("policy", text, "engine", changes)


def _priorities(setup: Setup) -> Iterator[Advice]:
    """By the requests' priorities where they have some, else shortest answer first, on vLLM's engine."""
    name = setup.parameters.preset.name
    if setup.parameters.custom is not None:
        return
    priorities = {row.priority for row in islice(setup.workload.rows(), _LOOKED_AT)}
    if len(priorities) > 1 and name in _WITH_PRIORITIES:
        other = f"{name}-priority"
        yield Advice("priorities", f"by the requests' priorities ({other})", "engine", (("engine.preset", other),))
    elif name in ("vllm-0.11", "vllm-0.33") and preset("sjf").host == setup.parameters.preset.host:
        text = "shortest answer first (sjf), if answer lengths were known"
        yield Advice("priorities", text, "prediction", (("engine.preset", "sjf"),))


def _multi_step(setup: Setup) -> Iterator[Advice]:
    """Of vLLM's versions with a host term, the one that pays it once for ten steps."""
    name = setup.parameters.preset.name
    if name in ("vllm-0.2.7", "vllm-0.2.7-swap", "vllm-0.6") and setup.parameters.custom is None:
        text = "ten decode steps a plan (vllm-0.6-multi-step): the host's time is paid once for all of them"
        yield Advice("host", text, "engine", (("engine.preset", "vllm-0.6-multi-step"),))


def _narrower_weights(setup: Setup) -> Iterator[Advice]:
    bits = setup.config.model.weight_bits
    if bits > 8:
        text = f"weights of 8 bits in place of {bits}: read faster, and more memory for KV; accuracy to be checked"
        yield Advice("quantised weights", text, "accuracy", _bits(setup, "weight_bits"), 1, _times_by_file(setup))


def _narrower_kv(setup: Setup) -> Iterator[Advice]:
    if setup.config.model.kv_bits > 8:
        changes = _bits(setup, "kv_bits")
        given = setup.config.engine.num_gpu_blocks
        if given is not None:
            changes = (*changes, ("engine.num_gpu_blocks", 2 * given))
        text = "KV cache of 8 bits: twice the tokens in the same memory; accuracy to be checked"
        yield Advice("quantised KV cache", text, "accuracy", changes, 1, _times_by_file(setup))


def _bits(setup: Setup, key: str) -> tuple[tuple[str, object], ...]:
    return ((f"model.{key}", 8),)


def _times_by_file(setup: Setup) -> bool:
    """Whether a cost file times the run, which knows 16 bits alone."""
    return setup.config.hardware.cost_model != "roofline" and is_shipped(setup.shape, setup.card)


def _replicas(setup: Setup) -> Iterator[Advice]:
    yield Advice("replicas", "2 replicas behind round robin: twice the cards", "hardware", (), 2)


_MAKERS: dict[str, tuple[Maker, ...]] = {
    "arrivals": (),
    "slots": (_more_slots, _larger_pool, _priorities, _narrower_weights, _replicas),
    "token_budget": (_wider_budget, _chunked, _larger_pool, _narrower_weights, _replicas),
    "kv_pool": (
        *(_larger_pool, _shorter_limit, _preemption_mode, _watermark, _fewer_slots, _paged),
        *(_priorities, _narrower_weights, _narrower_kv, _replicas),
    ),
    "prefill": (
        *(_chunked, _sglang_chunks, _narrower_budget, _cut_long_prompts, _more_slots, _narrower_weights, _replicas),
    ),
    "swap_link": (
        *(_preemption_mode, _larger_pool, _whole_block_copies, _watermark, _fewer_slots, _narrower_kv, _replicas),
    ),
    "host": (_multi_step, _more_slots, _narrower_weights, _replicas),
    "batch": (_paged, _shorter_limit, _more_slots, _narrower_weights, _replicas),
    "card": (_narrower_weights, _wider_budget, _more_slots, _narrower_kv, _replicas),
}
