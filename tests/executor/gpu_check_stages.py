"""Stages that a test of ``calibrate.gpu.supervisor`` runs: one that works, and three that do not."""

from __future__ import annotations

import os
import time

from calibrate.gpu.worker import Check
from policies.core.errors import RunError


def keeps(check: Check) -> None:
    check.record.keep(answer=42)


def hangs(check: Check) -> None:
    check.record.keep(answer=1)
    time.sleep(600)


def fails(check: Check) -> None:
    check.record.keep(answer=2)
    raise RunError("this\nis wrong")


def dies(check: Check) -> None:
    check.record.keep(answer=3)
    os._exit(7)
