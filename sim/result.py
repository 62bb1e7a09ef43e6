"""What a run gave, for Python and for notebooks: summary, tables, figures, page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.core.errors import UserError, closest

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sim.report.charts import Figure
    from sim.report.view import RunView
    from traces.metrics.accumulate import RunMetrics
    from traces.metrics.digest import DigestSink
    from traces.record.memory import MemorySink
    from traces.record.read import RunRecord

FIGURES = ("over_time", "ttft", "itl", "tpot", "e2e", "ttft_by_prompt", "ttft_by_arrival", "gaps", "requests", "bound")
"""Names of the figures of a run, those of its page."""

_ALONE = ("gaps", "requests")


class Result:
    """What a run gave: ``summary`` (the content of summary.json), ``notices`` for the reader, ``metrics``, the record
    as pandas tables, figures, and a page. In a notebook it shows itself.

    ``status`` is that of the summary; ``message`` says in a line why a run did not complete, or that no request could
    be served. ``toml`` is the configuration; ``memory`` and ``digest`` hold the record of a run without a folder.
    """

    def __init__(
        self,
        summary: dict[str, Any],
        metrics: RunMetrics,
        message: str,
        notices: tuple[str, ...],
        folder: Path | None,
        *,
        toml: str = "",
        memory: MemorySink | None = None,
        digest: DigestSink | None = None,
    ) -> None:
        self.summary = summary
        self.metrics = metrics
        self.status: str = summary["status"]
        self.message = message
        self.notices = notices
        self.folder = folder
        self._toml, self._memory, self._digest = toml, memory, digest

    @cached_property
    def record(self) -> RunRecord:
        """The tables at the level of ``sim.record``: those of the folder, or those kept in memory."""
        from traces.record.read import read_run

        if self._memory is not None:
            return self._memory.record(self.summary)
        if self.folder is None:
            raise UserError("this run kept no record; call simulate(...), or give the run a folder with out='FOLDER'")
        return read_run(self.folder)

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request, columns of ``traces.record.schema.RequestRow``."""
        return self.record.requests

    @property
    def steps(self) -> pd.DataFrame | None:
        """One row a step or quiet run; None below ``record = "steps"``."""
        return self.record.steps

    @cached_property
    def view(self) -> RunView:
        """The run as a page sees it."""
        from sim.report.view import load_view, make_view

        if self._digest is None and self.folder is not None:
            return load_view(self.folder)
        digest = None if self._digest is None else self._digest.to_dict()
        return make_view(self.record, digest, self._toml, self.folder)

    def figure(self, name: str = "over_time", *beside: Result) -> go.Figure:
        """One of ``FIGURES`` as a plotly figure, with those of the results ``beside`` laid over it; ``gaps`` and
        ``requests`` show one run alone. Raises a UserError for another name, or where the run has no data for it."""
        from sim.report import bound, distributions, gantt, lives, over_time
        from sim.report.view import side_by_side

        if name not in FIGURES:
            raise UserError(f"figure {name!r}: use one of {', '.join(FIGURES)}{closest(name, FIGURES)}")
        if beside and name in _ALONE:
            raise UserError(f"figure {name!r} shows one run; draw it for each result")
        views = side_by_side([self.view, *(other.view for other in beside)])
        makers: dict[str, Callable[[], Figure | None]] = {
            "over_time": lambda: over_time.over_time(views),
            "ttft": lambda: distributions.ecdf(views, "ttft_s"),
            "itl": lambda: distributions.ecdf(views, "itl_s"),
            "tpot": lambda: distributions.ecdf(views, "tpot_s"),
            "e2e": lambda: distributions.ecdf(views, "e2e_s"),
            "ttft_by_prompt": lambda: distributions.ttft_by_prompt(views),
            "ttft_by_arrival": lambda: distributions.ttft_by_arrival(views),
            "gaps": lambda: distributions.gaps_by_cause(self.view),
            "requests": lambda: gantt.gantt(lives.chosen_lives(self.view)),
            "bound": lambda: bound.against_bound(views),
        }
        found = makers[name]()
        if found is None:
            raise UserError(f"figure {name!r}: this run has no samples for it")
        figure: go.Figure = found.plotly()
        return figure

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of the run to ``path`` (by default ``report.html`` in its folder) and say where it is."""
        from sim.report.page import REPORT_NAME, write_page

        if path is None:
            if self.folder is None:
                raise UserError("this run has no folder; name the file: result.report('report.html')")
            path = self.folder / REPORT_NAME
        return write_page([self.view], Path(path))

    @property
    def exit_code(self) -> int:
        """What ``batchscope run`` exits with: 0 completed, 2 no request could be served, 3 the engine died or is
        stuck, 130 interrupted."""
        if self.status == "completed":
            return 2 if self.message else 0
        return 130 if self.status == "interrupted" else 3

    def __repr__(self) -> str:
        counts, policy = self.summary["requests"], self.summary["policy"]
        name = policy if ":" in policy else self.summary["preset"]
        return f"<Result {name}: {self.status}, {counts['finished']} of {counts['offered']} finished>"

    def _repr_html_(self) -> str:
        """A table and a picture for a notebook."""
        from sim.report.notebook import as_html

        return as_html(self.view)
