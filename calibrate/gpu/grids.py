"""Stages 3 and 4: the model on the device with its graphs, and its steps beside what the device allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from calibrate.gpu.bounds import bound, step_bound_s
from calibrate.gpu.drive import drive
from calibrate.gpu.host import host_time
from calibrate.gpu.replay import divisor, release
from calibrate.gpu.scenarios import scenarios
from calibrate.gpu.timing import device_s, synchronize
from calibrate.measure_points import BLOCK_SIZE, Sizes, Step, points
from calibrate.measure_rounds import LEAST_ROUNDS, Rounds
from calibrate.measure_rows import Timed
from calibrate.measure_steps import StepTimer, SwapTimer
from gpu_backend.cache import KvCache, block_bytes
from gpu_backend.device import free_bytes

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check
    from policies.catalog import ModelShape
    from sim.costs.floor import Floor

CONTEXT = 275
"""Mean context of c32, at which decode steps have their targets."""

_SHARE_OF_FREE_MEMORY = 0.7
_LEAST_POINTS = 3
"""Decode points that are measured whatever the time: those with targets."""


class Grid(NamedTuple):
    """How far to measure: sizes for the fit, and the points of the tables."""

    sizes: Sizes
    decode: tuple[tuple[int, int], ...]
    """Sequences and context."""
    eager: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    """Tokens of a chunk, and cached tokens before it."""
    mixed: tuple[tuple[int, int], ...]
    """Sequences beside a chunk of so many tokens."""
    swaps: tuple[int, ...]
    hosts: tuple[int, ...]
    """Clients of the runs that tell what the host takes."""
    finest: int
    """Level of the finest points for the fit."""
    rounds: int
    """Most rounds over them."""


def grid(on_cuda: bool, shape: ModelShape, cache_tokens: int) -> Grid:
    """The grid of a device; points that the model or the cache has no room for are left out."""
    if on_cuda:
        longest = min(shape.max_model_len, 4096)
        decode = [(rows, CONTEXT) for rows in (1, 8, 32)]
        decode += [(rows, context) for rows in (1, 2, 4, 8, 16, 32, 64) for context in (128, 512, 1024, 2048)]
        prefill = [(2048, 0), (512, 0), (16, 0), (64, 0), (128, 0), (256, 0), (1024, 0), (4096, 0)]
        prefill += [(512, 512), (512, 1536), (16, 1024)]
        mixed = [(rows, tokens) for rows in (8, 32) for tokens in (128, 512)]
        sizes = Sizes(longest, 64, longest, cache_tokens)
        swaps: tuple[int, ...] = (1, 4, 16, 64, 128)
        hosts: tuple[int, ...] = (32, 1, 8)
        eager: tuple[int, ...] = (1, 8, 32)
    else:
        longest = min(shape.max_model_len, 256)
        decode = [(rows, context) for rows in (1, 8, 32) for context in (28, 100)]
        prefill, mixed = [(16, 0), (64, 0), (64, 32)], [(8, 16)]
        sizes, swaps, hosts = Sizes(longest, 32, longest, cache_tokens), (1, 4, 16), (8, 1)
        eager = ()
    fits = [
        (rows, context)
        for rows, context in decode
        if context <= shape.max_model_len and rows * (context + BLOCK_SIZE) <= cache_tokens
    ]
    chunks = [pair for pair in prefill if sum(pair) <= shape.max_model_len]
    finest, rounds = (2, 3 * LEAST_ROUNDS) if on_cuda else (0, LEAST_ROUNDS)
    return Grid(sizes, tuple(fits), eager, tuple(chunks), tuple(mixed), swaps, hosts, finest, rounds)


def make_timer(check: Check) -> StepTimer:
    """The timer of the model in as large a pool as the grid can use."""
    shape, where = check.model.shape, check.where
    most = 64 * 2064 if check.settings.on_cuda else 32 * 256
    each = block_bytes(shape, BLOCK_SIZE, where.dtype)
    blocks = min(most // BLOCK_SIZE, int(_SHARE_OF_FREE_MEMORY * free_bytes(where.device)) // each)
    cache = KvCache(blocks, shape, BLOCK_SIZE, where.dtype, where.device)
    cache.blocks_NL2KSD.normal_(std=0.02)
    return StepTimer(check.model, cache, 64 if check.settings.on_cuda else 32, graphs=True)


def run_model(check: Check) -> None:
    """Stage 3: weights, then graphs."""
    began = time.perf_counter()
    weights = check.model.weights
    _wait(check)
    made_s = time.perf_counter() - began
    check.record.keep(weights_bytes=weights.num_bytes, weights_s=made_s)
    check.say(f"{check.model.shape.name}: {weights.num_bytes / 1e9:.2f} GB of random weights in {made_s:.1f} s")
    began = time.perf_counter()
    runner = check.timer.full
    _wait(check)
    captured_s = time.perf_counter() - began
    sizes = [] if runner.graphs is None else list(runner.graphs.sizes)
    check.record.keep(pool_blocks=runner.cache.num_blocks, graphs=sizes, graphs_s=captured_s)
    check.say(f"pool of {runner.cache.num_blocks:,} blocks; {len(sizes)} graphs, with and without attention, in "
              f"{captured_s:.1f} s")  # fmt: skip


def run(check: Check) -> None:
    """Stage 4: the points with targets first, then swaps, the host, the points of the fit, and what is left."""
    cache = check.timer.full.cache
    shape = check.model.shape
    floor = bound(shape, check.found("environment"), check.where.dtype.itemsize)
    chosen = grid(check.settings.on_cuda, shape, cache.num_blocks * cache.block_size)
    swaps = [blocks for blocks in chosen.swaps if blocks <= cache.num_blocks]
    swap_timer = SwapTimer(cache, swaps[-1])
    _decode(check, chosen, floor, 0.6 * check.left_s())
    _chunks(check, chosen, floor)
    _swap(check, swap_timer, swaps)
    _fit_points(check, chosen, swap_timer, swaps)
    del cache, swap_timer  # their memory is wanted for the runs
    _host(check, chosen)


# -- tables --------------------------------------------------------------------------------------------------


def _decode(check: Check, chosen: Grid, floor: Floor | None, reserve_s: float) -> None:
    """Decode steps as a whole, their graph alone, and both beside the bound, until ``reserve_s`` are left."""
    rows: list[dict[str, Any]] = []
    eager_timer = _eager_timer(check) if chosen.eager else None
    for batch, context in chosen.decode:
        step = Step((context,) * batch)
        found: dict[str, Any] = {"sequences": batch, "context": context, "step_s": _median(check.timer, step)}
        found["graph_s"] = _graph_s(check, step)
        if eager_timer is not None and context == CONTEXT and batch in chosen.eager:
            found["eager_s"] = _median(eager_timer, step)
        bare_s = _median(check.timer, Step(step.contexts, bare=True))
        found["attention_s"] = max(found["step_s"] - bare_s, 0.0)
        if floor is not None:
            found["bound_s"] = step_bound_s(floor, step.contexts, 0, 0)
            found["attention_bound_s"] = floor.context_read_s * batch * context
        rows.append(found)
        check.record.keep(decode=rows)
        check.say(_decode_words(found))
        if len(rows) >= _LEAST_POINTS and check.left_s() < reserve_s:
            break


def _decode_words(found: dict[str, Any]) -> str:
    words = [f"decode {found['sequences']} x {found['context']}: step {_ms(found['step_s'])}"]
    for key, name in (("graph_s", "graph"), ("eager_s", "eager"), ("bound_s", "bound")):
        if found.get(key) is not None:
            words.append(f"{name} {_ms(found[key])}")
    return ", ".join(words)


def _eager_timer(check: Check) -> StepTimer:
    return StepTimer(check.model, check.timer.full.cache, 64, graphs=False)


def _graph_s(check: Check, step: Step) -> float | None:
    """Device time of the graph of a decode step alone; None where there is none."""
    graphs, batch = check.timer.full.graphs, len(step.contexts)
    size = None if graphs is None else next((size for size in graphs.sizes if size >= batch), None)
    if graphs is None or size is None:
        return None
    check.timer.seconds(step)  # leaves the step in the graph's buffers
    return device_s(check.where.device, lambda: graphs.replay(size), times=20, warm=3)


def _chunks(check: Check, chosen: Grid, floor: Floor | None) -> None:
    """Prefill of one request, and beside decoding ones."""
    steps = [Step(chunk_tokens=tokens, chunk_context=context) for tokens, context in chosen.prefill]
    steps += [Step((CONTEXT if check.settings.on_cuda else 28,) * rows, tokens) for rows, tokens in chosen.mixed]
    rows: list[dict[str, Any]] = []
    for step in steps:
        found = {
            "sequences": len(step.contexts),
            "context": step.contexts[0] if step.contexts else 0,
            "chunk_tokens": step.chunk_tokens,
            "chunk_context": step.chunk_context,
            "step_s": _median(check.timer, step),
        }
        if floor is not None:
            found["bound_s"] = step_bound_s(floor, step.contexts, step.chunk_tokens, step.chunk_context)
        rows.append(found)
        check.record.keep(prefill=rows)
        beside = f" beside {found['sequences']} x {found['context']}" if step.contexts else ""
        check.say(
            f"prefill {step.chunk_tokens} over {step.chunk_context}{beside}: {_ms(found['step_s'])}"
            + (f", bound {_ms(found['bound_s'])}" if "bound_s" in found else "")
        )


def _swap(check: Check, timer: SwapTimer, sizes: Sequence[int]) -> None:
    """Transfers of consecutive blocks, out and in."""
    rows, each = [], check.timer.full.cache.block_bytes
    directions: tuple[Literal["out", "in"], ...] = ("out", "in")
    for blocks in sizes:
        row: dict[str, Any] = {"blocks": blocks, "bytes": blocks * each}
        for kind in directions:
            seconds = statistics.median(timer.seconds(blocks, kind) for _ in range(7))
            row[f"{kind}_s"] = seconds
            row[f"{kind}_bytes_per_s"] = row["bytes"] / seconds
        rows.append(row)
        check.record.keep(swap=rows)
        speeds = ", ".join(f"{kind} {row[f'{kind}_bytes_per_s'] / 1e9:.2f}" for kind in directions)
        check.say(f"swap {blocks} blocks: {speeds} GB/s")


# -- for the fit ---------------------------------------------------------------------------------------------


def _fit_points(check: Check, chosen: Grid, swap_timer: SwapTimer, swaps: Sequence[int]) -> None:
    """Rounds over as many points as most of the stage's time allows, and at least some."""
    budget_s = 0.75 * check.left_s()
    until_s = time.monotonic() + budget_s
    candidates = [point for point in points(chosen.sizes) if point.level <= chosen.finest]
    rounds = Rounds(check.timer, swap_timer, candidates, swaps)
    rounds.choose(budget_s)
    last_s = 0.0
    while rounds.rounds < 2 or (time.monotonic() + last_s < until_s and rounds.rounds < chosen.rounds):
        began_s = time.monotonic()
        rounds.round()
        last_s = time.monotonic() - began_s
    timed = rounds.timed()
    check.record.keep(rounds=rounds.rounds, candidates=len(rounds.candidates), timed=stored(timed))
    check.say(f"{len(timed.steps)} of {len(rounds.candidates)} steps for the fit, {rounds.rounds} rounds")


