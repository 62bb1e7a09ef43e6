"""What the record of a run says about where the time of its requests went, in figures."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from policies.core.errors import UserError
from sim.report.charts import Floats
from sim.report.view import RunView
from traces.metrics.digest import Digest

_FULL = 0.98
"""Share of the KV pool above which it counts as full: some engines keep a last block, or a watermark, free."""


class GapCause(NamedTuple):
    """Gaps between tokens of one cause: how many, their share of all time between tokens, median and p99."""

    num_gaps: int
    share: float
    p50_s: float
    p99_s: float


class Evidence(NamedTuple):
    """Figures of one run. Shares are in 0..1.

    ``life`` divides all the time that requests spent in the system: ``host`` and ``link`` (the step they waited for or
    ran in was busy with the host or the swap link), ``wait.CAUSE`` (the rest of their time in the queue, by what kept
    further requests out, the values of ``limited_by``; ``wait.step``: until the step ended in which they came),
    ``swapped``, ``prefill`` (gaps between tokens beyond those of plain decode steps, because a prompt was computed in
    between) and ``work`` (the engine computed them, and nothing named here slowed it).

    ``busy`` is the share of the run in which steps ran; ``host``, ``link`` and ``prompts`` are the shares of the steps'
    time that the host, the swap link, and steps that read prompts take. ``starved``: the engine died or requests failed
    while the KV pool was full. ``within`` are the shares of the requests that meet each limit of [slo], ``attainment``
    that which meets all of them.
    """

    life: dict[str, float]
    limited_by: dict[str, float]
    busy: float
    host: float
    link: float
    prompts: float
    gaps: dict[str, GapCause]
    occupancy: float
    kv_mean: float
    kv_max: float
    kv_empty: float
    slot_waste: float
    preemptions: int
    recomputed: float
    moved_bytes: int
    served: float
    starved: bool
    keeps_up: bool | None
    queue_slope_per_s: float
    attainment: float | None
    within: dict[str, float]
    of_bound: float | None

    @property
    def waiting(self) -> float:
        """Share of the requests' time in the queue, less that of host and link."""
        return sum(share for name, share in self.life.items() if name.startswith("wait."))


def evidence(view: RunView) -> Evidence:
    """The figures of a run. Raises a UserError for a run without steps, which has nothing to show."""
    digest, summary = view.digest, view.summary
    if digest is None or not len(digest.middle_s) or not float(digest.total("step_s").sum()):
        raise UserError(f"{view.folder or view.label}: no step ran in it, so that nothing limited it")
    kv, steps = summary["kv"], summary["steps"]
    preempted, verdict = summary["preemptions"], summary.get("stability", {})
    step_s = float(digest.total("step_s").sum())
    rates = summary["throughput"]
    made, bound = rates.get("output_tokens_per_s"), rates.get("bound_output_tokens_per_s")
    tokens = rates.get("total_tokens_per_s", 0.0) * summary["duration_s"]
    return Evidence(
        life=_life(digest),
        limited_by=dict(summary["limited_by"]),
        busy=min(step_s / summary["duration_s"], 1.0) if summary["duration_s"] > 0 else 1.0,
        host=_of_steps(digest, "host"),
        link=_of_steps(digest, "swap"),
        prompts=digest.kinds["prefill"]["time_s"] / step_s,
        gaps=_gaps(digest),
        occupancy=steps.get("occupancy_mean", 0.0),
        kv_mean=kv.get("utilization_mean", 0.0),
        kv_max=kv.get("utilization_max", 0.0),
        kv_empty=kv.get("fragmentation_mean", 0.0),
        slot_waste=steps.get("slot_waste", 0.0),
        preemptions=preempted["recompute"] + preempted["swap"],
        recomputed=preempted["recomputed_tokens"] / tokens if tokens else 0.0,
        moved_bytes=preempted["swapped_out_bytes"] + preempted["swapped_in_bytes"],
        served=_served(summary),
        starved=_starved(summary),
        keeps_up=view.keeps_up,
        queue_slope_per_s=verdict.get("queue_slope_per_s", 0.0),
        attainment=summary.get("goodput", {}).get("attainment"),
        within=dict(summary.get("goodput", {}).get("within", {})),
        of_bound=made / bound if made and bound else None,
    )


