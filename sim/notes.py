"""What the reader of a result must know: assumptions before a run, and what cut it short or its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from traces.workload.source import EXACT_LIMITS

if TYPE_CHECKING:
    from policies.presets import Parameters
    from sim.api import Setup
    from sim.costs.model import CostModel
    from traces.metrics.accumulate import RunMetrics
    from traces.workload.source import Workload

NO_HOST_TERM = "no host term: CPU time that real servers add to every step is left out; TTFT and ITL are lower bounds"

_BAND = "its times were {p5:.2f} to {p95:.2f} of those measured in 90 % of {runs} published runs"


def setup_notes(
    parameters: Parameters, workload: Workload, costs: CostModel, remarks: Sequence[str] = ()
) -> tuple[str, ...]:
    """Notes on what is going to run, after ``remarks`` on its configuration."""
    host = () if costs.host.at(1) else (NO_HOST_TERM,)
    return (*remarks, *workload_notes(parameters, workload), *_roofline_note(costs), *host)


def workload_notes(parameters: Parameters, workload: Workload) -> tuple[str, ...]:
    """Notes on the requests, as far as they matter to these policies."""
    reads_limits = _reads_limits(parameters)
    return tuple(note for note in workload.notices if reads_limits or not note.endswith(EXACT_LIMITS))


def _roofline_note(costs: CostModel) -> tuple[str, ...]:
    band = costs.file.band
    if band is None:
        return ()
    group = f"{costs.shape.name} on {group_name(costs.card.name, costs.shape.tp)}"
    return (
        f"cost model: roofline, not calibrated on {group}; {_BAND.format_map(band)}",
    )


def group_name(card: str, tp: int) -> str:
    """``2 x CARD`` for a group of GPUs, else the card."""
    return card if tp == 1 else f"{tp} x {card}"


def _reads_limits(parameters: Parameters) -> bool:
    """Whether decisions may depend on the limits of requests: Orca's reservations by length, SGLang's admission,
    Vidur's door, and whatever a class of the user's does. Slots and blocks elsewhere do not look at them."""
    preset = parameters.preset
    return parameters.custom is not None or preset.blocks in ("token", "radix") or preset.system == "Vidur"


class Ended(Protocol):
    """How a run ended, in either world."""

    @property
    def status(self) -> str:
        """As in the summary."""

    @property
    def offered(self) -> int:
        """Requests that were sent."""


def run_notes(setup: Setup, outcome: Ended, metrics: RunMetrics) -> tuple[str, ...]:
    """Notes on what became of the requests."""
    notes = []
    sim, workload = setup.config.sim, setup.workload
    unsent = workload.num_requests - outcome.offered
    if sim.max_time_s is not None and outcome.status == "completed" and unsent > 0:
        notes.append(
            f"sim.max_time_s = {sim.max_time_s:g} ended the run: {unsent:,} of {workload.num_requests:,} requests were "
            "never sent"
        )
    cut = metrics.reasons.get("length", 0)
    if cut:
        at = f"max_model_len = {setup.parameters.max_model_len:,}"
        if not _limits_are_lengths(setup):
            at = f"their max_tokens or at {at}"
        notes.append(f"{cut:,} {'answer was' if cut == 1 else 'answers were'} cut at {at} (reason length)")
    return tuple(notes)


def unserved(setup: Setup, metrics: RunMetrics) -> str:
    """Says so where every request was refused or did not fit; else ""."""
    counts, kv = metrics.counts, setup.policy.kv
    if not metrics.offered or counts["rejected"] + counts["failed"] < metrics.offered:
        return ""
    reasons = ", ".join(f"{name} {count:,}" for name, count in metrics.reasons.items())
    length, tokens = setup.parameters.max_model_len, kv.num_blocks * kv.block_size
    return (
        f"no request at all could be served ({reasons}); give requests that fit engine.max_model_len = {length} "
        f"and a KV pool of {tokens:,} tokens, or raise these"
    )


def _limits_are_lengths(setup: Setup) -> bool:
    """Whether no limit is below the length that its answer would have, so that only the model's length cuts."""
    rule = setup.workload.max_tokens_rule
    return rule in ("output", "model") or (rule is None and setup.config.workload.trace is None)