def stored(timed: Timed) -> dict[str, Any]:
    """The points, without the host's, as JSON has them and ``fitted.read_timed`` reads them."""
    return {
        "steps": [[_runs(step.contexts), *step[1:], seconds] for step, seconds in timed.steps.items()],
        "heads": list(timed.heads.items()),
        "swaps": list(timed.swaps.items()),
    }


def _runs(contexts: tuple[int, ...]) -> list[list[int]]:
    """Contexts as (context, sequences) of equal neighbours."""
    found: list[list[int]] = []
    for context in contexts:
        if found and found[-1][0] == context:
            found[-1][1] += 1
        else:
            found.append([context, 1])
    return found


def _host(check: Check, chosen: Grid) -> None:
    """Whole runs of the loop: what a step takes beyond the device, and beyond its graph."""
    graphs = {batch: _graph_curve(check, batch) for batch in chosen.hosts}
    check.drop("timer")
    release(check)
    usual = scenarios(check.model.shape, divisor(check.settings.on_cuda))[0]
    rows = []
    for clients in chosen.hosts:
        tables = {name: dict(table) for name, table in usual.tables.items()}
        tables["engine"]["max_num_seqs"] = clients
        tables["workload"] |= {
            "concurrency": clients,
            "num_requests": clients,
            "prompt": {"dist": "fixed", "value": 8},
            "output": {"dist": "fixed", "value": 40},
        }
        driven = drive(check.model, tables)
        curve = graphs[clients]
        found = host_time(driven.steps, clients, curve)
        del driven
        release(check)
        if found is None:
            continue
        rows.append(found._asdict())
        check.record.keep(host=rows)
        outside = found.outside_graph_s
        check.say(
            f"{clients} clients: a step every {_ms(found.interval_s)}, host {_ms(found.host_s)} beside the device"
            + ("" if outside is None else f", {_ms(outside)} outside the graph")
        )


def _graph_curve(check: Check, batch: int) -> Callable[[float], float] | None:
    """Seconds of a batch's graph as a function of the context, by a line through two; None without graphs."""
    short, long = 16, 64
    first, last = (_graph_s(check, Step((context,) * batch)) for context in (short, long))
    if first is None or last is None:
        return None
    slope = (last - first) / (long - short)
    return lambda context: first + slope * (context - short)


def _median(timer: StepTimer, step: Step) -> float:
    timer.seconds(step)
    timer.seconds(step)
    return statistics.median(timer.seconds(step) for _ in range(5))


def _wait(check: Check) -> None:
    synchronize(check.where.device)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"
