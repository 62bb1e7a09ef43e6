"""``python -m calibrate.agreement`` (``make validate``): simulated against measured on the executor, on this CPU.

Each round executes every workload once. All steps of the calibration are timed before and after each run, and some once
more between its own steps, while its clock stands still: that tells how slow the machine was at each moment of it. One
cost file is then fitted to the timed steps alone, and each run is simulated with it on a machine of that pace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.agreement_figures import Compared, compare
from calibrate.agreement_pace import Pace
from calibrate.agreement_steps import DoneStep, SpeedWatch, step_errors
from calibrate.agreement_text import page, short_page
from calibrate.agreement_workloads import Case, Scale, cases, full_house
from calibrate.dates import today
from calibrate.execute import Machine, Options, open_machine, prepare_on, run_on
from calibrate.fit import fit_profile
from calibrate.marked import check_marks, replace
from calibrate.measure import Session
from calibrate.measure_points import Step
from gpu_backend.clock import RealClock
from policies.catalog import card
from policies.core.errors import UserError
from sim.api import Setup, prepare, run_setup
from sim.config import RunConfig, config_from_tables
from sim.decisions import compare_decisions
from sim.machine import swap_link
from sim.result import Result
from sim.runs import write_whole

SCHEMA = "batchscope-agreement/1"
_CARD = "cpu"


class Plan(NamedTuple):
    """How much is done: ``rounds`` of workloads of that ``scale``."""

    scale: Scale = Scale()
    rounds: int = 5


class Run(NamedTuple):
    """An executed run: its summary, its steps, and when which of the timed steps were timed between them."""

    summary: dict[str, Any]
    steps: list[DoneStep]
    watched_s: list[float]
    watched: slice


class Trial:
    """The model on its device, what was timed, and what was executed. ``tell`` hears how it goes."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], object]) -> None:
        self.plan, self._folder, self._tell = plan, folder, tell
        self._costs = folder / "costs.json"
        self._options = Options(device="cpu", dtype="float32")
        base = full_house(plan.scale)
        self.machine: Machine = open_machine(base, self._options)
        self.session = Session(self.machine, base, self._options)
        # Which steps are timed must not depend on how busy the machine is, so no budget chooses them.
        self.session.candidates = [point for point in self.session.candidates if point.level <= _level(point.step)]
        self.session.choose(float("inf"))
        full = run_on(self.machine, self._setup(base), self._options).summary
        self.cases = cases(plan.scale, full["throughput"]["requests_per_s"])
        self.runs: dict[str, list[Run]] = {case.name: [] for case in self.cases}

    def play(self) -> None:
        """All rounds."""
        for number in range(self.plan.rounds):
            self.session.host_round()
            for case in self.cases:
                self.session.round()
                self.runs[case.name].append(self._run(case.config))
                run = self.runs[case.name][-1]
                self._tell(f"round {number + 1}, {case.name}: {run.summary['duration_s']:.2f} s")
            self._tell(f"{len(self.session.steps)} kinds of steps timed, {self.session.rounds} times")
        self.session.round()
        self.fit()

    def _run(self, config: RunConfig) -> Run:
        clock, first = RealClock(), self.session.num_timed
        watch = SpeedWatch(self.session, clock)
        summary = run_on(self.machine, self._setup(config), self._options, observer=watch, clock=clock).summary
        return Run(summary, watch.steps, watch.watched_s, slice(first, self.session.num_timed))

    def fit(self) -> None:
        """Write the cost file: the terms of all timed steps."""
        profile = self.session.profile(_CARD)
        fitted = fit_profile(profile, self.machine.model.shape, card(_CARD), name="timed steps", date=today())
        write_whole(self._costs, json.dumps(fitted.cost_file))

    def pace(self, run: Run) -> Pace:
        """How slow the machine was during a run, over how slow it mostly was."""
        return Pace(run.watched_s, self.session.slowness(run.watched))

    def simulate(self, config: RunConfig, pace: Pace | None = None, out: Path | None = None) -> tuple[Setup, Result]:
        """The same workload with the fitted costs, on a machine of that pace."""
        tables = self._setup(config).config.to_dict()
        tables["hardware"]["cost_model"] = str(self._costs)
        setup = prepare(config_from_tables(tables))
        return setup, run_setup(setup, out=out, pace=pace)

    def decides_alike(self, case: Case) -> str:
        """Both worlds' decisions, compared step by step: empty where none differs, else the first that does."""
        tables = case.config.to_dict()
        tables["sim"]["record"] = "decisions"
        config = config_from_tables(tables)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            real, simulated = Path(name) / "real", Path(name) / "simulated"
            run_on(self.machine, self._setup(config), self._options, out=real)
            self.simulate(config, out=simulated)
            found = compare_decisions(real, simulated, ("executed", "simulated"))
        return found.difference or ""

    def _setup(self, config: RunConfig) -> Setup:
        return prepare_on(self.machine, config)


