"""Reads the ``config.json`` of a Hugging Face checkpoint: the shape of any dense decoder of the known families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from policies.catalog.shapes import ModelShape
from policies.core.errors import CatalogError, closest
from policies.json_text import read_json

_ROUTED = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
"""Keys by which a mixture of experts is known, whatever its ``model_type``."""

_NAME_CHARACTERS = 80
"""A name is shown on every line of a table."""


def model_from_config(path: Path) -> ModelShape:
    """The shape that a ``config.json`` describes; its name is that in the file, else that of its folder.

    CatalogError for what is no dense decoder of a known family, by its ``model_type``.
    """
    config, where = _read(path), f"model.config = {path}"
    family = config.get("model_type")
    if any(config.get(key) for key in _ROUTED):
        raise CatalogError(f"{where}: '{family}' is a mixture of experts; only dense decoders are modelled")
    read = _FAMILIES.get(str(family))
    if read is None:
        known = ", ".join(_FAMILIES)
        raise CatalogError(
            f"{where}: model_type '{family}' is not modelled; known are {known}{closest(str(family), _FAMILIES)}"
        )
    shape = read(_Keys(config, where))
    return shape._replace(name=_name(config, path))


def unmodelled(path: Path, weight_bits: int) -> list[str]:
    """What a ``config.json`` says of its model that the shape with weights of ``weight_bits`` leaves out, a line each;
    raises as ``model_from_config`` does."""
    config, where = _read(path), f"model.config = {path}"
    said = []
    quantised = config.get("quantization_config") or config.get("compression_config")
    if quantised and weight_bits == 16:
        how = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        by = f" by {printable(str(how))}" if how else ""
        said.append(f"{where}: its weights are quantised{by}, but have 16 bits here; set model.weight_bits")
    window, longest = config.get("sliding_window"), config.get("max_position_embeddings")
    used = config.get("use_sliding_window", str(config.get("model_type")) not in ("qwen2", "qwen3"))
    if used and type(window) is int and type(longest) is int and window < longest:
        said.append(
            f"{where}: attention over the last {window:,} tokens (sliding_window) is not modelled; longer contexts take"
            " more KV memory and time here"
        )
    return said


def printable(name: str) -> str:
    """A name out of a file as one can show it in a line: no control characters, not longer than a line."""
    return "".join(letter for letter in name if letter.isprintable()).strip()[:_NAME_CHARACTERS]


def _read(path: Path) -> Mapping[str, Any]:
    where = f"model.config = {path}"
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else f"not JSON: {error}"
        raise CatalogError(f"{where}: cannot be read ({why}); name the config.json of a checkpoint") from None
    if not isinstance(config, Mapping):
        raise CatalogError(f"{where}: is no JSON object; name the config.json of a checkpoint")
    return config


def _name(config: Mapping[str, Any], path: Path) -> str:
    name = config.get("_name_or_path")
    given = printable(Path(name).name) if isinstance(name, str) else ""
    return given or printable(path.resolve().parent.name) or printable(path.stem)


class _Keys:
    """Whole numbers of a config; names the key where one is missing or wrong."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number >= 1; absent or null: the default."""
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if key not in self._config:
            raise CatalogError(f"{self._where}: '{key}' is missing; name the whole config.json of a checkpoint")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CatalogError(f"{self._where}: '{key}' is {value!r}; it must be a whole number >= 1")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; absent or null: the default."""
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CatalogError(f"{self._where}: '{key}' is {value!r}; it must be true or false")
        return value

    def head_dim(self, hidden: int, heads: int) -> int:
        """As given, else the hidden size divided by the heads, which must divide it."""
        if self._config.get("head_dim") is None and hidden % heads:
            raise CatalogError(f"{self._where}: hidden size {hidden} is no multiple of the {heads} heads")
        return self.size("head_dim", hidden // heads)

    def refuse(self, what: str) -> CatalogError:
        """A shape that no family member is modelled with."""
        return CatalogError(f"{self._where}: {what}")


def _llama(keys: _Keys, *, qkv_bias: bool = False, qk_norm: bool = False, tied: bool = False) -> ModelShape:
    hidden, heads, layers = keys.size("hidden_size"), keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    kv_heads, head_dim = keys.size("num_key_value_heads", heads), keys.head_dim(hidden, heads)
    if heads % kv_heads:
        raise keys.refuse(f"the {heads} heads cannot share {kv_heads} KV heads evenly (num_key_value_heads)")
    extra = head_dim * (heads + 2 * kv_heads) if qkv_bias or keys.flag("attention_bias", False) else 0
    return ModelShape(
        "",
        hidden,
        keys.size("intermediate_size"),
        layers,
        heads,
        kv_heads,
        head_dim,
        keys.size("vocab_size"),
        keys.size("max_position_embeddings"),
        tied_head=keys.flag("tie_word_embeddings", tied),
        extra_parameters=layers * (extra + (2 * head_dim if qk_norm else 0)),
    )


def _opt(keys: _Keys) -> ModelShape:
    hidden, layers, positions = keys.size("hidden_size"), keys.size("num_hidden_layers"), 2
    if keys.size("word_embed_proj_dim", hidden) != hidden:
        raise keys.refuse("OPT with projected embeddings (word_embed_proj_dim) is not modelled")
    positions += keys.size("max_position_embeddings")
    shape = _plain(keys, "num_attention_heads", keys.size("ffn_dim"), positions - 2, hidden, layers)
    return shape._replace(extra_parameters=_biases(shape) + positions * hidden)


def _gpt2(keys: _Keys) -> ModelShape:
    hidden, layers, positions = keys.size("n_embd"), keys.size("n_layer"), keys.size("n_positions")
    shape = _plain(keys, "n_head", keys.size("n_inner", 4 * hidden), positions, hidden, layers)
    return shape._replace(extra_parameters=_biases(shape) + positions * hidden)


def _gptj(keys: _Keys) -> ModelShape:
    hidden, layers, positions = keys.size("n_embd"), keys.size("n_layer"), keys.size("n_positions")
    shape = _plain(keys, "n_head", keys.size("n_inner", 4 * hidden), positions, hidden, layers)
    # One norm a layer instead of two, no biases in attention, a bias in the head.
    extra = layers * (shape.intermediate + hidden) + hidden + shape.vocab
    return shape._replace(tied_head=False, extra_parameters=extra)


def _gpt_neox(keys: _Keys) -> ModelShape:
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    positions = keys.size("max_position_embeddings")
    shape = _plain(keys, "num_attention_heads", keys.size("intermediate_size"), positions, hidden, layers)
    return shape._replace(tied_head=keys.flag("tie_word_embeddings", False), extra_parameters=_biases(shape))


def _plain(keys: _Keys, heads_key: str, intermediate: int, positions: int, hidden: int, layers: int) -> ModelShape:
    """A decoder with a KV head for each head and an MLP of two matrices."""
    heads = keys.size(heads_key)
    head_dim = keys.head_dim(hidden, heads)
    vocab = keys.size("vocab_size")
    return ModelShape(
        "", hidden, intermediate, layers, heads, heads, head_dim, vocab, positions, gated_mlp=False, tied_head=True
    )


def _biases(shape: ModelShape) -> int:
    """Of Q, K, V, O, both MLP matrices and both norms of each layer, and of the final norm."""
    return shape.layers * (7 * shape.hidden + shape.intermediate) + shape.hidden


_FAMILIES: dict[str, Callable[[_Keys], ModelShape]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": lambda keys: _llama(keys, qkv_bias=True),
    "qwen3": lambda keys: _llama(keys, qk_norm=True),
    "opt": _opt,
    "gpt2": _gpt2,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
}
