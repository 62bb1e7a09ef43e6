"""``simulate``: one call from a configuration to a result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from policies.catalog import Card, ModelShape, card
from policies.core.engine import Engine
from policies.core.errors import ConfigError, UserError
from policies.core.protocols import Policy, StepObserver
from policies.core.request import Slo
from policies.presets import EngineOptions, Parameters, build_policy, choose, resolve
from sim.collector import no_garbage_collection
from sim.config import RunConfig, load_config
from sim.costs.model import CostModel
from sim.costs.pool import check_fits, kv_pool
from sim.interrupts import interrupting
from sim.machine import costs_of, model_notes, shape_of, swap_link
from sim.notes import setup_notes
from sim.result import Result
from sim.runs import check_new, make_new
from sim.world.pace import Pace, PacedCosts
from sim.world.replica import StepCosts
from sim.world.services import SimServices
from sim.world.world import Progress, World
from traces.workload.source import Workload, build_source

__all__ = ["Result", "Setup", "limits_of", "prepare", "run_setup", "simulate"]


def simulate(
    config: RunConfig | str | Mapping[str, object] | None = None,
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: Progress | None = None,
    **flags: Any,
) -> Result:
    """Run one simulation.

    ``config`` is a RunConfig, the path of a RUN.toml, or its tables as a dictionary; ``overrides`` are
    ``"section.key=value"`` strings and ``flags`` the keyword arguments of ``sim.config.load_config`` (trace, policy,
    model, hardware, ...). With ``out`` the record goes into that folder: Parquet tables at the level of ``sim.record``,
    run.toml, digest.json and summary.json; without it the result keeps these tables in memory.

    Raises a UserError (ConfigError, TraceError, CatalogError, CostFileError) for input that cannot be run. A run that
    the engine does not survive is a result with that ``status``.
    """
    remarks: list[str] = []
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides, remarks, **flags)
    elif overrides or flags:
        raise UserError("simulate: give a RunConfig, or a path or tables with overrides and flags, not both")
    if out is not None:
        check_new(Path(out))
    return run_setup(prepare(config, remarks), out=out, progress=progress, keep=True)


_MOST_BLOCKS = 200_000_000
"""KV blocks of a pool: the queue of free ones takes 40 bytes for each that was ever used."""


class Setup(NamedTuple):
    """Everything a run needs, checked and built. ``shape`` is what one GPU holds of the model."""

    config: RunConfig
    shape: ModelShape
    card: Card
    parameters: Parameters
    costs: CostModel
    services: SimServices
    policy: Policy
    options: EngineOptions
    workload: Workload
    notices: tuple[str, ...]


def prepare(
    config: RunConfig,
    remarks: Sequence[str] = (),
    *,
    costs: CostModel | None = None,
    workload: Workload | None = None,
    num_gpu_blocks: int | None = None,
) -> Setup:
    """Look everything up and build the policy; every user error is raised here. ``remarks`` on the configuration become
    the first notices. ``costs`` and ``workload`` take the place of what the configuration names; ``num_gpu_blocks``
    are those that a real device holds, whatever the card of the catalog does. Blocks have ids where somebody reads
    them: a real device, the check of a class of the user's, or the log of decisions."""
    shape, device = shape_of(config), card(config.hardware.name)
    chosen, custom = choose(config.engine.preset, config.engine.policy)
    parameters = resolve(
        chosen, config.engine.to_dict(), max_model_len=shape.max_model_len, card=device, custom=custom
    )
    parameters = parameters.with_own(config.policy.to_dict())
    is_real = num_gpu_blocks is not None
    if num_gpu_blocks is None:
        num_gpu_blocks = _num_gpu_blocks(config, shape, device, parameters)
    if costs is None:
        costs = costs_of(config, shape, device, parameters.preset)
    services = SimServices(costs)
    workload = workload or build_source(config.workload, parameters.max_model_len)
    policy, options = build_policy(
        parameters,
        num_gpu_blocks=num_gpu_blocks,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        pieces_per_block=swap_link(config, shape, 1).pieces_per_block,
        services=services,
        numbered=is_real or custom is not None or config.sim.record == "decisions",
    )
    if custom is not None:
        from policies.kit.checked import CheckedPolicy  # built-in policies never pay for it

        policy = CheckedPolicy(policy, custom)
    notices = setup_notes(parameters, workload, costs, (*remarks, *model_notes(config)))
    return Setup(config, shape, device, parameters, costs, services, policy, options, workload, notices)


