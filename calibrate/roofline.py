"""Makes ``sim/costs/roofline.json``: what share of the data sheet kernels reach, and how far the model is off.

    python -m calibrate.roofline DATA OUT

``DATA`` holds ``profiles`` (operator tables) and ``measured`` (published runs of whole batches).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.checks import Limits
from calibrate.fitting import fit_uneven, least_squares
from calibrate.operators import (
    AttentionPoint,
    read_context_attention,
    read_generation_attention,
    read_linear,
    read_uneven,
)
from calibrate.sources import UNEVEN
from policies.catalog import Card, ModelShape, card, model
from sim.costs.roofline import Shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = 1
_LINEAR = (
    ("a100-80gb", "llama-2-7b", "vidur_a100_llama2-7b_linear", (1,)),
    ("a100-80gb", "llama-3-8b", "vidur_a100_llama3-8b_linear", (1,)),
    ("a100-80gb", "llama-2-70b", "vidur_a100_llama2-70b_linear", (1, 2, 4, 8)),
    ("h100-80gb", "llama-2-7b", "vidur_h100_llama2-7b_linear", (1,)),
)
_ATTENTION = (("a100-80gb", "a100_sxm"), ("h100-80gb", "h100_sxm"), ("h200-141gb", "h200_sxm"))
_HEADS = ("llama-3-8b", "llama-2-70b")
_FEW_TOKENS, _MANY_TOKENS = 64, 2048
_MANY_PROMPT_TOKENS = 512
_MOST_SEQS, _LONGEST = 256, 16_384


class _Read(NamedTuple):
    """A measured time and the time that the bytes or FLOPs of it take at the data sheet's rate."""

    ideal_s: float
    measured_s: float
    num_seqs: int = 0


def fit_roofline(data: Path) -> dict[str, Any]:
    """The content of ``roofline.json`` without its band: version, shares, provenance."""
    tables = data / "profiles"
    linear = list(_linear(tables))
    few = [read for tokens, read, _ in linear if tokens <= _FEW_TOKENS]
    layer_s, per_byte = _fit([[1.0, read.ideal_s] for read in few], few)
    many = [
        work_s / (read.measured_s - layer_s) for tokens, read, work_s in linear if tokens >= _MANY_TOKENS
    ]
    decode = list(_decode(tables))
    decode_s, sequence_s, per_kv_byte = _fit([[1.0, read.num_seqs, read.ideal_s] for read in decode], decode)
    shares = Shares(
        weights=1 / per_byte,
        layer_s=layer_s,
        matrices=statistics.median(many),
        kv=1 / per_kv_byte,
        decode_s=decode_s,
        sequence_s=sequence_s,
        attention=statistics.median(read.ideal_s / read.measured_s for read in _prefill(tables)),
        uneven=fit_uneven(read_uneven(data / "e2e" / UNEVEN.file)),
    )
    return {
        "version": VERSION,
        "shares": {name: float(f"{value:.4g}") for name, value in shares._asdict().items()},
        "provenance": {
            "matrices, weights": "Vidur linear tables of A100 and H100 (MIT)",
            "attention, kv": "AIConfigurator 0.12.0 vLLM attention tables of A100, H100 and H200 (Apache-2.0)",
            "uneven": UNEVEN.origin,
        },
    }


def _linear(tables: Path) -> Iterator[tuple[int, _Read, float]]:
    """Tokens, reading of the weights, and FLOPs over peak, of each row of the linear tables."""
    for card_name, model_name, file, groups in _LINEAR:
        device = card(card_name)
        for tp in groups:
            shape = model(model_name).shard(tp)
            read_s = shape.layer_matrix_parameters * 2 / device.bytes_per_s
            for tokens, values in read_linear(tables / f"{file}.csv.gz", shape, Limits(device)).items():
                work_s = 2.0 * shape.layer_matrix_parameters * tokens / device.flops_per_s
                yield tokens, _Read(read_s, statistics.median(values)), work_s


def _shapes(tables: Path, kind: str) -> Iterator[tuple[Card, ModelShape, Path]]:
    for card_name, prefix in _ATTENTION:
        for name in _HEADS:
            shape = model(name)._replace(max_model_len=_LONGEST)
            yield card(card_name), shape, tables / f"aic_{prefix}_vllm_{kind}_attention.csv.gz"


def _decode(tables: Path) -> Iterator[_Read]:
    for device, shape, path in _shapes(tables, "generation"):
        for point in read_generation_attention(path, shape, Limits(device), _MOST_SEQS):
            kv_bytes = point.batch * point.context * shape.kv_bytes_per_token / shape.layers
            yield _Read(kv_bytes / device.bytes_per_s, point.seconds, point.batch)


def _prefill(tables: Path) -> Iterator[_Read]:
    for device, shape, path in _shapes(tables, "context"):
        for point in read_context_attention(path, shape, Limits(device)):
            if _MANY_PROMPT_TOKENS <= point.chunk <= _LONGEST:
                yield _Read(_pairs_s(point, shape, device), point.seconds)


def _pairs_s(point: AttentionPoint, shape: ModelShape, device: Card) -> float:
    """4 FLOPs for each head dimension, new token and token before it, at the card's peak."""
    pairs = point.batch * point.chunk * (point.context + point.chunk / 2)
    return 4.0 * shape.heads * shape.head_dim * pairs / device.flops_per_s


def _fit(columns: Sequence[Sequence[float]], reads: Sequence[_Read]) -> list[float]:
    """Least squares of relative errors, no coefficient below zero."""
    import numpy as np

    seconds: NDArray[np.float64] = np.array([read.measured_s for read in reads])
    matrix: NDArray[np.float64] = np.array(columns, float)
    return least_squares(matrix, seconds, list(1.0 / seconds), [0.0] * matrix.shape[1])


def main() -> None:
    """Write the file."""
    from calibrate.band import band_of
    from calibrate.cli import write_json

    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    content = fit_roofline(data)
    content["band"], content["provenance"]["band"] = band_of(Shares(**content["shares"]), data / "measured")
    write_json(content, out)
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
