"""What a capacity search found, as numbers, as JSON, as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.core.errors import UserError
from sim.explore.levers import Lever
from sim.explore.loads import Loads, Probe
from sim.explore.measures import Reading, Verdict
from sim.explore.pareto import Candidate, front
from sim.explore.rates import RateResult
from sim.explore.replicas import ReplicasResult

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class CurvePoint(NamedTuple):
    """Means over some samples at a rate: the statistics that are limited, whether most samples are unstable, and what
    was made of the time, a second."""

    rate_per_s: float
    readings: tuple[Reading, ...]
    unstable: bool
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float

    @property
    def met(self) -> bool:
        """Whether the means keep the limits and the queue does not grow."""
        return not self.unstable and all(reading.met for reading in self.readings)


class CardResult(NamedTuple):
    """A card of the price table: an hour of one replica, and the fewest replicas (``result``); ``message`` says why it
    cannot be simulated."""

    name: str
    usd_per_hour_each: float
    result: CapacityResult | None
    message: str = ""

    @property
    def replicas(self) -> int | None:
        """How many replicas it takes; None where no number is enough."""
        found = None if self.result is None else self.result.replicas
        return None if found is None else found.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """What they cost together."""
        return None if self.replicas is None else self.replicas * self.usd_per_hour_each

    @property
    def sort_key(self) -> tuple[float, int]:
        """Cheaper first, then fewer."""
        return (math.inf if self.usd_per_hour is None else self.usd_per_hour, self.replicas or 0)


class CapacityResult:
    """The answer of ``capacity``. ``find`` says what was looked for: ``rate`` has the highest rate, ``replicas`` the
    fewest replicas for ``for_rate_per_s``, ``card`` the cheapest of ``cards``. ``curve`` are points along the rate,
    ``levers`` what settings would give. ``asked_requests`` of a sample give it again. In a notebook it shows itself."""

    def __init__(
        self,
        find: str,
        loads: Loads,
        *,
        rate: RateResult | None = None,
        replicas: ReplicasResult | None = None,
        for_rate_per_s: float | None = None,
        cards: Sequence[CardResult] = (),
        card: CardResult | None = None,
    ) -> None:
        self.find, self.loads = find, loads
        self.rate, self.replicas = rate, replicas
        self.for_rate_per_s = for_rate_per_s
        self.cards, self.card = list(cards), card
        self.curve: list[CurvePoint] = []
        self.levers: list[Lever] = []
        self.asked_requests = loads.num_requests

    @property
    def feasible(self) -> bool:
        """Whether any load, or any number of replicas, meets the limits."""
        if self.rate is not None:
            return self.rate.feasible
        return self.replicas is not None and self.replicas.replicas is not None

    @property
    def rate_per_s(self) -> float | None:
        """The highest rate; None where something else was looked for."""
        return None if self.rate is None else self.rate.rate_per_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the highest rate; of replicas the least and the most that a sample needs."""
        found = self.rate or self.replicas
        return None if found is None or not self.feasible else (found.low, found.high)

    @property
    def usd_per_hour(self) -> float | None:
        """What an hour of all replicas costs; None without a price."""
        config = self.loads.source.config
        each = config.price.usd_per_hour(config.hardware.name, config.hardware.tp)
        number = self.loads.replicas if self.replicas is None else self.replicas.replicas
        return None if each is None or number is None else each * number

    def cost_of(self, point: CurvePoint) -> dict[str, float]:
        """USD for a million tokens and for a request at a point of the curve; nothing without a price."""
        usd = self.usd_per_hour
        if usd is None:
            return {}
        of = {
            "usd_per_million_output_tokens": point.output_tokens_per_s / 1e6,
            "usd_per_million_total_tokens": point.total_tokens_per_s / 1e6,
            "usd_per_request": point.requests_per_s,
        }
        return {name: usd / 3600.0 / made for name, made in of.items() if made > 0.0}

    @property
    def at_rate(self) -> CurvePoint | None:
        """The point of the curve at the highest rate."""
        return next((point for point in self.curve if point.rate_per_s == self.rate_per_s), None)

    @property
    def front(self) -> list[CurvePoint]:
        """Of the stable points of the curve those that no other beats in the first limit's latency and in output
        tokens a second."""
        found = []
        for number, point in enumerate(self.curve):
            value = point.readings[0].value_s
            if not point.unstable and value is not None and math.isfinite(value):
                found.append(Candidate(number, value, point.output_tokens_per_s))
        return [self.curve[one.number] for one in front(found)]

    @property
    def table(self) -> pd.DataFrame:
        """The curve: one row a rate."""
        import pandas as pd

        rows = []
        for point in self.curve:
            readings = {reading.limit.name: reading.value_s for reading in point.readings}
            made = {
                name: getattr(point, name) for name in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
            }
            facts = {"unstable": point.unstable, "met": point.met}
            rows.append({"rate_per_s": point.rate_per_s, **readings, **made, **self.cost_of(point), **facts})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The whole answer in JSON types; what does not apply is absent."""
        loads, source = self.loads, self.loads.source
        facts = source.facts()
        answer = {
            "find": self.find,
            "feasible": self.feasible,
            **facts,
            "workload": source.description,
            "limits": [limit.text for limit in loads.limits],
            "samples": len(loads.draws),
            "requests": {"offered": loads.offered, "left_out_by_length": loads.left_out},
            "replicas": loads.replicas if self.replicas is None else self.replicas.replicas,
            "router": loads.router,
            "for_rate_per_s": self.for_rate_per_s,
            "interval": None if self.interval is None else list(self.interval),
            "usd_per_hour": self.usd_per_hour,
            "rate": None if self.rate is None else _rate_dict(self.rate),
            "replicas_needed": None if self.replicas is None else _replicas_dict(self.replicas),
            "curve": [_curve_dict(point) | self.cost_of(point) for point in self.curve] or None,
            "levers": [_lever_dict(lever) for lever in self.levers] or None,
            "cards": [_card_dict(card) for card in self.cards] or None,
            "card": None if self.card is None else self.card.name,
            "notes": list(source.notices) or None,
        }
        return {name: value for name, value in answer.items() if value is not None}

    def figure(self) -> go.Figure:
        """Latencies and throughput along the rate, as a plotly figure. Raises a UserError without a curve."""
        from sim.explore.capacity_figures import pareto

        if not self.curve:
            raise UserError("this search has no curve: no rate meets its limits, or curve was False")
        figure: go.Figure = pareto(self).with_legend().plotly()
        return figure

    def report(self, path: str | Path) -> Path:
        """Write the page of the search and say where it is."""
        from sim.explore.capacity_page import write_capacity_page

        return write_capacity_page(self, path)

    def __repr__(self) -> str:
        from sim.explore.capacity_words import headline

        return f"<CapacityResult: {headline(self)}>"

    def _repr_html_(self) -> str:
        from html import escape

        from sim.explore.capacity_words import finding

        table: str = self.table.to_html(index=False, border=0) if self.curve else ""
        return f"<p>{escape(' '.join(finding(self)))}</p>{table}"


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a latency of requests that never end is absent."""
    return None if value is None or not math.isfinite(value) else value


