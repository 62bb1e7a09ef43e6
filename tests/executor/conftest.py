"""Triton's kernels are interpreted where there is no CUDA device. Triton reads the flag when it is imported."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
