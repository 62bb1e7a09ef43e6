"""Stage 5: the cost model that the grids' points give, and its error on points that a fit did not see."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrate.fit import errors_of, fit_profile
from calibrate.gpu.record import write_json
from calibrate.measure_points import BLOCK_SIZE, Step
from calibrate.measure_rows import SOURCE, Timed, rows_of
from calibrate.profile import Origin, Profile
from calibrate.profile_file import write_profile
from policies.catalog import Card, ModelShape, card, model
from policies.core.errors import RunError
from policies.core.plan import Chunk
from sim.costs.load import load_cost_model
from sim.costs.model import CostModel

if TYPE_CHECKING:
    from pathlib import Path

    from calibrate.gpu.worker import Check

COSTS, PROFILE = "costs.json", "profile.csv"
HELD_OUT, SEED = 0.3, 0


def run(check: Check) -> None:
    """Fit without 30 % of the points and judge on these, then fit on all and write the cost file and its profile."""
    grids, known = check.found("grids"), check.found("environment").get("environment", {})
    if "timed" not in grids:
        raise RunError("the grids' stage has no points; run it first (--stages grids,fit --resume)")
    if not known.get("card"):
        raise RunError(f"{known.get('name', 'the device')} is not in the catalog of cards")
    shape, device, out = model(check.settings.model), card(known["card"]), check.settings.out
    timed = read_timed(grids)
    kept, held_out = split(timed.steps)
    without = _profile(timed._replace(steps=kept), shape, device, known, grids["rounds"])
    errors = _errors(without, shape, device, held_out, out / f"held-out-{COSTS}")
    check.record.keep(held_out_share=HELD_OUT, seed=SEED, points=len(timed.steps), errors=errors)
    for kind, row in errors.items():
        check.say(f"{kind}: error of {row['points']} held-out points, median {row['median']:.1%}, p95 {row['p95']:.1%}")
    profile = _profile(timed, shape, device, known, grids["rounds"])
    write_profile(profile, out / PROFILE)
    fitted = fit_profile(profile, shape, device, name=PROFILE, date=known["date"]).cost_file
    write_json(out / COSTS, fitted)
    check.record.keep(costs=COSTS, profile=PROFILE, card=device.name)


def read_timed(grids: Mapping[str, Any]) -> Timed:
    """The points as the grids' stage wrote them; the host's time from its runs."""
    timed = grids["timed"]
    steps = {
        Step(tuple(context for context, count in runs for _ in range(count)), *others): seconds
        for runs, *others, seconds in timed["steps"]
    }
    hosts = {(row["clients"], 0): max(row["host_s"], 0.0) for row in grids.get("host", ())}
    return Timed(steps, dict(timed["heads"]), dict(timed["swaps"]), hosts)


def split(steps: Mapping[Step, float]) -> tuple[dict[Step, float], dict[Step, float]]:
    """Steps for the fit, and those held out: a share of the ones with attention, the same on any machine. The smallest
    and the largest stay, so that nothing is extrapolated."""
    whole = sorted(step for step in steps if not step.bare)
    ends = {*_ends(whole, lambda step: step.cached_tokens), *_ends(whole, lambda step: step.num_tokens)}
    inner = [step for step in whole if step not in ends]
    out = set(random.Random(SEED).sample(inner, int(HELD_OUT * len(whole)))) if len(inner) > 2 else set()
    kept = {step: seconds for step, seconds in steps.items() if step not in out}
    return kept, {step: steps[step] for step in sorted(out)}


def _ends(steps: Sequence[Step], size: Any) -> Iterable[Step]:
    """Of decode steps, of chunks, and of both together, the smallest and the largest."""
    for kind in ("decode", "prefill", "mixed"):
        mine = [step for step in steps if kind_of(step) == kind]
        if mine:
            yield min(mine, key=size)
            yield max(mine, key=size)


def kind_of(step: Step) -> str:
    """What a step computes."""
    return "mixed" if step.contexts and step.chunk_tokens else "decode" if step.contexts else "prefill"


def _profile(timed: Timed, shape: ModelShape, device: Card, known: Mapping[str, Any], rounds: int) -> Profile:
    origin = Origin(
        f"python -m calibrate.gpu_check on {known['name']}, torch {known['torch']}, triton {known['triton'] or '-'}",
        "your own measurement",
        known["date"],
        method=f"medians of {rounds} interleaved rounds; attention is the difference to the same step without it",
    )
    rows = tuple(rows_of(timed, shape.layers, shape.block_bytes(BLOCK_SIZE)))
    return Profile(shape.name, device.name, 1, known["date"], {SOURCE: origin}, rows)


def _errors(
    profile: Profile, shape: ModelShape, device: Card, held_out: Mapping[Step, float], path: Path
) -> dict[str, Any]:
    """Relative errors of whole steps, device time, by kind and of all."""
    write_json(path, fit_profile(profile, shape, device, name=PROFILE, date=profile.date).cost_file)
    try:
        costs = load_cost_model(shape, device, str(path), None)
    finally:
        path.unlink()
    by_kind: dict[str, list[float]] = {}
    for step, seconds in held_out.items():
        by_kind.setdefault(kind_of(step), []).append(abs(predicted_s(costs, step) / seconds - 1.0))
    found = {kind: errors_of(errors)._asdict() for kind, errors in sorted(by_kind.items())}
    everything = [error for errors in by_kind.values() for error in errors]
    return {**found, "all": errors_of(everything)._asdict()} if everything else found


def predicted_s(costs: CostModel, step: Step) -> float:
    """What the model says of a step; its contexts are those before the step."""
    contexts = [context - 1 for context in step.contexts]
    chunks = [Chunk(0, step.chunk_context, step.chunk_tokens, True)] if step.chunk_tokens else []
    return costs.step_time_s(step.num_tokens, len(contexts), sum(contexts), max(contexts, default=0), chunks)
