"""``diagnose``: what limits a run, the risk of running out of memory, and what helps, proven by simulating it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.core.errors import UserError
from sim.api import Setup, prepare, run_setup
from sim.config import RunConfig, config_from_tables, load_config
from sim.config_toml import read_toml
from sim.explore.diagnose_advice import KINDS, Advice, advice_for
from sim.explore.diagnose_cause import HEALTHY, Verdict, budget_is_small, find_cause
from sim.explore.diagnose_effects import sample_of
from sim.explore.diagnose_evidence import Evidence, evidence
from sim.explore.diagnose_memory import MemoryRisk, memory_risk
from sim.explore.diagnose_rerun import Reruns, Tried
from sim.report.view import RunView, load_view
from sim.result import Result
from traces.workload.source import source_identity

MOST_REQUESTS = 2_000
"""Advice is tried on the first requests of a run, no more than these unless told otherwise."""

LITTLE = 0.1
"""Advice that makes the metric better by a smaller share comes after dearer advice that does more."""

Progress = Callable[[int, int, Advice], None]
"""Called before each re-simulation: its number from 1, how many there are, and the advice."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found. ``tried`` is all advice, tried on ``requests`` requests: what helps first, of that the cheapest
    kind. In a notebook it shows itself; ``report(path)`` writes its page."""

    view: RunView
    evidence: Evidence
    verdict: Verdict
    memory: MemoryRisk
    tried: tuple[Tried, ...]
    requests: int
    notes: tuple[str, ...]

    @property
    def cause(self) -> str:
        """The name of what limits the run, one of ``sim.explore.diagnose_cause.CAUSES``."""
        return self.verdict.cause

    @property
    def is_healthy(self) -> bool:
        """Whether nothing but the load limits the run."""
        return self.cause == HEALTHY

    @property
    def metric(self) -> tuple[str, str]:
        """The metric that suffers from the cause, and its statistic; advice is ranked by it."""
        return self.verdict.metric

    def helpful(self) -> list[Tried]:
        """The advice that makes the metric better."""
        return [of for of in self.tried if helps(of, self.metric)]

    def to_dict(self) -> dict[str, Any]:
        """In JSON types."""
        from sim.explore.diagnose_text import as_dict

        return as_dict(self)

    @property
    def finding(self) -> list[str]:
        """What limits the run, what shows it, and what helps first, in sentences."""
        from sim.explore.diagnose_text import finding

        return finding(self)

    def report(self, path: str | Path) -> Path:
        """Write the page of the diagnosis; takes the place of an older page alone."""
        from sim.explore.diagnose_page import page
        from sim.report.document import write_html

        return write_html(path, page(self))

    def __str__(self) -> str:
        return " ".join(self.finding)

    def _repr_html_(self) -> str:
        from html import escape

        from sim.explore.diagnose_text import advice_table, life_table
        from sim.report.notebook import table_html

        tables = [table_html(life_table(self)), *([table_html(advice_table(self))] if self.tried else [])]
        return f"<div><p>{escape(str(self))}</p>{''.join(tables)}</div>"


def diagnose(
    run: RunConfig | Result | str | Path | Mapping[str, object],
    *,
    overrides: Sequence[str] = (),
    max_requests: int = MOST_REQUESTS,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose a run: a Result, the folder of a run, or a configuration (a RunConfig, the path of a RUN.toml, its
    tables), which is run first; ``overrides`` go over a path or tables.

    Advice is tried on the first ``max_requests`` requests. Raises a UserError where there is no run, its record is
    damaged, or no step ran in it.
    """
    config, view = _run_of(run, overrides)
    setup = prepare(config)
    figures = evidence(view)
    values = setup.parameters.values
    small = "max_num_batched_tokens" in values and budget_is_small(setup.costs, int(values["max_num_batched_tokens"]))
    verdict = find_cause(figures, budget_is_small=small)
    memory = memory_risk(setup, view.requests)
    requests = min(max_requests, setup.workload.num_requests)
    tried, drifted = _try_all(view, config, setup, verdict, requests, progress)
    notes = _notes(view, setup, requests, drifted)
    return Diagnosis(view, figures, verdict, memory, tried, requests, notes)


def helps(tried: Tried, metric: tuple[str, str]) -> bool:
    """Whether a metric is better for it, beyond chance, and no answers are lost."""
    return tried.effect(metric) == "better"


