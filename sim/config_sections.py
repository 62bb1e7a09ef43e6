"""The sections of RUN.toml and their keys: kind of value, default, and a line for the reader of ``batchscope keys``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from policies.core.errors import ConfigError
from sim.config_keys import Kind, Section, boolean, choice, impossible, key, number, text, whole
from sim.config_ordering import OrderingKeys
from sim.config_systems import SystemKeys
from traces.workload.lengths import LAWS, LengthLaw, law_table, parse_law
from traces.workload.limits import MaxTokensRule, check_rule
from traces.workload.spec import OverLength

GENERATORS = ("poisson", "gamma", "constant", "closed-loop")
RECORDS = ("requests", "steps", "tokens", "decisions")

_limit_s = number(above=0, unit="seconds")
# A double of simulated seconds keeps parts of a step within these bounds.
_rate = number(at_least=1e-6, at_most=1e9)
_pause_s = number(at_least=0, at_most=1e9, unit="seconds")
_count = whole(1)
_size = whole(0)
_bits = Kind("16 | 8 | 4", lambda value, where: _one_of((16, 8, 4), value, where))
_law = Kind(
    '{dist = "fixed", value} | {dist = "uniform", low, high} | {dist = "exponential", mean, cap}'
    ' | {dist = "lognormal", mean, cv, cap}',
    parse_law,
)
_max_tokens = Kind('"trace" | "output" | "model" | whole number | "xFACTOR"', check_rule)


def _one_of(numbers: tuple[int, ...], value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in numbers:
        raise impossible(where, value, f"give one of {', '.join(map(str, numbers))}")
    return value


class WorkloadConfig(Section):
    """What is sent: a ``trace`` file, or requests drawn after a ``profile`` or by a ``generator``.

    A profile has lengths, arrivals and shared prefixes of a real trace; ``rate_per_s`` replaces its mean rate, a
    ``generator`` its arrivals, ``concurrency`` them both.
    Generators: ``poisson``, ``gamma`` (with ``cv``) and ``constant`` send ``num_requests`` at ``rate_per_s``;
    ``closed-loop`` sends them from ``concurrency`` clients. ``concurrency`` with a trace makes its clients
    take the rows in turn. ``rate_scale`` multiplies the rate of either; ``limit`` keeps the first rows. A
    relative ``trace`` is looked up from where the command runs.
    """

    _table = "workload"
    _meant: ClassVar[Mapping[str, str]] = {"rate": "rate_per_s", "qps": "rate_per_s", "requests": "num_requests"}

    trace: str | None = key(
        text, "File of requests: CSV, JSONL, Azure or Mooncake, .gz too; or give a profile or generator.", default=None
    )
    profile: str | None = key(
        text, "Requests like those of a real trace: a name of 'batchscope traces list', or FILE.json.", default=None
    )
    generator: Literal["poisson", "gamma", "constant", "closed-loop"] | None = key(
        choice(*GENERATORS),
        "Source of synthetic requests: gaps exponential, gamma, equal, or clients that wait for answers.",
        default=None,
    )
    rate_per_s: float | None = key(_rate, "Requests a second that generator or profile sends.", default=None)
    cv: float | None = key(
        number(at_least=1e-3, at_most=1e6),
        "Coefficient of variation of the gaps of generator = gamma; 1 is poisson, more is burstier.",
        default=None,
    )
    num_requests: int | None = key(
        whole(1, at_most=10**12),
        "How many requests generator or profile sends; absent, a profile's own, at most 20,000.",
        default=None,
    )
    prompt: LengthLaw | None = key(_law, "Prompt lengths of the generator, in tokens.", default=None)
    output: LengthLaw | None = key(_law, "Answer lengths of the generator, in tokens.", default=None)
    rate_scale: float = key(_rate, "Multiplies the rate of any source; the gaps stay alike.", default=1.0)
    limit: int | None = key(_count, "Send only this many requests, the first ones.", default=None)
    concurrency: int | None = key(
        _count,
        "Closed loop: this many clients, each sending when its last answer has come.",
        default=None,
    )
    think_time_s: float = key(
        _pause_s,
        "Pause of a client of the closed loop between answer and next request.",
        default=0.0,
    )
    max_tokens: MaxTokensRule = key(
        _max_tokens,
        "Limit that requests carry: the trace's column, the true length, the model's length, N, or F x true length.",
        default=None,
    )
    abort_after_s: float | None = key(
        _limit_s,
        "A client goes away when it has waited this long for its whole answer.",
        default=None,
    )
    over_length: OverLength = key(
        choice("cut", "reject"),
        "A request that fits but whose answer would exceed max_model_len: cut the answer there, or refuse it.",
        default="cut",
    )
    seed: int = key(
        _size,
        "Decides all random draws of the workload; policies with the same seed see the same requests.",
        default=0,
    )

    def _check_together(self) -> None:
        if self.trace is None and self.generator is None and self.profile is None:
            raise ConfigError(
                "workload: nothing to send; give a trace (--trace FILE), a profile (--profile NAME) or a generator"
            )
        for other in ("generator", "profile"):
            if self.trace is not None and getattr(self, other) is not None:
                raise ConfigError(f"workload: trace and {other} are both given; leave one out")
        source = "a trace" if self.trace is not None else f"generator = '{self.generator}'"
        if self.profile is not None:
            source = f"profile = '{self.profile}'" + (f" with {source}" if self.generator else "")
        needed, unused = _keys_of_source(self)
        for name in needed:
            if getattr(self, name) is None:
                raise ConfigError(f"workload.{name} is missing: {source} needs it")
        for name in unused:
            if getattr(self, name) != self._keys[name].default:
                value = self.to_dict()[name]
                instead = f"; to replay the first rows: workload.limit = {value}" if name == "num_requests" else ""
                raise impossible(f"workload.{name}", value, f"{source} has no use for it; leave it out{instead}")

    def to_dict(self) -> dict[str, object]:
        """Key and value of every key that has one, length laws as tables."""
        return {
            name: law_table(value) if isinstance(value, LAWS) else value
            for name, value in super().to_dict().items()
        }


def _keys_of_source(config: WorkloadConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that this source cannot do without, and those it has no use for."""
    open_loop = () if config.concurrency else ("think_time_s",)
    if config.trace is not None:
        closed = ("rate_scale",) if config.concurrency else ()
        return (), ("rate_per_s", "cv", "num_requests", "prompt", "output", *open_loop, *closed)
    lengths: tuple[str, ...] = ("num_requests", "prompt", "output")
    if config.profile is not None:
        no_lengths = ("prompt", "output")
        if config.generator is None:
            return (), ("cv", *no_lengths, *open_loop, *(("rate_per_s", "rate_scale") if config.concurrency else ()))
        needed, unused = _keys_of_generator(config.generator)
        return needed, (*unused, *no_lengths)
    needed, unused = _keys_of_generator(str(config.generator))
    return (*needed, *lengths), unused


