"""A run on the model as ``batchscope execute`` and the check of a card make it; needs no simulator."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_backend.clock import RealClock
from policies.core.protocols import Policy
from policies.presets import Parameters
from sim.collector import no_garbage_collection

if TYPE_CHECKING:
    from gpu_backend.backend import ModelBackend
    from gpu_backend.loop import Ending, RealTimeLoop
    from gpu_backend.model import LlamaModel


class TimedRun(NamedTuple):
    """How a run ended, and the CPU seconds of this process that it took."""

    ending: Ending
    cpu_s: float


def ready_backend(
    model: LlamaModel, policy: Policy, parameters: Parameters, clock: RealClock, **how: Any
) -> ModelBackend:
    """Memory, graphs and first calls, so that the clock starts when all is ready; ``how`` goes to ``make_backend``."""
    from gpu_backend.executor import Limits, make_backend
    from gpu_backend.warm_up import warm_up

    limits = Limits(parameters.max_model_len, parameters.max_num_seqs)
    backend = make_backend(model, policy, limits, clock, **how)
    warm_up(backend.runner, min(parameters.max_num_batched_tokens, parameters.max_model_len))
    return backend


def timed_run(loop: RealTimeLoop, clock: RealClock, max_time_s: float | None) -> TimedRun:
    """Run the loop from time 0 on, undisturbed by the garbage collector."""
    gc.collect()
    with no_garbage_collection():
        cpu_s = time.process_time()
        clock.restart()
        ending = loop.run(max_time_s)
        return TimedRun(ending, time.process_time() - cpu_s)
