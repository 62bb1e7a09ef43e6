"""The folder of a model, in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import WeightsError


def model_folder(path: Path) -> Path:
    """The path, if it is a folder; else WeightsError that says what to name instead."""
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        raise WeightsError(f"{path}: convert it first, python -m gpu_backend.gguf {path} FOLDER; then name FOLDER")
    if path.exists():
        raise WeightsError(f"{path}: a file; name the folder that holds config.json and *.safetensors")
    raise WeightsError(f"{path}: no such folder; name one with config.json and *.safetensors")
