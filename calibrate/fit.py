"""Fits the cost file of one model on one card, or on one of a group, from a profile or from known operator tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.fit_steps import COMPUTED, METHOD, fit_steps, only_steps
from calibrate.fitter import (
    HELD_OUT_SEED,
    Fitter,
    Hints,
    Residual,
    Terms,
    decode_s,
    measured_of,
    prefill_s,
    term_errors,
)
from calibrate.fitting import fit_host, fit_swap
from calibrate.profile import Origin, Profile
from calibrate.recipes import profile_of
from calibrate.sources import recipe_for
from policies.catalog import Card, ModelShape
from policies.core.errors import CostFileError
from sim.costs.costfile import SCHEMA
from sim.costs.floor import floor_of
from sim.costs.load import shipped_path
from sim.costs.roofline import roofline, swap_term
from sim.costs.terms import LinearTerm, interpolate
from traces.workload.quantiles import quantile

VERSION = 3
DATE = "2026-11-30"
"""Of the fits that are shipped; a fit that differs gets another version and date."""

_KINDS = ("decode", "prefill", "chunk_on_context", "mixed", "whole")


class Errors(NamedTuple):
    """Relative errors of a set of points: median, 95th percentile, maximum, number."""

    median: float
    p95: float
    max: float
    points: int


class Fit(NamedTuple):
    """A cost file as a JSON-ready mapping, and the residuals of its held-out points."""

    cost_file: dict[str, Any]
    residuals: list[Residual]


def fit(shape: ModelShape, card: Card, profile_dir: Path, tp: int = 1) -> dict[str, Any]:
    """The cost file of ``shape`` on ``card``, or on one of a group of ``tp``, from the known tables in a folder.

    CostFileError names a table or row that cannot be used, CatalogError a group without tables.
    """
    return fit_tables(shape, card, profile_dir, tp).cost_file


def fit_tables(shape: ModelShape, card: Card, profile_dir: Path, tp: int = 1) -> Fit:
    """The same with the residuals."""
    recipe = recipe_for(shape.name, card.name, tp)
    part = shape.shard(tp)
    profile = profile_of(recipe, profile_dir, part, card)
    found = fit_profile(profile, part, card, recipe.hints, str(profile_dir))
    if recipe.scaled_from:
        found.cost_file["held_out"]["definition"] += (
            f"; the points themselves were computed from those of the {recipe.scaled_from} (see provenance), none was"
            " measured on this card"
        )
    return found


def fit_profile(
    profile: Profile,
    shape: ModelShape,
    card: Card,
    hints: Hints = Hints(),  # noqa: B008
    name: str = "profile",
    date: str = DATE,
) -> Fit:
    """The cost file that a profile of ``shape``, one GPU's part of a model, on ``card`` gives.

    The coefficients are fitted on all points; ``held_out`` states the error on a random third of the points of fits
    that did not see that third. ``date`` is that of the fit. CostFileError, which calls the profile ``name``, where an
    operator is missing.
    """
    if profile.of("host_prefill") and not profile.of("host"):
        raise CostFileError(f"{name}: has rows of 'host_prefill' but none of 'host', which they add to; measure both")
    if only_steps(profile):
        file, residuals = fit_steps(profile, shape, card, name)
        terms = Terms(file.linear, file.decode, file.prefill, file.head)
        held_out, sources = _errors_of(residuals), _steps_provenance(profile, card)
    else:
        most_tokens = card.memory_bytes / shape.kv_bytes_per_token
        measured = measured_of(profile, name, most_tokens, roofline(shape, card).head)
        fitter = Fitter(shape, card, measured, hints)
        terms = fitter.terms(measured.decode, measured.fresh, measured.cached, measured.mixed)
        residuals = [*fitter.held_out(), *fitter.whole(terms)]
        held_out, sources = _errors_of(residuals) | _term_errors(fitter, terms), _provenance(profile, card)
    cost_file = {
        "schema": SCHEMA,
        "name": shipped_path(shape.name, card.name, shape.tp).stem,
        "version": VERSION,
        "date": date,
        "data_date": profile.date,
        "model": shape.name,
        "card": card.name,
        "tp": shape.tp,
        "units": "seconds on one GPU, without communication; one layer, but the head once a step",
        "terms": _terms_json(terms, profile, card),
        "held_out": held_out,
        "floor": {key: _round(value) for key, value in floor_of(shape, card)._asdict().items()},
        "provenance": sources,
    }
    return Fit(cost_file, residuals)


def _errors_of(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Errors of the step on held-out points."""
    by_kind = {kind: [residual.error for residual in residuals if residual.kind == kind] for kind in _KINDS}
    return {
        "definition": (
            "relative error of the whole step (all terms, no host time) on a random third of the"
            " (batch, context) and (chunk, context) points, predicted from the other two thirds; the shipped"
            " coefficients are fitted on all points; a group of GPUs without its communication"
        ),
        "seed": HELD_OUT_SEED,
        "step": _errors_json([residual.error for residual in residuals if residual.kind != "whole"]),
        **{f"step_{kind}": _errors_json(errors) for kind, errors in by_kind.items() if errors},
    }


