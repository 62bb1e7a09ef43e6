"""Presets by name, and policies built from a preset and what the user changes in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from policies.core.errors import CatalogError, ConfigError, closest
from policies.core.kv import KvManager
from policies.core.protocols import Policy, Services
from policies.custom import construct, construct_custom, load_builtin, load_custom
from policies.preset_table import POOL_BLOCK_SIZE, PRESETS, Preset, Rule, Value
from policies.preset_text import describe, describe_all, to_dict, unknown

if TYPE_CHECKING:
    from policies.catalog import Card

__all__ = [
    "EngineOptions",
    "Parameters",
    "Preset",
    "build_policy",
    "choose",
    "describe",
    "describe_all",
    "preset",
    "presets",
    "resolve",
    "to_dict",
]

_NOT_OF_A_POLICY = frozenset({"preset", "policy", "vllm_args", "num_gpu_blocks", "gpu_memory_utilization"})
_COUNTS = frozenset(
    {
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"),
        *("max_batch_prefill_tokens", "max_concurrent_requests", "num_scheduler_steps"),
    }
)
_CHUNK_SCHEDULE = ("low_chunk_size", "chunk_schedule_max_tokens", "chunk_schedule_stages")
_NOT_NEGATIVE = frozenset(
    {
        *("swap_space_bytes", "long_prefill_token_threshold", "chunked_prefill_size", "max_paddings", *_CHUNK_SCHEDULE),
    }
    | {"max_batch_total_tokens", "max_input_length", "max_waiting_tokens", "max_num_queued_reqs"}
)
_ORDERING_COUNTS = frozenset({"num_levels", "quantum_steps", "starvation_limit_steps", "replan_steps"})
_ORDERING_SIZES = frozenset({"preemption_cap", "predictor_seed"})
_SWITCHES = frozenset(
    {
        *("enable_chunked_prefill", "enable_prefix_caching", "enable_mixed_chunk", "ignore_eos", "faithful"),
        *("scheduler_reserve_full_isl", "cont_batching", "evict_running", "proactive_swap"),
    }
)
_AMOUNTS = frozenset({"ageing_per_s", "predictor_sigma", "w_in", "w_out"})
_TARGETS = frozenset({"ttft_target_s", "tpot_target_s", "qoe_horizon_s"})
_FACTORS = ("schedule_conservativeness", "waiting_served_ratio")
_MODES = ("recompute", "swap", "auto")


def preset(name: str) -> Preset:
    """The preset of that name; CatalogError with the closest name if there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise CatalogError(f"engine.preset = '{name}': {unknown(name, 'unknown preset')}") from None


def presets() -> tuple[Preset, ...]:
    """All presets, in the order of the table."""
    return tuple(PRESETS.values())


def choose(preset_name: str, policy: str | None) -> tuple[Preset, str | None]:
    """The preset that ``engine.preset`` and ``engine.policy`` name, and a custom class's address if any.

    ``policy`` is the name of a preset, which then takes the place of ``preset_name``, or ``FILE.py:CLASS``, or the name
    of an entry point of another distribution; these take parameters and KV memory from the preset.
    """
    if policy is None:
        return preset(preset_name), None
    if policy in PRESETS:
        return PRESETS[policy], None
    if ".py:" in policy:
        return preset(preset_name), policy
    if policy.endswith(".py"):
        raise ConfigError(f"engine.policy = '{policy}': name the class in it, too: {policy}:CLASS")
    from policies.plugins import find_plugin

    address = find_plugin(policy)
    if address is not None:
        return preset(preset_name), address
    raise CatalogError(f"engine.policy = '{policy}': {unknown(policy, 'neither a preset nor FILE.py:CLASS')}")


class Parameters(NamedTuple):
    """A preset with a value for each parameter; ``custom`` is the address of a class in place of its own, which takes
    ``own`` keyword arguments besides."""

    preset: Preset
    values: Mapping[str, Value]
    custom: str | None = None
    own: Mapping[str, object] = MappingProxyType({})

    def with_own(self, own: Mapping[str, object]) -> Parameters:
        """With the keys of RUN.toml's [policy]; ConfigError without a class of the user's that could take them."""
        for name, value in own.items() if self.custom is None else ():
            raise ConfigError(
                f"policy.{name} = {_toml(value)}: for engine.policy = 'FILE.py:CLASS' only; the parameters of preset"
                f" {self.preset.name} are keys of engine, see 'batchscope policies show {self.preset.name}'"
            )
        return self._replace(own=own)

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request, prompt and output."""
        return int(self.values["max_model_len"])

    @property
    def max_num_seqs(self) -> int:
        """Most requests in a batch."""
        return int(self.values["max_num_seqs"])

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of the widest step, for which activation memory is set aside. A policy without such a budget
        is assumed to have memory for one request of full length, at least 2,048 tokens."""
        values = self.values
        budget = values.get("max_num_batched_tokens") or values.get("max_batch_prefill_tokens")
        return int(budget or max(self.max_model_len, 2_048))

    @property
    def pool_block_size(self) -> int:
        """Tokens of a block in which ``num_gpu_blocks`` counts."""
        return int(self.values.get("block_size", POOL_BLOCK_SIZE))

    @property
    def delivery(self) -> Literal["step", "every_k", "batch_end"]:
        """When clients get their answers."""
        return self.preset.delivery

    def in_words(self, name: str) -> str:
        """``engine.NAME = VALUE``, as a RUN.toml has it."""
        return f"engine.{name} = {_toml(self.values[name])}"


