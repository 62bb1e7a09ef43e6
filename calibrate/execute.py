"""``batchscope execute``: the RUN.toml that a simulation reads, on the real executor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.execute_memory import check_room, device_blocks, swap_bytes
from calibrate.execute_run import ready_backend, timed_run
from calibrate.measured import MeasuredWriter
from gpu_backend.clock import RealClock
from gpu_backend.extras import require
from policies.core.engine import Engine
from policies.core.errors import ConfigError, UserError, WeightsError
from policies.presets import Parameters, choose, resolve
from sim.api import Setup, limits_of, prepare
from sim.config import RunConfig, config_from_tables, load_config
from sim.interrupts import interrupting
from sim.machine import model_notes, shape_of
from sim.notes import workload_notes
from sim.record import Tee
from sim.result import Result
from sim.runs import check_new, make_new
from traces.workload.source import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpu_backend.backend import ModelBackend
    from gpu_backend.batch import PromptOf
    from gpu_backend.device import Placement
    from gpu_backend.model import LlamaModel
    from gpu_backend.runner import Sampling
    from policies.core.protocols import StepObserver

RANDOM = "random"
"""Weights that are drawn, in the shape that [model] names."""


class Options(NamedTuple):
    """How the model runs: device (auto, cpu, cuda, cuda:N), ops (auto, torch, triton), dtype (auto, float32, float16,
    bfloat16), ``weights`` a folder or ``random``, and how tokens are chosen. ``seed`` draws weights, the tokens of
    prompts that nobody gave, and samples."""

    device: str = "auto"
    ops: str = "auto"
    dtype: str = "auto"
    weights: str = RANDOM
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    batch_invariant: bool = False
    graphs: bool = True
    overlap: bool = True


class Texts(NamedTuple):
    """What a run with a given text knows beside lengths: its tokens, what ends an answer, and who reads it."""

    prompt_of: PromptOf
    stop_ids: Collection[int]
    on_token: Callable[[int, int], object]


class Machine(NamedTuple):
    """A loaded model and where it runs."""

    model: LlamaModel
    where: Placement
    name: str
    """Of the device, as it calls itself."""


def execute(
    config: RunConfig | str | Mapping[str, object] | None = None,
    *,
    options: Options | None = None,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: Callable[[float, int], None] | None = None,
    **flags: Any,
) -> Result:
    """Run one workload on a real model; parameters and result are those of ``sim.simulate``.

    The result's side is ``server-measured`` and its hardware the real device. Raises a UserError for input that cannot
    be run, before anything is written.
    """
    options = options or Options()
    remarks: list[str] = []
    if not isinstance(config, RunConfig):
        config = load_config(config, with_weights(overrides, options), remarks, **flags)
    if out is not None:
        check_new(Path(out))
    machine = open_machine(config, options)
    setup = prepare_on(machine, config, remarks)
    return run_on(machine, setup, options, out=out, progress=progress)


def with_weights(overrides: Sequence[str], options: Options) -> Sequence[str]:
    """With the shape of a model's folder in place of the name of a model."""
    if options.weights == RANDOM or any(text.startswith("model.config=") for text in overrides):
        return overrides
    path = Path(options.weights) / "config.json"
    if not path.is_file():
        raise WeightsError(f"--weights {options.weights}: no config.json there; name a folder of Hugging Face's layout")
    return (*overrides, f"model.config={path}")


def open_machine(config: RunConfig, options: Options) -> Machine:
    """Load the model. Raises a UserError for a device that is not there, weights that are no Llama's, and so on."""
    check_choices(options)
    require("torch", "safetensors", extra="gpu")
    from gpu_backend.device import device_name, placement
    from gpu_backend.model import LlamaModel, open_model
    from gpu_backend.weights import random_weights

    _check_whole_numbers(config)
    shape = shape_of(config)
    where = placement(options.device, options.dtype, options.ops, batch_invariant=options.batch_invariant)
    if options.weights == RANDOM:
        weights = random_weights(shape, dtype=where.dtype, device=where.device, seed=options.seed)
        model = LlamaModel(shape, weights, where.ops)
    else:
        model = open_model(options.weights, where)
    return Machine(model, where, device_name(where.device))


def check_choices(options: Options) -> None:
    """ConfigError for numbers that nothing can be drawn with."""
    for name, value, fits, words in (
        ("temperature", options.temperature, 0.0 <= options.temperature <= 100.0, "a number from 0 to 100"),
        ("top-p", options.top_p, 0.0 < options.top_p <= 1.0, "a number above 0 and at most 1"),
        ("seed", options.seed, 0 <= options.seed < 1 << 63, "a whole number from 0 to 2^63 - 1"),
    ):
        if not fits:
            raise ConfigError(f"--{name} {value}: give {words}")


def _check_whole_numbers(config: RunConfig) -> None:
    """The executor runs whole models in one dtype on one device."""
    for section, name, value, plain in (
        ("hardware", "tp", config.hardware.tp, 1),
        ("model", "weight_bits", config.model.weight_bits, 16),
        ("model", "kv_bits", config.model.kv_bits, 16),
    ):
        if value != plain:
            raise ConfigError(
                f"{section}.{name} = {value}: the executor runs a whole model on one device, in the numbers of --dtype;"
                " leave it out"
            )


