"""Keys of [engine] that schedulers from the literature have: predictor, ageing, eviction, targets, fairness, levels."""

from __future__ import annotations

from typing import Literal

from sim.config_keys import Section, boolean, choice, key, number, whole

_target_s = number(above=0, at_most=1e9, unit="seconds")
_weight = number(at_least=0, at_most=1e9)
_steps = whole(1, at_most=1 << 31)


class OrderingKeys(Section):
    """Keys of presets that serve requests in another order than that of their arrival."""

    _table = "engine"

    ageing_per_s: float | None = key(
        _weight, "Levels (priority) or tokens (sjf, srtf) that a second of waiting is worth.", default=None
    )
    length_predictor: Literal["oracle", "max_tokens"] | None = key(
        choice("oracle", "max_tokens"), "What predicts answer lengths: the truth, or the user's limit.", default=None
    )
    predictor_sigma: float | None = key(
        number(at_least=0, at_most=10),
        "Predicted lengths are off by a factor exp(sigma x a standard normal variate); 0 is no error.",
        default=None,
    )
    predictor_seed: int | None = key(whole(0), "Decides the errors of the predictor, request by request.", default=None)
    evict_running: bool | None = key(
        boolean, "Let a waiting request take the place of later ones in the batch.", default=None
    )
    preemption_cap: int | None = key(
        whole(0, at_most=1 << 31), "Most times that a request gives way to better ones; 0 sets no limit.", default=None
    )
    ttft_target_s: float | None = key(_target_s, "When a first token is due, where slo.ttft_s is absent.", default=None)
    tpot_target_s: float | None = key(
        _target_s, "How long after it each further one is due, where slo.tpot_s is absent.", default=None
    )
    w_in: float | None = key(_weight, "Service that a prompt token counts for (vtc).", default=None)
    w_out: float | None = key(_weight, "Service that an output token counts for (vtc).", default=None)
    num_levels: int | None = key(whole(1, at_most=64), "Queues, each with twice the quantum (fastserve).", default=None)
    quantum_steps: int | None = key(_steps, "Decode steps of the first queue's quantum (fastserve).", default=None)
    starvation_limit_steps: int | None = key(
        _steps, "Steps after which a request that waits goes to the first queue (fastserve).", default=None
    )
    proactive_swap: bool | None = key(
        boolean, "Move KV ahead of need and beside the steps, not when a step waits for it (fastserve).", default=None
    )
    qoe_horizon_s: float | None = key(_target_s, "How far the gain in QoE is looked ahead (andes).", default=None)
    replan_steps: int | None = key(_steps, "Steps from one choice of the batch to the next (andes).", default=None)
