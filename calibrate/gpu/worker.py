"""The process that runs stages one after the other, so that the model is made once; its parent may kill it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrate.gpu.record import COMPLETE, FAILED, Settings, StageRecord, found_in
from calibrate.gpu.stages import Stage
from gpu_backend.extras import require
from policies.core.errors import ConfigError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from calibrate.measure_steps import StepTimer
    from gpu_backend.device import Placement
    from gpu_backend.model import LlamaModel

_MARGIN = 0.08
"""Of a stage's time that it leaves over of itself, so that it is not killed."""


class Check:
    """What the stages of one process share: device, model and timer are made when first asked for."""

    record: StageRecord

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._until_s = 0.0

    def begin(self, record: StageRecord, until_s: float) -> None:
        """The next stage, with its record and the time when it should be over."""
        self.record = record
        left_s = until_s - time.monotonic()
        self._until_s = until_s - _MARGIN * left_s

    def left_s(self) -> float:
        """Seconds that the stage has left."""
        return self._until_s - time.monotonic()

    def say(self, text: str) -> None:
        """A line for who watches."""
        print(f"  {text}", flush=True)

    def found(self, stage: str) -> dict[str, Any]:
        """What an earlier stage found."""
        return found_in(self.settings.out, stage)

    @cached_property
    def where(self) -> Placement:
        """The device with its usual dtype and operations. ConfigError where it is not there."""
        require("torch", "safetensors", extra="gpu")
        from gpu_backend.device import placement

        return placement(self.settings.device)

    @cached_property
    def model(self) -> LlamaModel:
        """The model of the check, with random weights."""
        from gpu_backend.model import open_model

        return open_model(self.settings.model, self.where)

    @cached_property
    def timer(self) -> StepTimer:
        """Times steps of the model in a pool of its own; on CUDA decode steps are graphs."""
        from calibrate.gpu.grids import make_timer

        return make_timer(self)

    def drop(self, *names: str) -> None:
        """Free what was made under these names."""
        for name in names:
            self.__dict__.pop(name, None)


def work(settings: Settings, stages: Sequence[Stage], ends_s: Sequence[float], parent: Connection) -> None:
    """Run the stages; tell the parent ``("begin", name)`` and ``("end", name)``, or ``("refused", why)`` where there is
    no such device."""
    os.setpgrp()  # so that it goes with its children when its time is over
    check = Check(settings)
    for stage, end_s in zip(stages, ends_s, strict=True):
        parent.send(("begin", stage.name))
        try:
            if stage.on_device:
                check.where  # noqa: B018 - looked up to see whether it is there
        except ConfigError as error:
            parent.send(("refused", str(error)))
            return
        record = StageRecord(settings.out, stage.name, settings)
        check.begin(record, end_s)
        try:
            _function(stage)(check)
        except Exception as error:  # whatever is wrong with one stage, the others are worth running
            record.end(FAILED, one_line(error))
        else:
            record.end(COMPLETE)
        parent.send(("end", stage.name))


def _function(stage: Stage) -> Callable[[Check], None]:
    module, _, name = stage.address.partition(":")
    function: Callable[[Check], None] = getattr(import_module(module), name)
    return function


def one_line(error: BaseException) -> str:
    """An error as one line of readable length."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