def _run_of(
    run: RunConfig | Result | str | Path | Mapping[str, object], overrides: Sequence[str]
) -> tuple[RunConfig, RunView]:
    """The configuration of a run and its view; a configuration is run."""
    if isinstance(run, Result):
        view = run.view
    elif isinstance(run, str | Path) and Path(run).is_dir():
        view = load_view(run)
    else:
        config = run if isinstance(run, RunConfig) else load_config(_source(run), overrides)
        return config, _simulated(config)
    return _config_of(view), view


def _source(run: str | Path | Mapping[str, object]) -> str | Mapping[str, object]:
    return str(run) if isinstance(run, Path) else run


def _simulated(config: RunConfig) -> RunView:
    """Its view, every token's time recorded, as the runs need it that are compared with it."""
    result = run_setup(prepare(config._replace(sim=config.sim.replace(record="tokens"))), keep=True)
    if result.exit_code == 2:
        raise UserError(result.message)
    return result.view


def _config_of(view: RunView) -> RunConfig:
    """The configuration that a run was made with."""
    if view.folder is None:
        import tomllib

        return config_from_tables(tomllib.loads(view.toml))
    tables: Any = read_toml(str(view.folder / "run.toml"))
    return config_from_tables(tables)


def _try_all(
    view: RunView,
    config: RunConfig,
    setup: Setup,
    verdict: Verdict,
    requests: int,
    progress: Progress | None,
) -> tuple[tuple[Tried, ...], bool]:
    """All advice against the cause, simulated and ranked, and whether the run itself comes out otherwise today: what is
    in a folder may be measured, or simulated by another version."""
    whole = requests >= len(view.requests)
    made_now = whole and view.folder is None and view.segments is not None
    reruns = Reruns(config, requests, sample_of([view]) if made_now else None)
    advices = advice_for(verdict.cause, setup)
    tried = []
    for number, advice in enumerate(advices, 1):
        if progress is not None:
            progress(number, len(advices), advice)
        tried.append(reruns.tried(advice))
    ranked = tuple(sorted(tried, key=lambda of: _rank(of, verdict.metric)))
    return ranked, whole and bool(tried) and _differs(view, reruns)


def _differs(view: RunView, reruns: Reruns) -> bool:
    """Whether the mean whole time of the requests is another one, by more than rounding."""
    before = float(view.values("e2e_s").mean()) if len(view.values("e2e_s")) else 0.0
    now = float(reruns.base().requests["e2e_s"].mean())
    return abs(now - before) > 1e-6 * max(abs(before), 1e-9)


def _rank(tried: Tried, metric: tuple[str, str]) -> tuple[int, int, float]:
    """What helps first, what helps by less than ``LITTLE`` after it, of both the cheapest kind, of that the largest
    effect; then what does nothing, what makes it worse, and what cannot be simulated."""
    change = tried.change(*metric)
    effect = tried.effect(metric)
    if change is None:
        return 4, 0, 0.0
    if effect == "better":
        return int(change.relative > -LITTLE), KINDS[tried.advice.kind], change.relative
    return {"none": 2, "worse": 3}[effect], 0, change.relative


def _notes(view: RunView, setup: Setup, requests: int, drifted: bool) -> tuple[str, ...]:
    """What a reader of the diagnosis must know."""
    notes = [str(note) for note in view.summary.get("notes", ())]
    identity = source_identity(setup.config.workload)
    if any(view.summary["config"].get(name, value) != value for name, value in identity.items()):
        notes.append("the file of the workload has changed since this run: advice is tried on what it holds now")
    offered = view.summary["requests"]["offered"]
    if requests < offered:
        notes.append(f"advice is tried on the first {requests:,} of {offered:,} requests")
    if drifted:
        why = "it was measured" if view.summary["side"] != "server-simulated" else "another version or file made it"
        notes.append(f"simulated again, this run comes out otherwise ({why}): advice is compared with the simulation")
    if view.keeps_up is False:
        notes.append("the run does not keep up: differences are those of a run of this length, longer ones have larger")
    if setup.costs.file.kind == "calibrated":
        notes.append("other bits of weights or KV are compared on the roofline: cost files know 16 bits alone")
    return tuple(dict.fromkeys(notes))
