"""Presets of schedulers from the literature: what they decide, on the engine, memory and defaults of vLLM 0.11.2."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import Preset, Rule, Value
from policies.preset_vllm_v1 import VLLM_V1

_SYSTEM = "vLLM V1 with another order"
_VLLM = VLLM_V1[0]
_ENGINE: Mapping[str, Value | Rule] = {
    key: value for key, value in _VLLM.defaults.items() if key != "long_prefill_token_threshold"
}
_PREDICTOR: Mapping[str, Value] = {"length_predictor": "oracle", "predictor_sigma": 0.0, "predictor_seed": 0}
_TARGETS: Mapping[str, Value] = {"ttft_target_s": 1.0, "tpot_target_s": 0.1}

_ON_VLLM = "engine, prompt chunks, prefix cache and memory of vLLM 0.11.2; all in the batch run in every step"
_NO_CACHE = "engine, prompt chunks and memory of vLLM 0.11.2 without prefix cache; all in the batch run in every step"
_VICTIM = "a running request without a block lets the last in order give way, computed again later"
_GUARDED = (
    "a request alone in the pool that cannot get its next block ends with kv_capacity",
    "so does one that even the empty pool cannot take",
)
_EVICTION = (
    "a waiting request takes the place of later ones in the batch that keep it out (evict_running), each at most"
    " preemption_cap times (0: no limit); it starts in the next step"
)
_PREDICTED = (
    "lengths are the true ones, or max_tokens (length_predictor), times exp(predictor_sigma x a standard normal variate"
    " of request and predictor_seed)"
)
_SLO_LIMITS = "limits are those of [slo], where it has none ttft_target_s and tpot_target_s"


def _ranked(
    name: str,
    version: str,
    source: str,
    summary: str,
    keys: Mapping[str, Value],
    *modelled: str,
    left_out: tuple[str, ...] = (),
) -> Preset:
    return Preset(
        name=name,
        system=_SYSTEM,
        version=version,
        source=source,
        summary=summary,
        policy="policies.systems.ranked_budget:RankedBudget",
        defaults=MappingProxyType({**_ENGINE, **keys}),
        fixed=MappingProxyType({"order": name}),
        null_block=True,
        checks_like_vllm=True,
        host=_VLLM.host,
        graphs=_VLLM.graphs,
        modelled=(_ON_VLLM, *modelled, _VICTIM, _EVICTION),
        left_out=(*left_out, "sampling and tokenization: no host term"),
        guarded=_GUARDED,
    )


def _own(
    name: str,
    version: str,
    source: str,
    summary: str,
    policy: str,
    defaults: Mapping[str, Value | Rule],
    *modelled: str,
    left_out: tuple[str, ...] = (),
) -> Preset:
    return Preset(
        name=name,
        system=_SYSTEM,
        version=version,
        source=source,
        summary=summary,
        policy=policy,
        defaults=MappingProxyType(defaults),
        null_block=True,
        checks_like_vllm=True,
        host=_VLLM.host,
        graphs=_VLLM.graphs,
        modelled=(_ON_VLLM if "enable_prefix_caching" in defaults else _NO_CACHE, *modelled),
        left_out=(*left_out, "sampling and tokenization: no host term"),
        guarded=_GUARDED,
    )


def _evicts(default: bool, cap: int = 0) -> Mapping[str, Value]:
    return {"evict_running": default, "preemption_cap": cap}


LITERATURE = (
    _ranked(
        "priority",
        "textbook",
        "static priorities with preemption and ageing, as in any textbook on operating systems",
        "most urgent request first; it evicts less urgent ones",
        {"ageing_per_s": 0.0, **_evicts(True)},
        "small priorities first, then by arrival; a second of waiting is worth ageing_per_s levels",
    ),
    _ranked(
        "sjf",
        "SSJF, 2024",
        "Qiu et al., Efficient Interactive LLM Serving with Proxy Model-based Sequence Length Prediction (2024)",
        "shortest predicted answer first",
        {"ageing_per_s": 0.0, **_PREDICTOR, **_evicts(False)},
        "fewest predicted output tokens first; a second of waiting is worth ageing_per_s tokens",
        _PREDICTED,
        left_out=("the time that prediction takes",),
    ),
    _ranked(
        "srtf",
        "TRAIL, 2024",
        "Shahout et al., Don't Stop Me Now: Embedding Based Scheduling for LLMs (2024)",
        "least predicted remaining answer first; it evicts longer ones",
        {"ageing_per_s": 0.0, **_PREDICTOR, **_evicts(True, 1)},
        "fewest predicted tokens still to come first; a second of waiting is worth ageing_per_s tokens",
        _PREDICTED,
        left_out=(
            "the time that prediction takes, and predictions that are renewed as the answer grows",
            "the paper spares a request from eviction after a share of its answer, here after preemption_cap times",
        ),
    ),
    _ranked(
        "edf",
        "EDF, 1973",
        "Liu and Layland, Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment (1973)",
        "earliest deadline of the next token first",
        {**_TARGETS, **_evicts(False)},
        "the first token is due at arrival + TTFT limit, each further one a TPOT limit later",
        _SLO_LIMITS,
    ),
    _ranked(
        "least-laxity",
        "LLF, 1983",
        "Mok, Fundamental Design Problems of Distributed Systems for the Hard-Real-Time Environment (1983)",
        "least time to spare before the next token must be begun first",
        {**_TARGETS, **_evicts(False)},
        "deadlines as of edf, less the time that the cost model says computing the request's tokens alone will take",
        _SLO_LIMITS,
    ),
    _own(
        "vtc",
        "VTC, OSDI 2024",
        "Sheng et al., Fairness in Serving Large Language Models (OSDI 2024)",
        "client with the least service first",
        "policies.systems.fair:VirtualTokenCounter",
        {**_ENGINE, "w_in": 1.0, "w_out": 2.0},
        "a counter a client: w_in a prompt token at admission, w_out a token made; the least is served next, its first"
        " request first",
        "a client that comes back starts at the least counter of those that wait, or of the last that left the queue",
        "a running request without a block lets the last of the running list go; what is computed again is not charged",
    ),
    _own(
        "fastserve",
        "FastServe, 2023",
        "Wu et al., Fast Distributed Inference Serving for Large Language Models (2023)",
        "multi-level feedback queue, preempts between steps, swaps ahead of need",
        "policies.systems.fastserve:FastServe",
        {
            **{key: value for key, value in _ENGINE.items() if key != "enable_prefix_caching"},
            "num_levels": 6,
            "quantum_steps": 16,
            "starvation_limit_steps": 2_000,
            "proactive_swap": True,
            "watermark": 0.02,
            "swap_space_bytes": 64 << 30,
        },
        "a request joins the first queue whose quantum covers its prompt, in lone decode steps of the cost model; goes"
        " down when it has used its quantum, and to the first queue when it has starved",
        "running requests of lower queues give way to better ones that they keep out; their KV goes to the CPU tier",
        "proactive_swap: transfers run beside the steps, and watermark of the blocks is kept free for new requests",
        left_out=(
            "preempted requests that stay on the GPU until memory is short",
            "pipeline parallel queues; quanta in seconds (here in steps)",
        ),
    ),
    _own(
        "andes",
        "Andes, 2024",
        "Liu et al., Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming Services (2024)",
        "batch of the requests that gain most quality of experience per KV block",
        "policies.systems.andes:Andes",
        {**_ENGINE, **_TARGETS, "qoe_horizon_s": 5.0, "replan_steps": 64, "preemption_cap": 1},
        "where the head of the queue does not fit, and then every replan_steps steps: greedy knapsack over all requests"
        " by gain in QoE over qoe_horizon_s per block; those that run and are not chosen are preempted by recompute",
        "a user expects the first token after the TTFT limit and one more every TPOT limit",
        _SLO_LIMITS,
        left_out=("batch sizes other than the present one; a client's own buffer and pacing",),
    ),
)
"""Schedulers from the literature, on vLLM V1's engine."""
