"""Triton's kernels are interpreted where there is no CUDA device, and torch keeps to one thread: of models this small
more threads only wait for one another. Both are read when torch and Triton are imported."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