def _verdict_dict(verdict: Verdict) -> dict[str, Any]:
    readings = {reading.limit.name: _finite(reading.value_s) for reading in verdict.readings}
    return {"met": verdict.met, "unstable": verdict.unstable, "measured_s": readings}


def _probe_dict(probe: Probe) -> dict[str, Any]:
    return {"rate_per_s": probe.rate_per_s, "replicas": probe.replicas, **_verdict_dict(probe.verdict)}


def _rate_dict(found: RateResult) -> dict[str, Any]:
    stopped = [
        {
            "by": "queue" if cause.limit is None else cause.limit.text,
            "value_s": _finite(cause.value_s),
            "share": cause.share,
        }
        for cause in found.causes
    ]
    refused = [
        {"limit": one.limit.text, "alone_s": _finite(one.alone_s), "floor_s": one.floor_s} for one in found.refused
    ]
    return {
        "rate_per_s": found.rate_per_s,
        "interval_per_s": [found.low, found.high],
        "samples_per_s": list(found.rates),
        "stopped_by": stopped,
        "refused": refused,
        "confirmed": found.is_confirmed,
        "longer_runs": [_probe_dict(probe) for probe in found.confirmed],
        "capped_by_hardware_bound": found.capped,
    }


def _replicas_dict(found: ReplicasResult) -> dict[str, Any]:
    refused = [
        {"limit": one.limit.text, "alone_s": _finite(one.alone_s), "floor_s": one.floor_s} for one in found.refused
    ]
    longer = [_probe_dict(probe) for probe in found.confirmed]
    return {
        "per_sample": list(found.per_sample),
        "refused": refused,
        "confirmed": found.is_confirmed,
        "longer_runs": longer,
    }


def _curve_dict(point: CurvePoint) -> dict[str, Any]:
    measured = {reading.limit.name: _finite(reading.value_s) for reading in point.readings}
    made = {name: getattr(point, name) for name in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")}
    return {
        "rate_per_s": point.rate_per_s,
        "met": point.met,
        "unstable": point.unstable,
        "measured_s": measured,
        **made,
    }


def _lever_dict(lever: Lever) -> dict[str, Any]:
    if lever.result is None:
        return {"setting": lever.setting, "message": lever.message}
    return {"setting": lever.setting, **_rate_dict(lever.result)}


def _card_dict(card: CardResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": card.name, "usd_per_hour_each": card.usd_per_hour_each}
    if card.message:
        return {**facts, "message": card.message}
    return {**facts, "replicas": card.replicas, "usd_per_hour": card.usd_per_hour}