def _keys_of_generator(generator: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that arrivals of this kind cannot do without, and those they have no use for."""
    if generator == "closed-loop":
        return ("concurrency",), ("rate_per_s", "cv", "rate_scale")
    if generator == "gamma":
        return ("rate_per_s", "cv"), ("concurrency", "think_time_s")
    return ("rate_per_s",), ("cv", "concurrency", "think_time_s")


class EngineConfig(OrderingKeys, SystemKeys):
    """The scheduler: a preset, and what differs from it."""

    _table = "engine"

    preset: str = key(
        text,
        "Named real system and version with its defaults; see 'batchscope policies list'.",
        default="vllm-0.11",
    )
    policy: str | None = key(
        text,
        "A scheduler of your own, FILE.py:CLASS, with parameters and memory of the preset; or a preset.",
        default=None,
    )
    vllm_args: str | None = key(
        text,
        "vLLM's own command line, as in '--max-num-seqs 128': sets what the other keys leave open.",
        default=None,
    )
    faithful: bool = key(
        boolean,
        "Reproduce where the real engine dies, hangs or refuses, instead of going on.",
        default=False,
    )
    max_num_seqs: int | None = key(_count, "Most requests in a step.", default=None)
    max_num_batched_tokens: int | None = key(
        _count,
        "Most tokens in a step, prompts and decodes together.",
        default=None,
    )
    max_model_len: int | None = key(
        _count,
        "Most tokens of a request, prompt and answer; at most the model's own length.",
        default=None,
    )
    block_size: int | None = key(_count, "Tokens in a KV block.", default=None)
    num_gpu_blocks: int | None = key(_count, "KV blocks on the card, in place of what its memory holds.", default=None)
    gpu_memory_utilization: float | None = key(
        number(above=0, at_most=1),
        "Share of memory for weights, activations and KV blocks (0.9); the blocks take what is left.",
        default=None,
    )
    swap_space_bytes: int | None = key(whole(0, at_most=1 << 42), "CPU memory for swapped blocks.", default=None)
    preemption_mode: Literal["recompute", "swap", "auto"] | None = key(
        choice("recompute", "swap", "auto"),
        "What happens to the KV blocks of a preempted request.",
        default=None,
    )
    watermark: float | None = key(
        number(at_least=0, below=1),
        "Share of the blocks that admission leaves free.",
        default=None,
    )
    enable_chunked_prefill: bool | None = key(
        boolean,
        "Prefill long prompts in pieces, along with decodes.",
        default=None,
    )
    enable_prefix_caching: bool | None = key(
        boolean,
        "Keep blocks of finished prompts for requests that begin alike.",
        default=None,
    )
    long_prefill_token_threshold: int | None = key(
        _size,
        "Most prompt tokens of one request in a step; 0 sets no limit.",
        default=None,
    )
    scheduler_reserve_full_isl: bool | None = key(
        boolean,
        "Admit a request only if the blocks of its whole prompt are free, not those of a chunk.",
        default=None,
    )
    max_paddings: int | None = key(_size, "Most padding tokens in a prefill step (vLLM 0.2).", default=None)
    low_chunk_size: int | None = key(_size, "Smallest chunk of dynamic chunks (Sarathi-Serve).", default=None)
    chunk_schedule_max_tokens: int | None = key(
        _size,
        "Prompt tokens over which dynamic chunks shrink (Sarathi-Serve).",
        default=None,
    )
    chunk_schedule_stages: int | None = key(
        whole(0, at_most=65_536),
        "Number of chunk sizes of dynamic chunks; 0 keeps one size (Sarathi-Serve).",
        default=None,
    )
    batch_wait_timeout_s: float | None = key(
        _pause_s,
        "How long a batch waits to fill (Ray Serve, Triton).",
        default=None,
    )
    scheduling: str | None = key(
        text,
        "Order of the waiting queue of presets that offer several, such as fcfs or lpm (SGLang).",
        default=None,
    )
    chunked_prefill_size: int | None = key(
        _size,
        "Most prompt tokens in a step; 0 does not cut prompts (SGLang).",
        default=None,
    )
    schedule_conservativeness: float | None = key(
        number(at_least=0),
        "Scales the share of future tokens that admission reserves (SGLang).",
        default=None,
    )
    enable_mixed_chunk: bool | None = key(
        boolean,
        "Let decodes ride along with chunks of prompts (SGLang).",
        default=None,
    )
    ignore_eos: bool | None = key(
        boolean,
        "Answers run to max_tokens, which makes admission exact (SGLang).",
        default=None,
    )
    preferred_batch_sizes: str | None = key(text, "Batch sizes that go at once, as in '4,8' (Triton).", default=None)

    def _check_together(self) -> None:
        if self.num_gpu_blocks is not None and self.gpu_memory_utilization is not None:
            raise ConfigError(
                "engine: num_gpu_blocks and gpu_memory_utilization both set the size of the KV pool; leave one out"
            )


class ModelConfig(Section):
    """The model, by its name in the catalog or by the ``config.json`` of its checkpoint, which then takes the place of
    the name."""

    _table = "model"

    name: str = key(text, "Model of the catalog; see 'batchscope hardware list'.", default="llama-2-7b")
    config: str | None = key(text, "config.json of a Hugging Face checkpoint, in place of the name.", default=None)
    weight_bits: int = key(_bits, "Bits of a weight of the layers' matrices.", default=16)
    kv_bits: int = key(_bits, "Bits of an element of K and V.", default=16)


class HardwareConfig(Section):
    """The card, by its name in the catalog, how many of them share a model, and how their times are known.

    Absent, ``cost_model`` is the shipped cost file where there is one, else the roofline.
    """

    _table = "hardware"
    _refused: ClassVar[Mapping[str, str]] = {
        "pp": "pipeline stages are not simulated yet; leave it out, or split the model with hardware.tp"
    }

    name: str = key(text, "Card of the catalog; see 'batchscope hardware list'.", default="a100-80gb")
    tp: int = key(whole(1, at_most=64), "GPUs of a tensor-parallel group, each with its part of the model.", default=1)
    cost_model: str | None = key(text, "calibrated, roofline, or the path of a cost file.", default=None)
    all_reduce: Literal["nccl", "custom"] = key(
        choice("nccl", "custom"), "Communication of a group: NCCL's, or vLLM's own for small messages.", default="nccl"
    )
    host_term: bool = key(boolean, "Add the preset's host time to steps, where it has been measured.", default=True)
    swap_bytes_per_s: float | None = key(
        number(above=0, unit="bytes/s"), "Rate of bulk copies between card and host, one way.", default=None
    )
    swap_copy_s: float | None = key(
        number(at_least=0, unit="seconds"), "Least time of one copy to or from the host.", default=None
    )
    swap_layout: Literal["layers", "block"] = key(
        choice("layers", "block"), "A KV block is copied as K and V of each layer apart, or at once.", default="layers"
    )


class SimConfig(Section):
    """How the simulation runs. ``skip_ahead = false`` steps through every step, to the same record. Absent: presets
    jump, and a class from a file is stepped through, which alone can check what its ``horizon`` promises."""

    _table = "sim"

    skip_ahead: bool | None = key(
        boolean,
        "Jump over steps in which nothing changes, to the same record; if absent, presets do, your own classes do not.",
        default=None,
    )
    record: Literal["requests", "steps", "tokens", "decisions"] = key(
        choice(*RECORDS),
        "What the folder keeps: requests; steps too; token times too; or every decision, which also steps.",
        default="requests",
    )
    max_time_s: float | None = key(
        _limit_s,
        "End the run at this simulated time; requests under way count as unfinished.",
        default=None,
    )


class SloConfig(Section):
    """Latency limits of every request, in seconds; absent is no limit."""

    _table = "slo"

    ttft_s: float | None = key(_limit_s, "Most time to the first token.", default=None)
    itl_s: float | None = key(_limit_s, "Most mean time between tokens of a request.", default=None)
    tpot_s: float | None = key(_limit_s, "Most time per output token after the first.", default=None)
    e2e_s: float | None = key(_limit_s, "Most time to the last token.", default=None)