class EngineOptions(NamedTuple):
    """Keyword arguments of ``Engine`` that belong to a preset."""

    deliver_at_batch_end: bool


# -- parameters ----------------------------------------------------------------------------------------------


def resolve(
    chosen: Preset,
    overrides: Mapping[str, object],
    *,
    max_model_len: int,
    card: Card | None = None,
    custom: str | None = None,
) -> Parameters:
    """Defaults of a preset for a model of ``max_model_len`` tokens on a card, with ``overrides`` over them.

    ``overrides`` are keys of RUN.toml's [engine] (None: not given); those about the pool are passed over.
    ConfigError for a key that the preset does not know, and for what the real engine refuses.
    """
    given = {
        key: value for key, value in overrides.items() if value is not None and key not in _NOT_OF_A_POLICY
    }
    known = {"max_model_len", "faithful", *chosen.defaults}
    for key, value in given.items():
        if key not in known:
            raise _error(key, value, _unknown(chosen, key))
        _check_value(key, value)
    values: dict[str, Value] = {"max_model_len": max_model_len, "faithful": False}
    for key, default in (*values.items(), *chosen.defaults.items()):
        value = given.get(key)
        if isinstance(value, int | float | str):
            values[key] = value
        else:
            values[key] = default.value(values, card) if isinstance(default, Rule) else default
    length = values["max_model_len"]
    if int(length) > max_model_len:
        raise _error("max_model_len", length, f"the model takes at most {max_model_len} tokens")
    parameters = Parameters(chosen, MappingProxyType(values), custom)
    if chosen.checks_like_vllm:
        _check_token_budget(parameters)
    return parameters


def _unknown(chosen: Preset, key: str) -> str:
    others = [other.name for other in PRESETS.values() if key in other.defaults]
    hint = f"; presets that have it: {', '.join(others)}" if others else closest(key, chosen.defaults)
    return f"preset {chosen.name} has no such parameter, leave it out{hint}"


def _check_value(key: str, value: object) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _COUNTS | _ORDERING_COUNTS and not (is_whole and int(str(value)) >= 1):
        raise _error(key, value, "give a whole number of at least 1")
    if key in _NOT_NEGATIVE | _ORDERING_SIZES and not (is_whole and int(str(value)) >= 0):
        raise _error(key, value, "give a whole number of at least 0")
    if key in _SWITCHES and not isinstance(value, bool):
        raise _error(key, value, "give true or false")
    if key in _AMOUNTS and (isinstance(value, bool) or not (isinstance(value, int | float) and value >= 0)):
        raise _error(key, value, "give a number of at least 0")
    if key in _TARGETS and (isinstance(value, bool) or not (isinstance(value, int | float) and value > 0)):
        raise _error(key, value, "give a number of seconds above 0")
    if key == "preemption_mode" and value not in _MODES:
        raise _error(key, value, f"give one of {', '.join(_MODES)}{closest(str(value), _MODES)}")
    if key == "batch_wait_timeout_s" and not (isinstance(value, int | float) and value >= 0):
        raise _error(key, value, "give a number of seconds of at least 0")
    if key in _FACTORS and not (isinstance(value, int | float) and value >= 0):
        raise _error(key, value, "give a number of at least 0")
    if key == "watermark" and not (isinstance(value, int | float) and 0 <= value < 1):
        raise _error(key, value, "give a number of at least 0 and below 1")


def _check_token_budget(parameters: Parameters) -> None:
    """vLLM refuses to start with a token budget that leaves sequences or prompts out."""
    system, tokens, seqs = (
        parameters.preset.system,
        parameters.max_num_batched_tokens,
        parameters.max_num_seqs,
    )
    if tokens < seqs:
        remedy = f"{system} wants at least max_num_seqs = {seqs}; raise it or lower engine.max_num_seqs"
        raise _error("max_num_batched_tokens", tokens, remedy)
    longest = parameters.max_model_len
    chunked = parameters.values.get("enable_chunked_prefill")
    if tokens < longest and not chunked:
        or_chunks = "" if chunked is None else ", or set engine.enable_chunked_prefill = true"
        remedy = (
            f"without chunked prefill {system} wants at least max_model_len = {longest}; raise it,"
            f" lower engine.max_model_len{or_chunks}"
        )
        raise _error("max_num_batched_tokens", tokens, remedy)


