"""What a sweep gave: its table, the Pareto front of latency and throughput with the chosen point, figures, a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.core.errors import UserError, closest
from sim.explore.metrics import METRICS
from sim.explore.pareto import Candidate, front, knee
from sim.explore.point import FAILED, Row
from sim.explore.seeds import half_width
from sim.explore.space import Settings
from sim.explore.sweepfile import SweepSpec

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

TABLE_NAME = "table"
"""Of the files table.csv and table.parquet of a sweep's folder."""


class PointResult(NamedTuple):
    """One point: its number, its settings, and its runs, one for each seed."""

    number: int
    settings: Settings
    runs: tuple[Row, ...]

    @property
    def message(self) -> str:
        """Why a run of it is no success; else ""."""
        return next((row.message for row in self.runs if row.message), "")

    @property
    def is_valid(self) -> bool:
        """Whether its latencies say something: every run completed, served, and keeps up as far as one can tell."""
        return all(row.status == "completed" and not row.message and row.stable is not False for row in self.runs)

    @property
    def keeps_up(self) -> bool:
        """Whether no run was found unstable."""
        return all(row.stable is not False for row in self.runs)

    def mean(self, metric: str) -> float | None:
        """The mean of a metric over the runs; None where one of them has none."""
        values = self._values(metric)
        return None if values is None else sum(values) / len(values)

    def half(self, metric: str) -> float | None:
        """Half of the 95 % interval of that mean, from the seeds; None with fewer than two."""
        values = self._values(metric)
        return None if values is None else half_width(values)

    def _values(self, metric: str) -> list[float] | None:
        found = [row.metrics.get(metric) for row in self.runs]
        known = [value for value in found if value is not None]
        return known if known and len(known) == len(found) else None


