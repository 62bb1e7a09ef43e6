"""Names, shapes and tensors of the safetensors files of a folder, whole or in shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from policies.core.errors import WeightsError
from policies.json_text import read_json

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_UNUSED = ("rotary_emb.inv_freq", "lm_head.weight")
"""Ends of names that older files have beside the weights: a table that follows from the config, and a tied head."""
_FLOATS = ("F64", "F32", "F16", "BF16")


class Checkpoint:
    """The open files of a folder. Tensors are read when asked for; every fault is a WeightsError of one line."""

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        """``files`` has the file of each tensor."""
        self._folder = folder
        self._files = files
        self._open: dict[Path, Any] = {path: _opened(path) for path in dict.fromkeys(files.values())}

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """``model.safetensors.index.json`` and the files it names, else ``model.safetensors``."""
        if (folder / _INDEX).is_file():
            return cls(folder, _shards(folder))
        whole = folder / _WHOLE
        if not whole.is_file():
            others = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
            found = f", but {others[0]}" if others else ""
            raise WeightsError(f"{folder}: neither {_INDEX} nor {_WHOLE} is there{found}; only safetensors are loaded")
        return cls(folder, dict.fromkeys(_opened(whole).keys(), whole))

    def check(self, name: str, size: tuple[int, ...]) -> None:
        """WeightsError unless the tensor is there, of this size, and holds plain floats."""
        if name not in self._files:
            raise WeightsError(f"{self._folder}: tensor {name} is missing; config.json asks for it")
        path = self._files[name]
        if name not in self._open[path].keys():  # noqa: SIM118 - a handle is no mapping
            raise WeightsError(f"{path}: tensor {name} is missing, which {_INDEX} says is here")
        about = self._open[path].get_slice(name)
        if tuple(about.get_shape()) != size:
            raise WeightsError(f"{path}: tensor {name} is {list(about.get_shape())}; config.json asks for {list(size)}")
        if about.get_dtype() not in _FLOATS:
            raise WeightsError(f"{path}: tensor {name} is of type {about.get_dtype()}; known are {', '.join(_FLOATS)}")

    def check_all_used(self, names: Collection[str]) -> None:
        """WeightsError for a tensor that is none of ``names`` and would change what the model says."""
        for name in self._files:
            if name not in names and not name.endswith(_UNUSED):
                raise WeightsError(f"{self._files[name]}: tensor {name} has no place in the Llama of config.json")

    def tensor(self, name: str) -> Tensor:
        """The tensor, on the CPU."""
        found: Tensor = self._open[self._files[name]].get_tensor(name)
        return found


def _shards(folder: Path) -> dict[str, Path]:
    path = folder / _INDEX
    try:
        places = read_json(path)["weight_map"]
        return {str(name): folder / Path(file).name for name, file in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise WeightsError(f"{path}: cannot be read; it must be a JSON object with a 'weight_map' of files") from None


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file, but {_INDEX} names it; get the missing file") from None
    except (SafetensorError, OSError) as error:
        why = " ".join(str(error).split())
        raise WeightsError(f"{path}: no whole safetensors file ({why}); get it again") from None