def prepare_on(
    machine: Machine, config: RunConfig, remarks: Sequence[str] = (), workload: Workload | None = None
) -> Setup:
    """``sim.api.prepare`` for a real device: the KV pool is what its memory holds, unless the configuration says."""
    shape = shape_of(config)
    chosen, custom = choose(config.engine.preset, config.engine.policy)
    parameters = resolve(chosen, config.engine.to_dict(), max_model_len=shape.max_model_len, custom=custom)
    said = list(remarks)
    tables = config.to_dict()
    engine = tables["engine"]
    if config.engine.num_gpu_blocks is None:
        engine["num_gpu_blocks"] = device_blocks(machine.model, parameters, engine.pop("gpu_memory_utilization", None))
    blocks = engine["num_gpu_blocks"]
    assert isinstance(blocks, int)
    check_room(machine.model, parameters, blocks)
    _limit_swap(machine, parameters, engine, blocks, said)
    sized = config_from_tables(tables)
    setup = prepare(sized, workload=workload, num_gpu_blocks=blocks)
    notices = (*said, *model_notes(sized), *workload_notes(setup.parameters, setup.workload))
    return setup._replace(notices=notices)


def _limit_swap(
    machine: Machine, parameters: Parameters, engine: dict[str, object], blocks: int, said: list[str]
) -> None:
    """No more CPU blocks than can be of use, where nobody asked for a number: the memory is really taken."""
    usual = parameters.values.get("swap_space_bytes")
    if "swap_space_bytes" in engine or not usual:
        return
    most = swap_bytes(machine.model.shape, parameters, blocks)
    if most < int(usual):
        engine["swap_space_bytes"] = most
        said.append(f"engine.swap_space_bytes = {most:,}, four times the KV pool, in place of the usual {int(usual):,}")


def run_on(
    machine: Machine,
    setup: Setup,
    options: Options,
    *,
    out: str | Path | Callable[[], Path] | None = None,
    texts: Texts | None = None,
    progress: Callable[[float, int], None] | None = None,
    interruptible: bool = False,
    observer: StepObserver | None = None,
    clock: RealClock | None = None,
) -> Result:
    """Run what ``prepare_on`` built, once; ``interruptible`` as for ``sim.api.run_setup``. ``out`` may be what makes
    the folder, which is called when memory has been found for everything. ``observer`` is told of every step, too.
    ``clock`` is for who wants to stop it in between."""
    from gpu_backend.loop import Door, RealTimeLoop
    from gpu_backend.traffic import Traffic

    started_s = time.monotonic()
    clock = clock or RealClock()
    backend = _backend(machine, setup, options, clock, texts)
    folder = None if out is None else make_new(out() if callable(out) else Path(out))
    writer = MeasuredWriter(
        setup,
        folder,
        block_bytes=backend.runner.cache.block_bytes * backend.split,
        hardware=machine.name,
        executor=_how(machine, options, backend),
    )
    watching = writer.observer if observer is None else Tee(writer.observer, observer)
    engine = Engine(setup.policy, observer=watching, deliver_at_batch_end=setup.options.deliver_at_batch_end)
    workload = setup.workload
    loop = RealTimeLoop(
        engine,
        backend,
        Traffic.of(workload),
        clock,
        Door(setup.parameters.max_model_len, workload.over_length == "reject", limits_of(setup.config)),
        events=writer.events,
        on_boundary=writer.step_done,
        on_progress=progress,
        overlap=options.overlap,
    )
    setup.services.lengths = loop.lengths
    with interrupting(loop.interrupt) if interruptible else nullcontext():
        try:
            with _memory_errors(machine), _disk_errors(folder):
                ending, cpu_s = timed_run(loop, clock, setup.config.sim.max_time_s)
        except UserError:  # a class from a file that broke a rule, or memory that ran out: no figures
            writer.discard()
            raise
    backend.transfers_done()
    with _disk_errors(folder):
        summary, metrics, message, notices = writer.finish(ending, backend.moved, cpu_s, started_s)
    toml = setup.config.to_toml()
    return Result(
        summary, metrics, message, notices, folder, toml=toml, memory=writer.memory, digest=writer.digest
    )


def _backend(
    machine: Machine, setup: Setup, options: Options, clock: RealClock, texts: Texts | None
) -> ModelBackend:
    how = {"sampling": _sampling(options), "graphs": options.graphs, **({} if texts is None else texts._asdict())}
    return ready_backend(machine.model, setup.policy, setup.parameters, clock, **how)


def _sampling(options: Options) -> Sampling:
    from gpu_backend.runner import Sampling

    return Sampling(options.temperature, options.top_p, options.seed)


def _how(machine: Machine, options: Options, backend: ModelBackend) -> dict[str, object]:
    """What the summary says of the executor."""
    import torch

    graphs = backend.runner.graphs
    return {
        "device": machine.where.device.type,
        "dtype": str(machine.where.dtype).removeprefix("torch."),
        "ops": machine.where.ops.name,
        "batch_invariant": machine.where.ops.batch_invariant,
        "weights": options.weights,
        "seed": options.seed,
        "torch": str(torch.__version__),
        "graphs": 0 if graphs is None else len(graphs.sizes),
        "overlap": options.overlap,
    }


@contextmanager
def _memory_errors(machine: Machine) -> Iterator[None]:
    """Memory that runs out in the middle of a run is one line, too."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"{machine.name}: out of memory in the middle of the run; lower engine.num_gpu_blocks,"
            " engine.gpu_memory_utilization or engine.max_num_batched_tokens"
        ) from None


@contextmanager
def _disk_errors(folder: Path | None) -> Iterator[None]:
    """A disk that is full names the folder: a write knows no file."""
    try:
        yield
    except OSError as error:
        if folder is not None and error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(folder)) from None
        raise