class SweepResult:
    """The points of a sweep in order. ``folder`` is where its rows are kept (None: nowhere). In a notebook it shows
    itself."""

    def __init__(self, spec: SweepSpec, points: Sequence[PointResult], folder: Path | None) -> None:
        self.spec = spec
        self.points = points
        self.folder = folder

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a run: point, seed, the keys that vary, status, stable, the metrics of ``sweep.metrics``, message."""
        import pandas as pd

        mixed = {name for name in self.spec.space if len({_kind(point.settings[name]) for point in self.points}) > 1}
        rows: list[dict[str, Any]] = []
        for point in self.points:
            for row in point.runs:
                metrics = {name: row.metrics.get(name) for name in self.columns}
                keys = {name: _plain(value, mixed=name in mixed) for name, value in point.settings.items()}
                facts = {"status": row.status, "stable": row.stable}
                rows.append(
                    {"point": point.number, "seed": row.seed, **keys, **facts, **metrics, "message": row.message}
                )
        table = pd.DataFrame(rows)
        for name in self.columns:
            table[name] = table[name].astype("float64")
        table["stable"] = table["stable"].astype("boolean")
        return table

    @property
    def columns(self) -> list[str]:
        """The metrics of the table: those asked for, and those that the figures need."""
        config = self.spec.config
        more = [objective.metric for objective in self.spec.objectives] + [limit.metric for limit in self.spec.limits]
        return list(dict.fromkeys([*config.metrics, config.latency, config.throughput, *more]))

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The points that may lie on the front: those whose latencies say something."""
        latency, throughput = self.spec.config.latency, self.spec.config.throughput
        found = []
        for point in self.points:
            x, y = point.mean(latency), point.mean(throughput)
            if point.is_valid and x is not None and y is not None:
                found.append(Candidate(point.number, x, y))
        return found

    @cached_property
    def front(self) -> list[PointResult]:
        """The points that no other one beats in both latency and throughput, from the fastest to the most."""
        return [self.points[one.number] for one in front(self.candidates)]

    @cached_property
    def chosen(self) -> PointResult | None:
        """The point to take: with ``sweep.limits`` the one of most throughput that meets them all (None: none does);
        else the best one of a search for one thing; else the knee of the front."""
        if self.spec.limits:
            meeting = [one for one in self.candidates if self._meets(self.points[one.number])]
            best = max(meeting, key=lambda one: (one.throughput, -one.latency), default=None)
        elif len(self.spec.objectives) == 1:
            return self._best()
        else:
            best = knee(front(self.candidates))
        return None if best is None else self.points[best.number]

    @property
    def how_chosen(self) -> str:
        """The rule by which ``chosen`` was found, in words."""
        config = self.spec.config
        if self.spec.limits:
            words = " and ".join(limit.in_words() for limit in self.spec.limits)
            return f"the most {METRICS[config.throughput].about} with {words}"
        if len(self.spec.objectives) == 1:
            objective = self.spec.objectives[0]
            return f"{'least' if objective.direction == 'minimize' else 'most'} {METRICS[objective.metric].about}"
        return "the knee of the front: farthest from the straight line between its ends"

    @property
    def failed(self) -> list[PointResult]:
        """The points that could not be run at all."""
        return [point for point in self.points if all(row.status == FAILED for row in point.runs)]

    def figure(self, name: str = "pareto") -> go.Figure:
        """``pareto``, or the response to a key that varies, by the key's name, as a plotly figure. Raises a
        UserError."""
        from sim.explore.sweep_figures import pareto, response

        names = ("pareto", *self.spec.space)
        if name not in names:
            raise UserError(f"figure {name!r}: use one of {', '.join(names)}{closest(name, names)}")
        figure: go.Figure = (pareto(self) if name == "pareto" else response(self, name)).with_legend().plotly()
        return figure

    def save(self, folder: str | Path | None = None) -> Path:
        """Write table.csv, table.parquet, sweep.toml and report.html into a folder (by default its own); returns the
        page's path."""
        from sim.explore.sweep_page import write_sweep_page
        from sim.runs import write_whole

        folder = self.folder if folder is None else Path(folder)
        if folder is None:
            raise UserError("this sweep has no folder; name one: result.save('FOLDER')")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{TABLE_NAME}.csv", self.table.to_csv(index=False))
        part = folder / f"{TABLE_NAME}.parquet.part"
        self.table.to_parquet(part, index=False)
        part.replace(folder / f"{TABLE_NAME}.parquet")
        write_whole(folder / "sweep.toml", self.spec.to_toml())
        return write_sweep_page(self, folder / "report.html")

    def _best(self) -> PointResult | None:
        """Of the completed points, the best one in the search's objective."""
        (objective,) = self.spec.objectives
        sign = 1.0 if objective.direction == "minimize" else -1.0
        values = [(point.mean(objective.metric), point) for point in self.points if not point.message]
        known = [(sign * value, point.number, point) for value, point in values if value is not None]
        return min(known)[2] if known else None

    def _meets(self, point: PointResult) -> bool:
        measured = [(point.mean(limit.metric), limit.limit_s) for limit in self.spec.limits]
        return all(value is not None and value <= limit_s for value, limit_s in measured)

    def __repr__(self) -> str:
        return f"<SweepResult: {len(self.points)} points of {', '.join(self.spec.space)}>"

    def _repr_html_(self) -> str:
        """The finding and the table for a notebook."""
        from html import escape

        from sim.explore.sweep_words import finding

        html: str = self.table.to_html(index=False, max_rows=20, border=0)
        return f"<p>{escape(' '.join(finding(self)))}</p>{html}"


def _plain(value: object, *, mixed: bool) -> object:
    """A value as a table can hold it: tables and lists as TOML, and all but texts where a column mixes kinds."""
    from sim.config_toml import toml_value

    as_text = _kind(value) == "table" or (mixed and not isinstance(value, str))
    return toml_value(value) if as_text else value


def _kind(value: object) -> str:
    """What a column of a table may hold together."""
    if isinstance(value, bool | str):
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "table"
