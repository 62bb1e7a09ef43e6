"""The tables of an installed ``aiconfigurator-core``: where they lie, by card."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from policies.catalog import Card
from policies.core.errors import ConfigError

INSTALLED = "installed"
"""In place of a file."""

_DISTRIBUTION = "aiconfigurator-core"
_SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200-141gb": "h200_sxm",
    "l40s-48gb": "l40s",
    "rtxpro6000-96gb": "rtx_pro_6000",
}
_TABLES = {"gemm": ("gemm_perf",), "attention": ("context_attention_perf", "generation_attention_perf")}
_BACKEND = "vllm"


def installed_tables(card: Card) -> tuple[list[Path], str]:
    """The newest vLLM tables of ``card``, products and attention, and the name and version of the distribution.

    ConfigError where it is not installed or has none.
    """
    try:
        found = distribution(_DISTRIBUTION)
    except PackageNotFoundError:
        raise ConfigError(
            f"calibrate import: {_DISTRIBUTION} is not installed; pip install {_DISTRIBUTION}, or name its files"
        ) from None
    system = _SYSTEMS.get(card.name, card.name)
    tables = [
        Path(str(found.locate_file(path)))
        for folder, names in _TABLES.items()
        for name in names
        for path in _newest(found.files or (), system, folder, name)
    ]
    if not tables:
        raise ConfigError(
            f"calibrate import: {_DISTRIBUTION} {found.version} has no {_BACKEND} tables of {card.name}"
            f" (systems/data/{system}); name other tables"
        )
    return tables, f"{_DISTRIBUTION} {found.version}"


def _newest(files: object, system: str, folder: str, name: str) -> list[PurePosixPath]:
    """The file of the highest version of vLLM, or none."""
    assert isinstance(files, list | tuple)
    kept = []
    for file in files:
        parts = PurePosixPath(str(file)).parts
        if parts[-1] == f"{name}.parquet" and parts[-5:-2] == (system, folder, _BACKEND):
            kept.append(PurePosixPath(str(file)))
    return sorted(kept, key=lambda path: _version(path.parts[-2]))[-1:]


def _version(text: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in text.split(".")]
