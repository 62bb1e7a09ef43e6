"""Points that Optuna draws, generation by generation, and the study that other tools open.

The points of a generation depend on the results of all generations before it and on the seed, not on who finished
first: a sweep that is started again draws the same points, and finds those that have run in its journal.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sim.config_toml import toml_value
from sim.explore.point import Row
from sim.explore.space import Choices, Domain, Range, Settings, as_written
from sim.explore.sweepfile import SweepSpec
from sim.explore.workers import needed

STUDY_NAME = "study.db"
_POINT = "point"


class Search:
    """A search under way: ``generations()`` yields points to run, and takes what they gave through ``tell``."""

    def __init__(self, spec: SweepSpec, folder: Path | None) -> None:
        self._optuna: Any = needed("optuna", "sweep")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._spec = spec
        self._directions = [objective.direction for objective in spec.objectives]
        # Choices are texts to Optuna, which keeps no tables or lists; the value is looked up again.
        self._choices = {
            name: {toml_value(value): value for value in domain.values}
            for name, domain in spec.space.items()
            if isinstance(domain, Choices)
        }
        self._distributions = {name: self._distribution(name, domain) for name, domain in spec.space.items()}
        self._study = self._optuna.create_study(directions=self._directions, storage=None)
        self._trials: list[Any] = []
        self._told = 0
        self._stored = None if folder is None else self._store(folder)
        self._kept = set() if self._stored is None else {
            trial.user_attrs.get(_POINT) for trial in self._stored.get_trials(deepcopy=False)
        }  # fmt: skip

    def generations(self) -> Iterator[list[Settings]]:
        """Points of one generation after the other; the results of each are told before the next one is drawn."""
        total, batch = self._spec.num_points, self._spec.search.batch
        for first in range(0, total, batch):
            self._study.sampler = self._sampler(first)
            points = []
            for _ in range(min(batch, total - first)):
                trial = self._study.ask(self._distributions)
                self._trials.append(trial)
                points.append(self._settings(trial.params))
            yield points

    def tell(self, rows: Sequence[Sequence[Row]]) -> None:
        """What the points of the last generation gave, the runs of each together, in the order of the points."""
        states = self._optuna.trial.TrialState
        for runs in rows:
            trial, values = self._trials[self._told], self._values(runs)
            state = states.FAIL if values is None else states.COMPLETE
            self._study.tell(trial, values, state=state)
            if self._stored is not None and self._told not in self._kept:
                done = self._optuna.trial.create_trial(
                    state=state,
                    values=values,
                    params=trial.params,
                    distributions=self._distributions,
                    user_attrs={_POINT: self._told, **_notes(runs)},
                )
                self._stored.add_trial(done)
            self._told += 1

    def _values(self, runs: Sequence[Row]) -> list[float] | None:
        """The objectives, each the mean over the runs; None where a run has no such metric."""
        values = []
        for objective in self._spec.objectives:
            found = [row.metrics.get(objective.metric) for row in runs]
            known = [value for value in found if value is not None]
            if not found or len(known) < len(found):
                return None
            values.append(sum(known) / len(known))
        return values

    def _settings(self, params: dict[str, Any]) -> Settings:
        return {
            name: self._choices[name][params[name]] if name in self._choices else as_written(params[name])
            for name in self._spec.space
        }

    def _distribution(self, name: str, domain: Domain) -> Any:
        of = self._optuna.distributions
        if isinstance(domain, Range):
            kind = of.IntDistribution if domain.is_whole else of.FloatDistribution
            return kind(domain.low, domain.high, log=domain.log)
        return of.CategoricalDistribution(list(self._choices[name]))

    def _sampler(self, first: int) -> Any:
        """A new one for each generation, so that a search goes on where it was killed as if it had not been."""
        samplers, seed = self._optuna.samplers, self._spec.config.seed * 1_000_003 + first
        name = self._spec.search.sampler
        if name == "tpe":
            return samplers.TPESampler(seed=seed % 2**32, constant_liar=True)
        return (samplers.NSGAIISampler if name == "nsga2" else samplers.RandomSampler)(seed=seed % 2**32)

    def _store(self, folder: Path) -> Any:
        """The study of this search in the folder's data base; another search of the folder has another name."""
        config = self._spec.config
        what = f"{self._spec.space}{self._spec.objectives}{self._spec.search}{config.seed}/{config.repeats}"
        name = f"sweep-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
        study = self._optuna.create_study(
            storage=f"sqlite:///{(folder / STUDY_NAME).resolve()}",
            study_name=name,
            directions=self._directions,
            load_if_exists=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna may change this; the names are for its dashboard alone
            study.set_metric_names([objective.metric for objective in self._spec.objectives])
        return study


def _notes(runs: Sequence[Row]) -> dict[str, object]:
    """What the dashboard shows beside a trial."""
    messages = [row.message for row in runs if row.message]
    notes: dict[str, object] = {"status": runs[0].status, "stable": all(row.stable is not False for row in runs)}
    return {**notes, "message": messages[0]} if messages else notes
