"""What a Llama's ``config.json`` says beyond the shapes: rotary frequencies, epsilon, end-of-text ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.catalog import ModelShape, model_from_config
from policies.core.errors import CatalogError, WeightsError
from policies.json_text import read_json

_FACTORS = ("factor", "low_freq_factor", "high_freq_factor")


class Rope(NamedTuple):
    """Rotary position embedding: base ``theta``; with ``factor`` > 1 the frequencies of Llama 3.1's ``llama3`` scaling.

    Wavelengths above ``original_positions / low_freq_factor`` tokens are stretched by ``factor``, those below
    ``original_positions / high_freq_factor`` stay, and those between are blended linearly in their frequency.
    """

    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8_192

    def cos_sin(self, head_dim: int, positions: int) -> Tensor:
        """P x D in float32: the D/2 cosines of each position, then its D/2 sines. Computed on the CPU in float32, as
        the models were trained, so that every device has the same table."""
        pairs = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
        frequencies = self._scaled(1.0 / self.theta**pairs)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        return torch.cat((angles.cos(), angles.sin()), dim=1)

    def _scaled(self, frequencies: Tensor) -> Tensor:
        if self.factor == 1.0:
            return frequencies
        turns = self.original_positions * frequencies / (2 * math.pi)
        keep = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / self.factor)


class LlamaConfig(NamedTuple):
    """All that the forward pass needs to know beside the weights."""

    shape: ModelShape
    rms_norm_eps: float = 1e-5
    rope: Rope = Rope()


def read_llama_config(folder: Path) -> LlamaConfig:
    """The ``config.json`` of a folder; WeightsError, in one line, for what the executor does not run: another
    architecture, biases, another activation, quantised weights, another kind of rotary scaling."""
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; name a folder with config.json and *.safetensors")
    try:
        shape = model_from_config(path)
    except CatalogError as error:
        raise WeightsError(str(error).removeprefix("model.config = ")) from None
    config: Mapping[str, Any] = read_json(path)
    _refuse_others(config, path)
    if shape.head_dim % 2:
        raise WeightsError(f"{path}: head_dim {shape.head_dim} is odd; rotary embedding turns pairs")
    epsilon = _number(config, "rms_norm_eps", 1e-6, path)
    return LlamaConfig(shape, epsilon, _rope(config, path))


def _refuse_others(config: Mapping[str, Any], path: Path) -> None:
    named = config.get("architectures") or ["LlamaForCausalLM"]
    if config.get("model_type") != "llama" or named != ["LlamaForCausalLM"]:
        what = f"model_type {config.get('model_type')!r}, architectures {named!r}"
        raise WeightsError(f"{path}: {what}: the executor runs LlamaForCausalLM alone")
    for key in ("attention_bias", "mlp_bias", "quantization_config"):
        if config.get(key):
            raise WeightsError(f"{path}: '{key}' is set; the executor runs Llamas without biases and quantisation")
    if config.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"{path}: 'hidden_act' is {config['hidden_act']!r}; the executor knows silu alone")


def _rope(config: Mapping[str, Any], path: Path) -> Rope:
    """Newer files have everything in ``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling``."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise WeightsError(f"{path}: 'rope_scaling' is {parameters!r}; it must be an object or null")
    theta = _number({**config, **parameters}, "rope_theta", 10_000.0, path)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise WeightsError(f"{path}: rotary scaling {kind!r} is not supported; default and llama3 are")
    old = _number(parameters, "original_max_position_embeddings", None, path)
    factor, low, high = (_number(parameters, key, None, path) for key in _FACTORS)
    if low >= high:
        raise WeightsError(f"{path}: 'low_freq_factor' must be below 'high_freq_factor'")
    return Rope(theta, factor, low, high, int(old))


def _number(table: Mapping[str, Any], key: str, default: float | None, path: Path) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise WeightsError(f"{path}: '{key}' is {value!r}; it must be a number above 0")
    return float(value)