def _ends_hangs(address: str) -> AbstractContextManager[None]:
    from policies.kit.hang import RUN_PATIENCE_S, ends_hangs  # built-in policies never pay for it

    return ends_hangs(address, RUN_PATIENCE_S)


def _num_gpu_blocks(config: RunConfig, shape: ModelShape, device: Card, parameters: Parameters) -> int:
    """As given, or what the card's memory holds."""
    given = config.engine.num_gpu_blocks
    if given is not None:
        check_fits(shape, device, given, parameters.pool_block_size)
    num_blocks = _pool_blocks(config, shape, device, parameters) if given is None else given
    if num_blocks > _MOST_BLOCKS:
        raise ConfigError(
            f"{shape.name} on {device.name} has {num_blocks:,} KV blocks, more than are simulated; set "
            f"engine.num_gpu_blocks to {_MOST_BLOCKS:,} or fewer, or raise engine.block_size"
        )
    return num_blocks


def _pool_blocks(config: RunConfig, shape: ModelShape, device: Card, parameters: Parameters) -> int:
    pool = kv_pool(
        shape,
        device,
        max_num_batched_tokens=parameters.max_num_batched_tokens,
        max_num_seqs=parameters.max_num_seqs,
        block_size=parameters.pool_block_size,
        utilization=0.9 if config.engine.gpu_memory_utilization is None else config.engine.gpu_memory_utilization,
    )
    return pool.num_gpu_blocks


def run_setup(
    setup: Setup,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    interruptible: bool = False,
    keep: bool = False,
    pace: Pace | None = None,
) -> Result:
    """Run what ``prepare`` built, once.

    ``interruptible``: the first SIGINT or SIGTERM ends the run at its next step boundary, with status ``interrupted``
    and a summary of what ran; for the main thread of a command. ``keep``: the result has tables and figures even
    without ``out``, for some 130 bytes a request. ``pace`` says how many times as long as by the costs what begins at a
    second of the run takes; the terms of step time in the record are those of the costs all the same.
    """
    from sim.record import RunWriter, Tee

    sim, policy = setup.config.sim, setup.policy
    started_s = time.monotonic()
    folder = None if out is None else make_new(Path(out))
    writer = RunWriter(setup, folder, keep=keep)
    costs: StepCosts = setup.costs
    observer: StepObserver = writer.observer
    if pace is not None:
        costs = paced = PacedCosts(setup.costs, pace)
        observer = Tee(observer, paced)
    engine = Engine(policy, observer=observer, deliver_at_batch_end=setup.options.deliver_at_batch_end)
    world = World(
        engine,
        costs,
        max_model_len=setup.parameters.max_model_len,
        link=swap_link(setup.config, setup.shape, policy.kv.block_size),
        skip_ahead=_skips_ahead(setup),
        reject_over_length=setup.workload.over_length == "reject",
        progress=progress,
    )
    setup.services.lengths = world.clients.unanswered
    world.clients.slo = limits_of(setup.config)
    loop_started_s = time.process_time()
    hangs = nullcontext() if setup.parameters.custom is None else _ends_hangs(setup.parameters.custom)
    with no_garbage_collection(), interrupting(world.interrupt) if interruptible else nullcontext(), hangs:
        try:
            outcome = world.run(setup.workload, writer, sim.max_time_s)
        except UserError:  # such as a class from a file that broke a rule: what it made up is no record
            writer.discard()
            raise
    loop_cpu_s = time.process_time() - loop_started_s
    summary, metrics, message, notices = writer.finish(outcome, loop_cpu_s, started_s)
    toml, memory, digest = setup.config.to_toml(), writer.memory, writer.digest
    return Result(summary, metrics, message, notices, folder, toml=toml, memory=memory, digest=digest)


def limits_of(config: RunConfig) -> Slo | None:
    """The limits that every request carries, if there are any."""
    slo = Slo(**config.slo.to_dict())  # type: ignore[arg-type]
    return slo if any(limit is not None for limit in slo) else None


def _skips_ahead(setup: Setup) -> bool:
    """As configured; by default only what needs no supervision."""
    sim = setup.config.sim
    wanted = setup.parameters.custom is None if sim.skip_ahead is None else sim.skip_ahead
    return wanted and sim.record != "decisions"