def _served(summary: dict[str, Any]) -> float:
    """Share of the requests that got their whole answer, without those under way when a run was ended on purpose, and
    those that the model's length refuses."""
    counts = summary["requests"]
    left_out = sum(counts.get("reasons", {}).get(reason, 0) for reason in ("prompt_too_long", "over_length"))
    left_out += counts["unfinished"] if summary["status"] == "completed" else 0
    wanted = counts["offered"] - left_out
    return float(counts["finished"] / wanted) if wanted else 1.0


def _starved(summary: dict[str, Any]) -> bool:
    lost = summary["status"] in ("engine_died", "stuck") or summary["requests"]["failed"] > 0
    return bool(lost and summary["kv"].get("utilization_max", 0.0) >= _FULL)


def _of_steps(digest: Digest, term: str) -> float:
    step_s = float(digest.total("step_s").sum())
    return min(float(digest.total(f"term.{term}").sum()) / step_s, 1.0) if term in digest.terms else 0.0


def _life(digest: Digest) -> dict[str, float]:
    """The parts of the requests' time, as ``Evidence.life``, largest first; they sum to 1."""
    waiting, running, swapped = (digest.mean(level) * digest.width_s for level in ("waiting", "running", "swapped"))
    inside = waiting + running + swapped
    step_s = np.maximum(digest.total("step_s"), 1e-300)
    parts, rest = {}, np.ones(len(inside))
    for name, term in (("host", "host"), ("link", "swap")):
        if term in digest.terms:
            share = np.minimum(digest.total(f"term.{term}") / step_s, rest)
            parts[name] = float((inside * share).sum())
            rest = rest - share
    for cause, time_s in _waiting_by_cause(digest, waiting).items():
        parts[f"wait.{cause}"] = float((time_s * rest).sum())
    parts["swapped"] = float((swapped * rest).sum())
    computed_s = float((running * rest).sum())
    parts["prefill"] = min(_beside_prompts_s(digest), computed_s)
    parts["work"] = computed_s - parts["prefill"]
    total_s = max(float(inside.sum()), 1e-300)
    shares = {name: time_s / total_s for name, time_s in parts.items() if time_s > 0.0}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _beside_prompts_s(digest: Digest) -> float:
    """Time between tokens with a prompt in between, beyond as many plain decode steps."""
    if "prefill" not in digest.gaps or "decode" not in digest.gaps:
        return 0.0
    gaps = digest.gaps["prefill"]
    return max(gaps.total_s - gaps.n * digest.gaps["decode"].quantile(0.5), 0.0)


def _waiting_by_cause(digest: Digest, waiting: Floats) -> dict[str, Floats]:
    """The time in the queue of each bin, by what kept requests out during it: the busy time of the bin is shared among
    the causes other than ``arrivals``, under which nobody waits."""
    limits = {cause: time_s for cause, time_s in digest.limited_by().items() if cause != "arrivals"}
    held_s = sum(limits.values(), np.zeros(len(waiting)))
    known = held_s > 0.0
    whole = np.where(known, held_s, 1.0)
    by_cause = {cause: np.where(known, waiting * time_s / whole, 0.0) for cause, time_s in limits.items()}
    # Who arrives during a step waits for its end, whatever comes then.
    by_cause["step"] = np.where(known, 0.0, waiting)
    return by_cause


def _gaps(digest: Digest) -> dict[str, GapCause]:
    total_s = sum(gaps.total_s for gaps in digest.gaps.values()) or 1.0
    return {
        cause: GapCause(gaps.n, gaps.total_s / total_s, gaps.quantile(0.5), gaps.quantile(0.99))
        for cause, gaps in digest.gaps.items()
        if gaps.n
    }
