"""Runs policies on the tiny random model with a clock that ticks, freed memory poisoned, and the invariants checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from calibrate.execute import Machine, Options, open_machine, prepare_on
from calibrate.measured import MeasuredWriter
from gpu_backend.backend import ModelBackend
from gpu_backend.batch import physical_blocks
from gpu_backend.clock import TickClock
from gpu_backend.executor import Limits, make_backend
from gpu_backend.loop import Door, Ending, RealTimeLoop
from gpu_backend.traffic import Traffic
from policies.core.engine import Engine
from policies.core.protocols import Policy, StepObserver
from policies.kit.checked import CheckedPolicy
from sim.api import Setup
from sim.config import load_config
from traces.record.events import EventLog
from traces.workload.rows import TraceRow
from traces.workload.source import Workload

PLACEHOLDER = {
    "generator": "closed-loop",
    "concurrency": 1,
    "num_requests": 1,
    "prompt": {"dist": "fixed", "value": 1},
    "output": {"dist": "fixed", "value": 1},
}
"""A configuration names a workload; these tests bring their own rows."""

NAN = float("nan")


@cache
def tiny() -> Machine:
    """The tiny model, fp32 on the CPU."""
    torch.set_num_threads(1)
    config = load_config({"workload": PLACEHOLDER, "model": {"name": "tiny"}})
    return open_machine(config, Options(device="cpu", dtype="float32", ops="torch", seed=3))


def crowd(seed: int, count: int, *, shared: int, prompts: tuple[int, int], outputs: tuple[int, int]) -> list[TraceRow]:
    """Requests that come in pairs, faster than they are served. Some begin with the ``shared`` tokens of a family, now
    and then with nothing behind them; some give up."""
    rng = Random(seed)
    rows = []
    for number in range(count):
        prompt, output = rng.randint(*prompts), rng.randint(*outputs)
        family = rng.choice((None, "a", "a", "b"))
        own = ((f"own{number}", prompt),) if rng.random() < 0.6 else ()
        segments = () if family is None else ((family, shared), *own)
        rows.append(
            TraceRow(
                0.02 * (number // 2),
                sum(length for _, length in segments) or prompt,
                output,
                output + rng.choice((0, 3)),
                priority=rng.randint(0, 2),
                client_id=rng.choice(("x", "y")),
                segments=segments,
                abort_after_s=rng.choice((None, None, None, 0.15, 0.4)),
            )
        )
    return rows


class Ran(NamedTuple):
    """A run that ended: how, and the tokens of each request."""

    ending: Ending
    outputs: Mapping[int, Sequence[int]]
    backend: ModelBackend


def setup_of(engine: Mapping[str, object], rows: Sequence[TraceRow]) -> Setup:
    """What a RUN.toml with that [engine] gives on the tiny model; every decision is recorded."""
    tables: dict[str, Mapping[str, object]] = {"workload": PLACEHOLDER, "model": {"name": "tiny"}}
    config = load_config({**tables, "engine": engine, "sim": {"record": "decisions"}})
    workload = Workload(lambda: iter(rows), len(rows), (), None, 0.0, "a crowd", "trace", "cut")
    setup = prepare_on(tiny(), config, workload=workload)
    if setup.policy.max_in_flight == 1:  # plans made ahead are no business of the ledger
        setup = setup._replace(policy=CheckedPolicy(setup.policy, setup.parameters.preset.name))
    return setup


def run_recorded(setup: Setup, folder: Path) -> Ran:
    """Run it and leave a run folder."""
    folder.mkdir()
    writer = MeasuredWriter(setup, folder, block_bytes=1, hardware="cpu", executor={})
    lengths: dict[int, int] = {}
    setup.services.lengths = lengths
    ran = drive(
        setup.policy,
        setup.workload,
        Limits(setup.parameters.max_model_len, setup.parameters.max_num_seqs),
        lengths,
        observer=writer.observer,
        events=writer.events,
        deliver_at_batch_end=setup.options.deliver_at_batch_end,
        after_step=writer.step_done,
    )
    writer.finish(ran.ending, ran.backend.moved, 0.0, 0.0)
    return ran


def drive(
    policy: Policy,
    workload: Workload,
    limits: Limits,
    lengths: dict[int, int],
    *,
    observer: StepObserver | None = None,
    events: EventLog | None = None,
    deliver_at_batch_end: bool = False,
    after_step: object = None,
) -> Ran:
    """Run rows on the tiny model. After each step blocks are conserved, and free ones are overwritten with NaN."""
    clock = TickClock()
    backend = make_backend(tiny().model, policy, limits, clock)
    cache_NL2KSD = backend.runner.cache.blocks_NL2KSD.fill_(NAN)

    def look() -> None:
        policy.kv.check()
        known = () if policy.kv.prefix_cache is None else policy.kv.prefix_cache.hash_of
        free = [block for block in policy.kv.pool.free_blocks() if block not in known]
        cache_NL2KSD[torch.from_numpy(physical_blocks(free, backend.split))] = NAN
        if callable(after_step):
            after_step()

    loop = RealTimeLoop(
        Engine(policy, observer=observer, deliver_at_batch_end=deliver_at_batch_end),
        backend,
        Traffic.of(workload),
        clock,
        Door(limits.max_model_len),
        events=events,
        on_boundary=look,
    )
    loop.lengths = lengths
    return Ran(loop.run(), backend.outputs, backend)


def alone(rows: Sequence[TraceRow], max_model_len: int) -> Mapping[int, Sequence[int]]:
    """The tokens of each request when nobody else is there."""
    patient = [row._replace(arrival_s=0.0, abort_after_s=None) for row in rows]
    setup = setup_of(
        {"preset": "vllm-0.11", "num_gpu_blocks": 40, "max_model_len": max_model_len, "enable_prefix_caching": False},
        patient,
    )
    workload = setup.workload._replace(concurrency=1)
    limits = Limits(max_model_len, setup.parameters.max_num_seqs)
    return drive(setup.policy, workload, limits, {}).outputs


def check_tokens(made: Mapping[int, Sequence[int]], expected: Mapping[int, Sequence[int]]) -> None:
    """Each request made the tokens that it makes alone, as far as it came."""
    for number, tokens in made.items():
        assert list(tokens) == list(expected[number][: len(tokens)]), f"request {number}"
