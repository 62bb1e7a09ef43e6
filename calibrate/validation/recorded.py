"""A recorded run against its simulation: the same requests, sent when they were sent, under a RUN.toml.

The mean, the median and the 99th percentile of TTFT, TPOT and E2E are compared. With ``fit_host`` the host's time of a
step, fixed and by sequence, and the front end's time of a request are fitted to these figures first; nothing else is.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import ConfigError
from sim.api import prepare, run_setup
from sim.config import RunConfig, config_from_tables
from sim.costs.model import CostModel
from sim.costs.terms import HostTerm
from traces.imports.served import Served, ServedRequest

FIGURES = ("ttft", "tpot", "e2e")
PLACES = ("mean", "p50", "p99")
_ROUNDS = 4


class Host(NamedTuple):
    """What is fitted: seconds of a step, of a sequence in it, and of a request before and after the engine has it."""

    base_s: float
    per_seq_s: float
    request_s: float = 0.0


class Line(NamedTuple):
    """One figure: seconds measured and simulated."""

    name: str
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated_s / self.measured_s - 1.0


class RunComparison(NamedTuple):
    """The lines, the host time that was used, and what the simulation says of itself."""

    lines: tuple[Line, ...]
    host: Host
    fitted: bool
    summary: Mapping[str, Any]
    requests: int


def compare_run(served: Served, tables: Mapping[str, Mapping[str, object]], *, fit_host: bool) -> RunComparison:
    """Simulate a recorded run under the tables of a RUN.toml, whose [workload] is replaced, and compare."""
    measured = _measured(served.requests)
    with tempfile.TemporaryDirectory() as folder:
        config = _config(served, tables, Path(folder) / "requests.csv")
        simulate = _simulator(config)
        host = _fit(simulate, measured) if fit_host else None
        found, summary, used = simulate(host)
    lines = tuple(Line(name, value, found[name]) for name, value in measured.items() if name in found)
    return RunComparison(lines, used, fit_host, summary, len(served.requests))


def _config(served: Served, tables: Mapping[str, Mapping[str, object]], path: Path) -> RunConfig:
    with path.open("x", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("arrival_s", "prompt_tokens", "output_tokens"))
        for number, request in enumerate(served.requests):
            sent_s = request.sent_s if served.has_times else _sent_anew(served, number)
            writer.writerow((repr(sent_s), request.prompt_tokens, request.output_tokens))
    workload: dict[str, object] = {"trace": str(path)}
    if not served.has_times and served.rate_per_s is None and served.concurrency is not None:
        workload["concurrency"] = served.concurrency
    return config_from_tables({**tables, "workload": workload})


def _sent_anew(served: Served, number: int) -> float:
    """Equal gaps at the rate of a file that does not say when requests were sent."""
    return number / served.rate_per_s if served.rate_per_s else 0.0


_Run = tuple[dict[str, float], Mapping[str, Any], Host]


def _simulator(config: RunConfig) -> Callable[[Host | None], _Run]:
    """Runs the configuration under a host time; None: the preset's own."""
    plain = prepare(config).costs

    def simulate(host: Host | None) -> _Run:
        used = Host(*plain.host) if host is None else host
        term = HostTerm(used.base_s, used.per_seq_s)
        costs = CostModel(
            plain.file, plain.shape, plain.card, term, graphs=plain.graphs, all_reduce=plain.all_reduce
        )
        result = run_setup(prepare(config, costs=costs))
        if result.status != "completed":
            raise ConfigError(f"--config: the simulated run ends as {result.status}: {result.message}")
        found = _simulated(result.summary)
        for name in found:
            found[name] += 0.0 if name.startswith("tpot") else used.request_s
        return found, result.summary, used

    return simulate


def _simulated(summary: Mapping[str, Any]) -> dict[str, float]:
    """Figures by name, ``ttft_p99``."""
    return {
        f"{figure}_{place}": float(summary[f"{figure}_s"][place])
        for figure in FIGURES
        for place in PLACES
        if summary.get(f"{figure}_s")
    }


def _measured(requests: Sequence[ServedRequest]) -> dict[str, float]:
    """The same of the recorded requests."""
    import numpy as np

    samples = {
        "ttft": [request.ttft_s for request in requests],
        "tpot": [request.tpot_s for request in requests if request.tpot_s is not None],
        "e2e": [request.e2e_s for request in requests],
    }
    return {
        f"{figure}_{place}": float(np.mean(values) if place == "mean" else np.percentile(values, int(place[1:])))
        for figure, values in samples.items()
        for place in PLACES
        if values
    }


def _fit(simulate: Callable[[Host | None], _Run], measured: Mapping[str, float]) -> Host:
    """Gauss-Newton of the relative errors, no figure below zero. A step's host time is started from half a millisecond,
    which a queue multiplies, so that a few rounds are enough."""
    import numpy as np
    from scipy.optimize import lsq_linear

    names, wanted = list(measured), np.array(list(measured.values()))
    scale = np.array([1e-3, 1e-5, 1e-2])
    values = np.array([0.5e-3, 0.01e-3, 0.0])

    def errors(at: Any) -> Any:
        found = simulate(Host(*map(float, at)))[0]
        return np.array([found[name] for name in names]) / wanted - 1.0

    best, best_values = np.inf, values
    for _ in range(_ROUNDS):
        now = errors(values)
        if (size := float(now @ now)) < best:
            best, best_values = size, values
        slopes = np.column_stack([errors(values + 0.1 * scale * unit) - now for unit in np.eye(3)]) / 0.1
        # A weak pull to zero keeps a term at zero that the figures do not tell.
        rows = np.vstack([slopes, 1e-3 * np.eye(3)])
        targets = np.concatenate([slopes @ (values / scale) - now, np.zeros(3)])
        values = lsq_linear(rows, targets, bounds=(0.0, np.inf)).x * scale
    now = errors(values)
    return Host(*map(float, values if float(now @ now) < best else best_values))
