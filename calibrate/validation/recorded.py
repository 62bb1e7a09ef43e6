"""A recorded run against its simulation: the same requests, sent when they were sent, under a RUN.toml.

The mean, the median and the 99th percentile of TTFT, TPOT and E2E are compared. With ``fit_host`` the host's time of a
step, fixed and by sequence, and the front end's time of a request are fitted to these figures first. Where the roofline
times the steps, so are the shares of the bandwidth that reading weights and KV reaches; else nothing is but the host.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.validation.recipe import Recipe, adjusted
from policies.core.errors import ConfigError
from sim.api import prepare, run_setup
from sim.config import RunConfig, config_from_tables
from sim.costs.load import ROOFLINE
from sim.costs.model import CostModel
from traces.imports.served import Served, ServedRequest
from traces.metrics.intervals import STATISTICS

FIGURES = ("ttft", "tpot", "e2e")
PLACES = tuple(STATISTICS)
_ROUNDS = 4


class Host(NamedTuple):
    """What is fitted: seconds of a step, of a sequence in it, and of a request before and after the engine has it; and
    factors on what reading weights and KV takes, 1 but for a roofline."""

    base_s: float
    per_seq_s: float
    request_s: float = 0.0
    weights: float = 1.0
    kv: float = 1.0


class Line(NamedTuple):
    """One figure: seconds measured and simulated, and simulated with 5 % fewer and more KV blocks where memory ran
    short."""

    name: str
    measured_s: float
    simulated_s: float
    pool_s: tuple[float, float] | None = None

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
        found, summary, used = simulate(None)
        if fit_host:
            is_roofline = summary["cost_model"]["kind"] == ROOFLINE
            host = _fit(simulate, measured, _NAMES if is_roofline else _NAMES[:3])
            found, summary, used = simulate(host)
        around = [_simulator_of(config, summary, factor)(used)[0] for factor in _POOLS] if _is_short(summary) else []
    lines = tuple(
        Line(name, value, found[name], (around[0][name], around[1][name]) if around else None)
        for name, value in measured.items()
        if name in found
    )
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


_POOLS = (0.95, 1.05)
_Run = tuple[dict[str, float], Mapping[str, Any], Host]


def _is_short(summary: Mapping[str, Any]) -> bool:
    """Whether requests were preempted or waited for blocks."""
    return bool(summary["preemptions"]["recompute"] or summary["limited_by"].get("kv_blocks", 0.0) > 0.01)


def _simulator_of(config: RunConfig, summary: Mapping[str, Any], factor: float) -> Callable[[Host | None], _Run]:
    """The same run with so many times the KV blocks."""
    blocks = round(summary["kv"]["num_gpu_blocks"] * factor)
    engine = config.engine.replace(num_gpu_blocks=blocks, gpu_memory_utilization=None)
    return _simulator(config._replace(engine=engine))


def _simulator(config: RunConfig) -> Callable[[Host | None], _Run]:
    """Runs the configuration under a host time; None: its own."""
    plain = prepare(config).costs

    def simulate(host: Host | None) -> _Run:
        used = Host(plain.host.base_s, plain.host.per_seq_s) if host is None else host
        term = plain.host._replace(base_s=used.base_s, per_seq_s=used.per_seq_s)
        file = adjusted(plain.file, Recipe(0.0, 0.0, used.weights, used.kv))
        costs = CostModel(file, plain.shape, plain.card, term, graphs=plain.graphs, all_reduce=plain.all_reduce)
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
        f"{figure}_{place}": of(np.array(values))
        for figure, values in samples.items()
        for place, of in STATISTICS.items()
        if any(values)
    }


_NAMES = ("base_s", "per_seq_s", "request_s", "weights", "kv")
_START = Host(0.5e-3, 0.01e-3, 0.02)
_SCALE = Host(1e-3, 1e-5, 2e-2, 0.1, 0.1)
_PULL = Host(1e-3, 1e-3, 5e-3, 5e-3, 5e-3)
"""How strongly each is held at its start, in its scale: enough for what the figures do not tell."""


def _fit(simulate: Callable[[Host | None], _Run], measured: Mapping[str, float], fitted: Sequence[str]) -> Host:
    """Gauss-Newton of the relative errors, no figure below zero; what is not ``fitted`` stays as it starts."""
    import numpy as np
    from scipy.optimize import lsq_linear

    names, wanted = list(measured), np.array(list(measured.values()))
    scale, pull, first = (np.array([getattr(host, name) for name in fitted]) for host in (_SCALE, _PULL, _START))

    def host_at(values: Any) -> Host:
        return _START._replace(**{name: float(value) for name, value in zip(fitted, values, strict=True)})

    def errors(values: Any) -> Any:
        found = simulate(host_at(values))[0]
        return np.array([found[name] for name in names]) / wanted - 1.0

    tried = []
    values = first
    for _ in range(_ROUNDS):
        now = errors(values)
        tried.append((float(now @ now), host_at(values)))
        slopes = np.column_stack([errors(values + 0.1 * scale * unit) - now for unit in np.eye(len(first))]) / 0.1
        rows = np.vstack([slopes, np.diag(pull)])
        targets = np.concatenate([slopes @ (values / scale) - now, pull * first / scale])
        values = lsq_linear(rows, targets, bounds=(0.0, np.inf)).x * scale
    now = errors(values)
    return min([*tried, (float(now @ now), host_at(values))], key=lambda pair: pair[0])[1]
