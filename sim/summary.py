"""``summary.json``: the one description of a run that everything else reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from traces.metrics.accumulate import RunMetrics, Throughput
from traces.metrics.groups import Group, Grouping

SCHEMA = 1
MIN_STEADY_COMPLETIONS = 20
"""Fewer in the window of the steady throughput say nothing about it."""
VERSION = "0.1.0"
"""Of batchscope; pyproject.toml says the same. Asking the installed distribution would cost every run 20 ms."""


@dataclass(frozen=True)
class CostModelFacts:
    """Which cost model timed the steps; ``error`` is its held-out error (None: not validated), and
    ``extrapolated_steps`` counts the steps outside its valid range, and ``extrapolated_share`` is the share of the
    steps beyond each limit: ``tokens``, ``sequences``, ``context`` (None: no steps). ``kind`` is ``calibrated`` or
    ``roofline``; ``band`` is the range of a roofline's times over measured ones."""

    name: str
    version: int
    kind: str | None = None
    band: Mapping[str, float] | None = None
    error: Mapping[str, float] | float | None = None
    extrapolated_steps: int = 0
    extrapolated_share: Mapping[str, float] | None = None


@dataclass(frozen=True)
class RunFacts:
    """What the record does not say about a run. ``config`` is the resolved configuration, in JSON types.

    ``plans`` are the plans after which decode-only steps followed, ``decode_only_steps`` those steps: their
    ratio is the mean length of a quiet run. A ``closed_loop`` has no rate that it could fail to keep up with, and so no
    stability verdict. ``usd_per_hour`` is the price of all cards together, None: unknown. ``notes`` are assumptions a
    reader must know.
    """

    preset: str
    policy: str
    model: str
    hardware: str
    config: Mapping[str, Any]
    num_gpu_blocks: int
    block_size: int
    cost_model: CostModelFacts
    cpu_s: float
    wall_s: float
    delivery: str = "step"
    side: str = "server-simulated"
    status: str = "completed"
    closed_loop: bool = False
    prefix_caching: bool = False
    swap_exhausted: int = 0
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    decode_only_steps: int = 0
    plans: int = 0
    bound_output_tokens_per_s: float | None = None
    usd_per_hour: float | None = None
    notes: tuple[str, ...] = field(default=())


def build_summary(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    """The summary in JSON types: counts always, statistics without samples and blocks that do not apply
    never."""
    stable = None if facts.closed_loop else metrics.stability
    summary = {
        "schema": SCHEMA,
        "version": VERSION,
        **{name: getattr(facts, name) for name in ("side", "preset", "policy", "model", "hardware", "delivery")},
        "config": dict(facts.config),
        "status": facts.status,
        "notes": list(facts.notes) or None,
        "requests": {"offered": metrics.offered, **metrics.counts, "reasons": metrics.reasons},
        "stability": stable and {"stable": stable.stable, "queue_slope_per_s": stable.queue_slope_per_s},
        "duration_s": metrics.duration_s,
        "throughput": _throughput(facts, metrics),
        **{name: stats and stats._asdict() for name, stats in sorted(metrics.latencies.items())},
        "goodput": _goodput(metrics),
        "groups": {name: _grouping(groups) for name, groups in metrics.groups.items()} or None,
        "cost": cost(facts.usd_per_hour, metrics.duration_s, metrics.throughput, metrics.counts["finished"]),
        "kv": _kv(facts, metrics),
        "preemptions": _preemptions(facts, metrics),
        "steps": _steps(facts, metrics),
        "limited_by": metrics.steps.limited_by,
        "cost_model": _present(asdict(facts.cost_model)),
        "wall": _wall(facts, metrics),
    }
    return _present(summary)


def policy_name(summary: Mapping[str, Any]) -> str:
    """The preset's name, or that of the class that ran in its place."""
    policy: str = summary["policy"]
    return policy.rpartition(":")[2] if ":" in policy else str(summary["preset"])


def to_json(summary: Mapping[str, Any]) -> str:
    """The text of summary.json. Raises ValueError if a number is not finite."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"


def _throughput(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    rates = metrics.throughput
    names = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    is_steady = rates.steady_completions >= MIN_STEADY_COMPLETIONS
    return _present(
        {
            **{name: getattr(rates, name) for name in names},
            "steady_output_tokens_per_s": rates.steady_output_tokens_per_s if is_steady else None,
            "bound_output_tokens_per_s": facts.bound_output_tokens_per_s,
        }
    )


def _goodput(metrics: RunMetrics) -> dict[str, Any] | None:
    return _present(metrics.goodput._asdict()) if metrics.goodput else None


def _grouping(grouping: Grouping) -> dict[str, Any]:
    return _present(
        {
            "jain_tokens": grouping.jain_tokens,
            "jain_speed": grouping.jain_speed,
            "left_out": grouping.left_out or None,
            "of": {name: _group(group) for name, group in grouping.groups.items()},
        }
    )


def _group(group: Group) -> dict[str, Any]:
    return _present(
        {
            "requests": {"offered": group.offered, **group.counts},
            "output_tokens_per_s": group.output_tokens_per_s,
            **{name: stats and stats._asdict() for name, stats in sorted(group.latencies.items())},
            "goodput": _present(group.goodput._asdict()) if group.goodput else None,
        }
    )


def cost(usd_per_hour: float | None, duration_s: float, made: Throughput, finished: int) -> dict[str, float] | None:
    """What the run cost, and of each million tokens and each finished request; None without a price. All of the time
    is paid, idle or not."""
    if usd_per_hour is None:
        return None
    usd = usd_per_hour * duration_s / 3600.0
    of = {
        "usd_per_million_output_tokens": made.output_tokens / 1e6,
        "usd_per_million_total_tokens": (made.output_tokens + made.prompt_tokens) / 1e6,
        "usd_per_request": finished,
    }
    return {"usd_per_hour": usd_per_hour, **{name: usd / number for name, number in of.items() if number}}


def _kv(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    steps = metrics.steps
    return _present(
        {
            "num_gpu_blocks": facts.num_gpu_blocks,
            "block_size": facts.block_size,
            "utilization_mean": steps.kv_utilization_mean,
            "utilization_max": steps.kv_utilization_max,
            "fragmentation_mean": steps.fragmentation_mean,
            "prefix_hit_rate_new": metrics.prefix_hit_rate_new if facts.prefix_caching else None,
            "prefix_hit_rate_resumed": metrics.prefix_hit_rate_resumed if facts.prefix_caching else None,
        }
    )


def _preemptions(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    counted = metrics.preemptions
    return {
        "recompute": counted.recompute,
        "swap": counted.swap,
        "swap_exhausted": facts.swap_exhausted,
        "recomputed_tokens": counted.recomputed_tokens,
        "swapped_out_bytes": facts.swapped_out_bytes,
        "swapped_in_bytes": facts.swapped_in_bytes,
    }


def _steps(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    steps = metrics.steps
    names = ("count", "rows_mean", "tokens_mean", "occupancy_mean", "slot_waste")
    quiet = facts.decode_only_steps / facts.plans if facts.plans else None
    return _present({**{name: getattr(steps, name) for name in names}, "quiet_run_mean": quiet})


def _wall(facts: RunFacts, metrics: RunMetrics) -> dict[str, Any]:
    rate = metrics.offered / facts.cpu_s if facts.cpu_s > 0.0 else None
    return _present({"cpu_s": facts.cpu_s, "wall_s": facts.wall_s, "requests_per_cpu_s": rate})


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