# -- policies ------------------------------------------------------------------------------------------------


def build_policy(
    parameters: Parameters,
    *,
    num_gpu_blocks: int,
    kv_bytes_per_token: int,
    pieces_per_block: int = 1,
    services: Services | None = None,
    numbered: bool = True,
) -> tuple[Policy, EngineOptions]:
    """The policy with its KV memory, and how its engine delivers.

    ``num_gpu_blocks`` counts blocks of ``parameters.pool_block_size`` tokens. A block takes
    ``kv_bytes_per_token`` for each of its tokens and is swapped in ``pieces_per_block`` copies. ConfigError
    if the pool cannot serve any request, or if ``faithful`` and the real engine refuses to start with it.

    Without ``numbered`` pools of single tokens only count them: plans tell how many, not which ones.
    """
    chosen, values = parameters.preset, parameters.values
    kv = _memory(parameters, num_gpu_blocks, kv_bytes_per_token, numbered=numbered)
    address = chosen.policy
    if chosen.chunked_policy is not None and values["enable_chunked_prefill"]:
        address = chosen.chunked_policy
    custom = parameters.custom
    offered: dict[str, object] = {
        **values,
        **chosen.fixed,
        "services": services,
        "block_bytes": kv_bytes_per_token * kv.block_size,
        "pieces_per_block": pieces_per_block,
    }
    if custom is None:
        try:
            policy = construct(load_builtin(address), kv, offered, f"engine.policy = '{address}'")
        except ConfigError as error:
            if str(error).partition(" ")[0] not in values:
                raise
            # A policy does not know that its parameters are keys of RUN.toml.
            raise ConfigError(f"engine.{error}") from error
    else:
        policy = construct_custom(load_custom(custom), kv, offered, custom, parameters.own)
    return policy, EngineOptions(deliver_at_batch_end=chosen.delivery == "batch_end")


def _memory(parameters: Parameters, num_gpu_blocks: int, kv_bytes_per_token: int, *, numbered: bool) -> KvManager:
    chosen, values = parameters.preset, parameters.values
    block_size = parameters.pool_block_size
    tokens, longest = num_gpu_blocks * block_size, parameters.max_model_len
    if chosen.blocks == "slot":
        return KvManager(_at_least_one(tokens // longest, num_gpu_blocks, f"one slot of {longest}"), longest)
    if chosen.blocks in ("token", "cell"):
        num_cells = _at_least_one(tokens - 1, num_gpu_blocks, "a prompt and an output token, 2") + 1
        return KvManager(num_cells, 1, numbered=numbered or chosen.blocks == "token")
    if chosen.blocks == "radix":
        from policies.core.radix_kv import RadixKv

        _at_least_one(tokens - 7, num_gpu_blocks, "a prompt token and the room that the engine wants behind it, 8")
        return RadixKv(tokens, enable_prefix_caching=bool(values["enable_prefix_caching"]), numbered=numbered)
    usable = num_gpu_blocks - chosen.null_block
    _at_least_one(usable, num_gpu_blocks, f"one usable block of {block_size}")
    if chosen.blocks == "reserved":
        _at_least_one(tokens // longest, num_gpu_blocks, f"one reservation of {longest}")
    refuses = chosen.checks_like_vllm or chosen.refuses_small_pool
    if refuses and values["faithful"] and tokens < longest:
        raise _error(
            "max_model_len",
            longest,
            f"{chosen.system} refuses to start with a KV pool of {tokens} tokens ({num_gpu_blocks} blocks);"
            " lower it or raise engine.num_gpu_blocks",
        )
    return KvManager(
        num_gpu_blocks,
        block_size,
        num_cpu_blocks=_num_cpu_blocks(values, kv_bytes_per_token * block_size),
        enable_prefix_caching=bool(values.get("enable_prefix_caching", False)),
        null_block=chosen.null_block,
        unhashed_first=chosen.unhashed_first,
    )


def _at_least_one(count: int, num_gpu_blocks: int, needed: str) -> int:
    if count < 1:
        raise _error(
            "num_gpu_blocks",
            num_gpu_blocks,
            f"the KV pool holds less than {needed} tokens, so no request at all can be served;"
            " give more blocks, a larger card, or a smaller engine.max_model_len",
        )
    return count


def _num_cpu_blocks(values: Mapping[str, Value], block_bytes: int) -> int:
    swap_space = int(values.get("swap_space_bytes", 0))
    if swap_space and block_bytes < 1:
        raise ConfigError("kv_bytes_per_token = 0: give at least 1 to divide engine.swap_space_bytes by it")
    return swap_space // block_bytes if swap_space else 0


def _error(key: str, value: object, remedy: str) -> ConfigError:
    return ConfigError(f"engine.{key} = {_toml(value)}: {remedy}")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
