"""What a preset is: a named real system, its parameters and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from policies.catalog import Card

Value = int | float | bool | str
"""Value of a parameter."""

POOL_BLOCK_SIZE = 16
"""Tokens of a block in which ``num_gpu_blocks`` counts where a policy has no paged blocks of its own."""


class Rule(NamedTuple):
    """A default that depends on the parameters before it and on the card; ``text`` says how."""

    text: str
    value: Callable[[Mapping[str, Value], Card | None], Value]


class HostTime(NamedTuple):
    """Host time of a step that the device waits for, measured on that system: ``base_s``, ``per_seq_s`` for each
    sequence, and ``parallel_s`` more where several GPUs work on one model."""

    base_s: float
    per_seq_s: float
    source: str
    parallel_s: float = 0.0


class Graphs(NamedTuple):
    """CUDA graphs: the numbers of tokens recorded, to the next of which a decode step is padded, and any other step
    too if ``pads_chunks``."""

    sizes: tuple[int, ...]
    pads_chunks: bool = False


class Preset(NamedTuple):
    """A named real system: policy, parameters with that version's defaults, and how answers are delivered.

    ``policy`` is ``module:class``; ``chunked_policy``, if any, takes its place with
    ``enable_chunked_prefill``. ``defaults`` lists the tunable parameters (``engine`` keys of RUN.toml) in the
    order of evaluation, besides ``max_model_len`` and ``faithful``, which all presets have; ``fixed`` are
    arguments that make the variant. KV ``blocks`` are ``paged`` (``block_size`` tokens), ``whole`` (the same, all that
    a request can need at once), ``reserved`` (those of ``max_model_len`` tokens a request), a ``slot`` a request
    (``max_model_len`` tokens), single ``token`` slots reserved at once, ``cell`` by cell as a
    request grows, or in a ``radix`` tree. ``refuses_small_pool``:
    faithful, it refuses a pool smaller than one longest request, as those that check their parameters like vLLM do.
    ``host`` names measured host terms of a step; None: no host term is added. ``recorded_as`` are system, engine
    and version in decision logs of that engine, if there are recorded ones to hold a run against. ``defaults_of``:
    whose defaults they are, where one system has several.
    """

    name: str
    system: str
    version: str
    source: str
    summary: str
    policy: str
    defaults: Mapping[str, Value | Rule]
    fixed: Mapping[str, Value] = MappingProxyType({})
    chunked_policy: str | None = None
    delivery: Literal["step", "every_k", "batch_end"] = "step"
    blocks: Literal["paged", "whole", "reserved", "slot", "token", "cell", "radix"] = "paged"
    null_block: bool = False
    unhashed_first: bool = False
    checks_like_vllm: bool = False
    refuses_small_pool: bool = False
    modelled: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    host: HostTime | None = None
    graphs: Graphs | None = None
    recorded_as: tuple[str, str, str] | None = None
    defaults_of: str | None = None
