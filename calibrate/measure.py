"""``batchscope calibrate measure``: times the executor's steps on this machine's card or CPU, as a profile.

Points are visited in rounds, each round in another order, so that what else the machine does hits all alike; medians of
the rounds are kept. Attention is what a step takes with it beyond what the same step takes without.
"""

from __future__ import annotations

import datetime
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from calibrate.execute import Machine, Options, open_machine, prepare_on, run_on, with_weights
from calibrate.measure_points import Point, Sizes, Step, points
from calibrate.profile import Measurement, Origin, Profile
from policies.core.errors import ConfigError
from sim.api import Setup
from sim.config import RunConfig, load_config

if TYPE_CHECKING:
    from calibrate.measure_steps import StepTimer
    from gpu_backend.cache import KvCache

_K = TypeVar("_K")

SOURCE = "executor"
LEAST_ROUNDS = 5
_SHARE_OF_HOST = 0.15
"""Of the time budget, for runs of the whole loop, which say what the host takes."""

_HOST_TOKENS = 24
_SWAPPED_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
_SEED = 0


class Timed(NamedTuple):
    """Medians of steps and of the head by rows, in seconds; how many rounds, and how many points there were at all."""

    steps: Mapping[Step, float]
    heads: Mapping[int, float]
    swaps: Mapping[int, float]
    rounds: int
    candidates: int


