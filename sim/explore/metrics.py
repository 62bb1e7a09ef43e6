"""The metrics that sweeps tabulate and limits name: one flat name each, with its unit at the end, as ``ttft_p99_s``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from policies.core.errors import ConfigError, closest
from sim.latencies import LATENCIES, STATISTICS
from sim.wording import digits, percent, seconds


class Metric(NamedTuple):
    """One number of a summary: where it lies there, what it is, and how a person reads it."""

    path: tuple[str, ...]
    about: str
    words: Callable[[float], str] = digits

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """Its value in a summary; None where that has no samples for it."""
        value: Any = summary
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


def _latencies() -> Iterable[tuple[str, Metric]]:
    for name, latency in LATENCIES.items():
        for statistic in STATISTICS:
            about = f"{latency.about}, {statistic}"
            yield f"{name.removesuffix('_s')}_{statistic}_s", Metric((name, statistic), about, seconds)


LATENCY_METRICS = dict(_latencies())
"""The statistics of latencies by name: what can be limited."""

METRICS: dict[str, Metric] = {
    **LATENCY_METRICS,
    "output_tokens_per_s": Metric(
        ("throughput", "output_tokens_per_s"), "output tokens a second, whole run"
    ),
    "total_tokens_per_s": Metric(
        ("throughput", "total_tokens_per_s"), "tokens of prompts and answers a second"
    ),
    "steady_output_tokens_per_s": Metric(
        ("throughput", "steady_output_tokens_per_s"), "output tokens a second, without start and end"
    ),
    "bound_output_tokens_per_s": Metric(
        ("throughput", "bound_output_tokens_per_s"), "hardware bound of output tokens a second"
    ),
    "requests_per_s": Metric(("throughput", "requests_per_s"), "requests finished a second"),
    "goodput_requests_per_s": Metric(
        ("goodput", "requests_per_s"), "requests a second within all limits of [slo]"
    ),
    "attainment": Metric(("goodput", "attainment"), "share of requests within all limits of [slo]", percent),
    "usd_per_million_output_tokens": Metric(
        ("cost", "usd_per_million_output_tokens"), "USD for a million output tokens"
    ),
    "usd_per_million_total_tokens": Metric(
        ("cost", "usd_per_million_total_tokens"), "USD for a million tokens of prompts and answers"
    ),
    "usd_per_request": Metric(("cost", "usd_per_request"), "USD for a finished request"),
    "offered": Metric(("requests", "offered"), "requests sent"),
    "finished": Metric(("requests", "finished"), "requests finished"),
    "rejected": Metric(("requests", "rejected"), "requests refused"),
    "aborted": Metric(("requests", "aborted"), "requests given up by their clients"),
    "failed": Metric(("requests", "failed"), "requests that the KV cache can never hold"),
    "unfinished": Metric(("requests", "unfinished"), "requests under way at the end"),
    "queue_slope_per_s": Metric(("stability", "queue_slope_per_s"), "requests that the queue gains a second"),
    "duration_s": Metric(("duration_s",), "first arrival to last completion", seconds),
    "kv_utilization_mean": Metric(("kv", "utilization_mean"), "KV cache in use, mean", percent),
    "kv_utilization_max": Metric(("kv", "utilization_max"), "KV cache in use, most", percent),
    "fragmentation_mean": Metric(("kv", "fragmentation_mean"), "KV cache reserved and empty, mean", percent),
    "prefix_hit_rate_new": Metric(
        ("kv", "prefix_hit_rate_new"), "prompt tokens of new requests found in the cache", percent
    ),
    "preemptions_recompute": Metric(("preemptions", "recompute"), "preemptions by recomputation"),
    "preemptions_swap": Metric(("preemptions", "swap"), "preemptions by swapping"),
    "recomputed_tokens": Metric(("preemptions", "recomputed_tokens"), "tokens computed again"),
    "steps": Metric(("steps", "count"), "steps of the engine"),
    "rows_mean": Metric(("steps", "rows_mean"), "requests in a step, mean"),
    "occupancy_mean": Metric(("steps", "occupancy_mean"), "running requests over max_num_seqs, mean", percent),
    "slot_waste": Metric(("steps", "slot_waste"), "slots of batches that did nothing", percent),
}
"""Every metric by name."""


def metric(name: str, where: str) -> Metric:
    """The metric of that name; raises ConfigError, which names ``where`` it was asked for."""
    known = METRICS.get(name)
    if known is None:
        raise ConfigError(
            f"{where}: '{name}' is no metric; 'batchscope sweep --metrics' lists all{closest(name, METRICS)}"
        )
    return known


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """All metrics that a summary has, by name."""
    found = ((name, one.of(summary)) for name, one in METRICS.items())
    return {name: value for name, value in found if value is not None}
