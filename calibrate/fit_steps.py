"""The cost file that whole steps alone give: attention and head are the roofline's, and the linear term is what is left
of the measured steps, host time included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrate.fitter import HELD_OUT_SEED, Residual, split
from calibrate.fitting import fit_linear
from calibrate.profile import Measurement, Profile
from policies.catalog import Card, ModelShape
from policies.core.errors import CostFileError
from policies.core.plan import Chunk
from sim.costs.costfile import CostFile
from sim.costs.links import link_of
from sim.costs.model import CostModel
from sim.costs.roofline import roofline
from sim.costs.terms import LinearTerm

METHOD = (
    "what whole steps take beyond the roofline's attention and head and the group's all-reduces: all else of a step,"
    " host time included"
)
COMPUTED = {"method": "computed: the roofline's, since only whole steps were measured"}


def only_steps(profile: Profile) -> bool:
    """Whether a profile has whole steps and no operators."""
    beside = {"step", "swap", "host", "host_prefill"}
    return {row.operator for row in profile.rows} <= beside and bool(profile.of("step"))


def fit_steps(profile: Profile, shape: ModelShape, card: Card, name: str) -> tuple[CostFile, list[Residual]]:
    """The terms, and the residuals of a third of the steps by a fit on the others.

    CostFileError, by ``name``, where a step is shorter than its attention alone.
    """
    rows = profile.of("step")
    rest = roofline(shape, card)
    linear = _linear(rows, rest, shape, card, name)
    kept, out = split(rows, HELD_OUT_SEED)
    known = rest._replace(linear=_linear(kept, rest, shape, card, name))
    residuals = []
    for row in out:
        predicted_s = _model(known, shape, card).step_time_s(*_arguments(row))
        residuals.append(Residual(_kind(row), _words(row), row.seconds, predicted_s))
    return rest._replace(linear=linear), residuals


def _model(file: CostFile, shape: ModelShape, card: Card) -> CostModel:
    return CostModel(file, shape, card, all_reduce=link_of(card, shape.tp).all_reduce)


def _linear(
    rows: Iterable[Measurement], rest: CostFile, shape: ModelShape, card: Card, name: str
) -> LinearTerm:
    """Medians of what is left of the steps of each number of tokens, a layer."""
    costs = _model(rest, shape, card)
    left: dict[int, list[float]] = {}
    for row in rows:
        arguments = _arguments(row)
        parts = costs.parts(*arguments)
        layer_s = (row.seconds - sum(parts.values()) + parts["linear"] + parts["floor"]) / shape.layers
        if layer_s <= 0:
            raise CostFileError(
                f"{name}: a step of {_words(row)} takes {1e3 * row.seconds:.3f} ms, which is less than its attention"
                " alone would; remove the row or check its units"
            )
        left.setdefault(arguments[0], []).append(layer_s)
    return fit_linear(left)


def _arguments(row: Measurement) -> tuple[int, int, int, int, Sequence[Chunk]]:
    """Of ``CostModel.step_time_s``."""
    chunks = [Chunk(number, row.chunk_context, row.chunk_tokens, True) for number in range(row.chunks)]
    num_tokens = row.sequences + row.chunks * row.chunk_tokens
    return num_tokens, row.sequences, row.sequences * row.context, row.context, chunks


def _kind(row: Measurement) -> str:
    return "whole" if row.sequences and row.chunks else "decode" if row.sequences else "prefill"


def _words(row: Measurement) -> str:
    parts = [f"{row.sequences} sequences over {row.context} tokens"] if row.sequences else []
    parts += [f"{row.chunks} chunks of {row.chunk_tokens} tokens over {row.chunk_context}"] if row.chunks else []
    return ", ".join(parts)