def measure(
    config: RunConfig | None = None,
    *,
    options: Options | None = None,
    card: str | None = None,
    seconds: float = 120.0,
    overrides: Sequence[str] = (),
    tell: Callable[[str], object] = lambda text: None,
    model: str | None = None,
    policy: str | None = None,
) -> Profile:
    """Measure the model, device and sizes of a configuration within about ``seconds``.

    ``card`` is its name in the catalog; on a CPU ``cpu``. UserError for what cannot be run.
    """
    options = options or Options()
    if config is None:
        config = _config(with_weights(overrides, options), model, policy)
    machine = open_machine(config, options)
    card = card or _card_of(machine)
    setup = prepare_on(machine, config)
    timed = _time_steps(machine, setup, options, seconds * (1 - _SHARE_OF_HOST), tell)
    hosts = dict(_time_host(machine, config, options, setup, seconds * _SHARE_OF_HOST, tell))
    shape = machine.model.shape
    rows = [
        *_rows(timed, setup, shape.layers),
        *(Measurement("host", SOURCE, host_s, sequences=batch) for batch, host_s in hosts.items()),
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    origin = Origin(
        f"batchscope calibrate measure on {machine.name}, {_numbers(machine)}",
        "your own measurement",
        today,
        method=(
            f"medians of {timed.rounds} interleaved rounds over {len(timed.steps)} of {timed.candidates} steps;"
            " attention is the difference to the same step without it"
        ),
    )
    return Profile(shape.name, card, 1, today, {SOURCE: origin}, tuple(rows))


_HOST_WORKLOAD = {
    "generator": "closed-loop",
    "prompt": {"dist": "fixed", "value": 8},
    "output": {"dist": "fixed", "value": _HOST_TOKENS},
}
"""Clients in a closed loop: each has a request of few tokens under way all the time."""


def _config(overrides: Sequence[str], model: str | None, policy: str | None) -> RunConfig:
    workload = {**_HOST_WORKLOAD, "concurrency": 1, "num_requests": 1}
    return load_config({"workload": workload}, overrides, model=model, policy=policy)


def _card_of(machine: Machine) -> str:
    if machine.where.device.type == "cpu":
        return "cpu"
    raise ConfigError(
        f"calibrate measure: name the catalog's entry of {machine.name} (--hardware CARD; `batchscope hardware list`)"
    )


def _numbers(machine: Machine) -> str:
    return f"{str(machine.where.dtype).removeprefix('torch.')}, {machine.where.ops.name} operations"


def _time_steps(
    machine: Machine, setup: Setup, options: Options, budget_s: float, tell: Callable[[str], object]
) -> Timed:
    from calibrate.measure_steps import StepTimer
    from gpu_backend.executor import make_cache

    parameters = setup.parameters
    cache = make_cache(machine.model, setup.policy)
    cache.blocks_NL2KSD.normal_(std=0.02)
    num_seqs = parameters.max_num_seqs
    timer = StepTimer(machine.model, cache, num_seqs, graphs=options.graphs)
    candidates = points(
        Sizes(
            parameters.max_model_len,
            num_seqs,
            parameters.max_num_batched_tokens,
            cache.num_blocks * cache.block_size,
        )
    )
    chosen = _affordable(timer, candidates, budget_s)
    tell(f"measuring {len(chosen)} of {len(candidates)} steps of {machine.model.shape.name} on {machine.name}")
    return _rounds(timer, cache, chosen, budget_s, len(candidates))


def _affordable(timer: StepTimer, candidates: Sequence[Point], budget_s: float) -> list[Step]:
    """As many points, coarse ones first, as ``LEAST_ROUNDS`` fit into the budget with; each is run once before."""
    chosen: list[Step] = []
    round_s = 0.0
    for level, step in candidates:
        began = time.perf_counter()
        timer.seconds(step)
        timer.seconds(step)
        round_s += (time.perf_counter() - began) / 2
        if level and round_s * (LEAST_ROUNDS + 2) > budget_s:
            break
        chosen.append(step)
    return chosen


def _rounds(timer: StepTimer, cache: KvCache, steps: Sequence[Step], budget_s: float, candidates: int) -> Timed:
    """Every point once a round, in an order of its own, until the time is over."""
    from calibrate.measure_steps import swap_seconds

    draw = random.Random(_SEED)
    heads = sorted({len(step.contexts) for step in steps if step.bare and step.contexts})
    swaps = [blocks for blocks in _SWAPPED_BLOCKS if blocks <= cache.num_blocks]
    step_times: dict[Step, list[float]] = {step: [] for step in steps}
    head_times: dict[int, list[float]] = {rows: [] for rows in heads}
    swap_times: dict[int, list[float]] = {blocks: [] for blocks in swaps}
    began, rounds, last_s = time.perf_counter(), 0, 0.0
    while rounds < LEAST_ROUNDS or time.perf_counter() - began + last_s < budget_s:
        round_began = time.perf_counter()
        order = list(steps)
        draw.shuffle(order)
        for step in order:
            step_times[step].append(timer.seconds(step))
        for rows in heads:
            head_times[rows].append(timer.head_seconds(rows))
        for blocks in swaps:
            swap_times[blocks].append(swap_seconds(cache, blocks))
        rounds += 1
        last_s = time.perf_counter() - round_began
    return Timed(_medians(step_times), _medians(head_times), _medians(swap_times), rounds, candidates)


def _medians(times: Mapping[_K, Sequence[float]]) -> dict[_K, float]:
    return {key: statistics.median(values) for key, values in times.items()}


def _time_host(
    machine: Machine,
    config: RunConfig,
    options: Options,
    setup: Setup,
    budget_s: float,
    tell: Callable[[str], object],
) -> Iterator[tuple[int, float]]:
    """(sequences, median host time of a step) of whole runs of the executor's loop."""
    began = time.perf_counter()
    batches = [batch for batch in (1, 4, 16, 64) if batch <= setup.parameters.max_num_seqs]
    for batch in batches:
        if batch > 1 and time.perf_counter() - began > budget_s / 2:
            break
        tables = config.to_dict()
        tables["workload"] = {**_HOST_WORKLOAD, "concurrency": batch, "num_requests": 2 * batch}
        one = prepare_on(machine, load_config(tables, ()))
        summary = run_on(machine, one, options).summary["executor"]
        yield batch, summary["host_before_s"]["p50"] + summary["host_after_s"]["p50"]
    tell(f"host time of {len(batches)} batch sizes")


def _rows(timed: Timed, setup: Setup, layers: int) -> Iterator[Measurement]:
    steps, heads = timed.steps, timed.heads
    most = max(heads)
    for rows, seconds in heads.items():
        yield Measurement("head", SOURCE, seconds, sequences=rows)
    for step, seconds in steps.items():
        batch = len(step.contexts)
        if step.bare and (batch or step.chunk_tokens > most):
            layer_s = max(seconds - heads[batch or 1], 0.0) / layers
            yield Measurement("linear", SOURCE, layer_s, tokens=step.num_tokens)
        elif not step.bare:
            yield from _attention(step, seconds, steps, layers)
    block_bytes = setup.shape.block_bytes(setup.policy.kv.block_size)
    for blocks, seconds in timed.swaps.items():
        yield Measurement("swap", SOURCE, seconds, bytes=blocks * block_bytes, pieces=1)


def _attention(step: Step, seconds: float, steps: Mapping[Step, float], layers: int) -> Iterator[Measurement]:
    """One row of a step with attention: of both kinds as a whole, else what attention adds to the step without."""
    batch = len(step.contexts)
    if batch and step.chunk_tokens:
        yield Measurement(
            "step",
            SOURCE,
            seconds,
            sequences=batch,
            context=step.contexts[0] - 1,
            chunks=1,
            chunk_tokens=step.chunk_tokens,
        )
        return
    bare_s = next(
        other_s
        for other, other_s in steps.items()
        if other.bare and (len(other.contexts), other.chunk_tokens) == (batch, step.chunk_tokens)
    )
    attention_s = max(seconds - bare_s, 0.0) / layers
    if not batch:
        yield Measurement(
            "prefill", SOURCE, attention_s, chunks=1, chunk_tokens=step.chunk_tokens, chunk_context=step.chunk_context
        )
        return
    mean, longest = sum(step.contexts) // batch, max(step.contexts)
    if longest == mean:
        yield Measurement("decode", SOURCE, attention_s, sequences=batch, context=mean - 1)
        return
    even = steps.get(Step((mean,) * batch))
    if even is not None:
        even_s = max(even - bare_s, 0.0) / layers
        yield Measurement(
            "uneven",
            SOURCE,
            attention_s,
            sequences=batch,
            context=mean - 1,
            longest_context=longest - 1,
            even_seconds=even_s,
            longest_seconds=even_s * longest / mean,
        )


def run_measure(
    config: str | None,
    out: str,
    seconds: float,
    card: str | None,
    *,
    overrides: Sequence[str],
    tell: Callable[[str], object],
    model: str | None = None,
    policy: str | None = None,
    **how: Any,
) -> str:
    """What the command does: measure, write, and say what was written. ``how`` are fields of ``Options``."""
    options = Options(**how)
    given = None
    if config is not None:
        given = load_config(config, with_weights(overrides, options), model=model, policy=policy)
    profile = measure(
        given,
        options=options,
        card=card,
        seconds=seconds,
        overrides=overrides,
        tell=tell,
        model=model,
        policy=policy,
    )
    return write(profile, Path(out))


def write(profile: Profile, out: Path) -> str:
    """Write the profile; what it holds, for people."""
    from calibrate.profile import ranges
    from calibrate.profile_file import write_profile

    write_profile(profile, out)
    lines = [profile.sources[SOURCE].origin, f"  {profile.sources[SOURCE].method}"]
    lines += [f"  {name}: {least:,} to {most:,}" for name, least, most in ranges(profile.rows)]
    return "\n".join([*lines, f"written: {out}", f"next: batchscope calibrate fit --profile {out} --out costs.json"])
