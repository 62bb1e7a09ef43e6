"""The stages of ``python -m calibrate.gpu_check`` (docs/gpu-check.md)."""