def _term_errors(fitter: Fitter, terms: Terms) -> dict[str, Any]:
    """Errors of each term on all points."""
    measured = fitter.measured
    return {
        "linear_between_sizes": _errors_json(_leave_one_out(terms.linear)),
        "decode_attention": _errors_json(term_errors(measured.decode, lambda point: decode_s(terms, point))),
        "prefill_attention": _errors_json(term_errors(measured.fresh, lambda point: prefill_s(terms, point))),
    }


def _leave_one_out(linear: LinearTerm) -> list[float]:
    """Error at each inner size of the table when it is interpolated from its neighbours."""
    sizes, seconds = linear.num_tokens, linear.seconds
    return [
        abs(interpolate(sizes[i - 1 : i + 2 : 2], seconds[i - 1 : i + 2 : 2], sizes[i]) / seconds[i] - 1.0)
        for i in range(1, len(sizes) - 1)
    ]


def errors_of(values: Sequence[float]) -> Errors:
    """Median, 95th percentile (linear interpolation) and maximum of relative errors."""
    ordered = sorted(values)
    return Errors(statistics.median(ordered), quantile(ordered, 0.95), ordered[-1], len(ordered))


def _errors_json(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    errors = errors_of(values)._asdict()
    return {key: value if key == "points" else round(value, 5) for key, value in errors.items()}


def _round(value: float) -> float:
    """Six significant digits: far below the error of any term."""
    return float(f"{value:.6g}")


def _terms_json(terms: Terms, profile: Profile, card: Card) -> dict[str, Any]:
    fitted = {name: _plain(term) for name, term in terms._asdict().items() if term is not None}
    swaps, hosts, prefill_hosts = (profile.of(operator) for operator in ("swap", "host", "host_prefill"))
    swap = fit_swap(swaps) if swaps else swap_term(card)
    return {**fitted, "swap": _plain(swap), **({"host": _plain(fit_host(hosts, prefill_hosts))} if hosts else {})}


def _plain(value: Any) -> Any:
    """A term as JSON has it."""
    if hasattr(value, "_asdict"):
        # A file without the term for walks as far as the longest context leaves it out.
        return {key: _plain(item) for key, item in value._asdict().items() if key != "uneven_seq_s" or item}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _round(value) if isinstance(value, float) else value


def _provenance(profile: Profile, card: Card) -> dict[str, Any]:
    chunks = {row.source for row in profile.of("prefill") if row.chunk_context}
    added = profile.origins("prefill_added")
    cached = {name: profile.sources[name] for name in sorted(chunks)} | added
    return {
        "linear": _origins_json(profile.origins("linear")),
        "decode": _origins_json(profile.origins("decode")),
        **({"mixed": _origins_json(profile.origins("mixed"))} if profile.of("mixed") else {}),
        "uneven": _uneven_json(profile, card),
        "prefill": {
            "fresh_chunks": _origins_json(profile.origins("prefill")),
            "cached_tokens": _origins_json(cached)
            if cached
            else {"method": "not measured: a pair with a cached token costs as much as one of two new tokens"},
        },
        "head": _origins_json(profile.origins("head"))
        or {"method": "computed: the roofline's, since it was not measured"},
        "swap": _origins_json(profile.origins("swap"))
        or {
            "source": "bulk copies to pinned memory and one small copy, as on an A100 with PCIe 4",
            "method": "stated, not fitted",
        },
        **({"host": _origins_json(profile.origins("host", "host_prefill"))} if profile.of("host") else {}),
        "all_reduce": "sim/costs/links.json, by link of the card and number of GPUs",
        "floor": {"source": f"{card.title}: {card.source}"},
    }


def _steps_provenance(profile: Profile, card: Card) -> dict[str, Any]:
    return {
        "linear": {**_origins_json(profile.origins("step")), "method": METHOD},
        **dict.fromkeys(("decode", "uneven", "prefill", "head"), COMPUTED),
        "swap": COMPUTED,
        "all_reduce": "sim/costs/links.json, by link of the card and number of GPUs",
        "floor": {"source": f"{card.title}: {card.source}"},
    }


def _uneven_json(profile: Profile, card: Card) -> dict[str, Any]:
    origins = profile.origins("uneven")
    if not origins:
        return {"method": "not measured: unequal contexts cost as much as equal ones"}
    found = _origins_json(origins)
    other = {origin.card for origin in origins.values()} - {"", card.name}
    how = "measured on that card, used here" if other else "measured"
    return {**found, "method": f"ratio to the cost of a token of context in even batches, {how}"}


def _origins_json(origins: Mapping[str, Origin]) -> dict[str, str]:
    """One source as it is; of several, each field joined."""
    rows = [origin._asdict() for origin in origins.values()]
    fields = {key: "; ".join(dict.fromkeys(row[key] for row in rows if row[key])) for key in Origin._fields}
    return {key: text for key, text in fields.items() if text}