def agreement(plan: Plan, folder: Path, tell: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
    """Play the rounds, simulate, and compare; what was found, JSON-ready. ``folder`` keeps the cost file."""
    trial = Trial(plan, folder, tell)
    trial.play()
    found = []
    for case in trial.cases:
        runs = trial.runs[case.name]
        paces = [trial.pace(run) for run in runs]
        simulated = [trial.simulate(case.config, pace) for pace in paces]
        setup = simulated[0][0]
        link = swap_link(setup.config, setup.shape, setup.policy.kv.block_size)
        compared = compare([run.summary for run in runs], [result.summary for _, result in simulated])
        differs = trial.decides_alike(case) if case.timeless else None
        found.append(
            {
                "name": case.name,
                "what": case.what,
                "figures": [one.to_dict() for one in compared],
                "runs_s": [run.summary["duration_s"] for run in runs],
                "simulated_s": [result.summary["duration_s"] for _, result in simulated],
                "pace": [pace.mean for pace in paces],
                "steps": step_errors(
                    [(run.steps, pace) for run, pace in zip(runs, paces, strict=True)], setup.costs, link
                ),
                "first_differing_decision": differs,
                "holds": _holds(compared) and not differs,
            }
        )
    return {
        "schema": SCHEMA,
        "date": today(),
        "device": trial.machine.name,
        "model": plan.scale.model,
        "dtype": "float32",
        "plan": {**plan._asdict(), "scale": plan.scale._asdict()},
        "calibration_rounds": trial.session.rounds,
        "calibration_steps": len(trial.session.steps),
        "workloads": found,
        "holds": all(case["holds"] for case in found),
    }


def _level(step: Step) -> int:
    """How fine the points are: all sizes of steps without attention, on which all else rests, and every second else."""
    return 2 if step.bare else 1


def _holds(compared: Sequence[Compared]) -> bool:
    return all(one.holds for one in compared)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m calibrate.agreement", description=__doc__)
    usual, scale = Plan(), Scale()
    parser.add_argument("--model", default=scale.model, help="shape of the catalog [15m]")
    parser.add_argument("--requests", type=int, default=scale.num_requests, help="of each workload")
    parser.add_argument("--seqs", type=int, default=scale.max_num_seqs, help="most requests of a step")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/agreement"), help="gets agreement.json and costs.json")
    parser.add_argument("--pages", type=Path, help="folder whose README.md and docs get the tables of this run")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run, write, and print the table; 1 where a figure is beyond its limit, 2 for what cannot be run."""
    options = _arguments(words)
    scale = Scale(options.model, options.seqs, num_requests=options.requests)
    plan = Plan(scale, options.rounds)
    try:
        for name in ("rounds", "threads"):
            if getattr(options, name) < 1:
                raise UserError(f"--{name} {getattr(options, name)}: give a whole number of at least 1")
        pages, mark = _pages(options.pages), f"agreement {options.model}"
        for path in pages:
            check_marks(path, mark)
        _fix_threads(options.threads)
        options.out.mkdir(parents=True, exist_ok=True)
        found = agreement(plan, options.out, lambda text: print(text, file=sys.stderr, flush=True))
        write_whole(options.out / "agreement.json", json.dumps(found, indent=1, allow_nan=False))
        print(f"{short_page(found)}\n\n{page(found)}")
        for path, text in zip(pages, (short_page(found), page(found)), strict=False):
            replace(path, mark, text)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if found["holds"] else 1


def _pages(folder: Path | None) -> list[Path]:
    """Those that get the short and the whole table."""
    return [] if folder is None else [folder / "README.md", folder / "docs" / "validate-executor.md"]


def _fix_threads(threads: int) -> None:
    """That many threads of torch, on that many processors, where the system lets one choose."""
    from gpu_backend.extras import require

    require("torch", "safetensors", extra="gpu")
    import torch

    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


if __name__ == "__main__":
    sys.exit(main())
