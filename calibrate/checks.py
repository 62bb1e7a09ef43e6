"""Refuses measurements that no card could have made: less time than its bytes or its FLOPs take at nominal
rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from policies.catalog import Card, ModelShape
from policies.catalog.shapes import WHOLE_BYTES
from policies.core.errors import CostFileError
from sim.costs.floor import floor_of

if TYPE_CHECKING:
    from calibrate.profile import Measurement


_PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def products(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """(n, k) of the four matrix products of a layer, tokens x k by k x n, in the order they run."""
    return {
        "qkv_proj": (shape.head_dim * (shape.heads + 2 * shape.kv_heads), shape.hidden),
        "o_proj": (shape.hidden, shape.head_dim * shape.heads),
        "gate_up_proj": (shape.intermediate * (2 if shape.gated_mlp else 1), shape.hidden),
        "down_proj": (shape.hidden, shape.intermediate),
    }


class Limits(NamedTuple):
    """The nominal rates of a card. ``resolution_s`` is the step in which the tables count time."""

    card: Card
    resolution_s: float = 1e-6

    def require(self, where: str, what: str, seconds: float, num_bytes: float, flops: float) -> None:
        """CostFileError, naming the row, if ``seconds`` is under the floor by more than half the
        resolution."""
        floor_s = max(num_bytes / self.card.bytes_per_s, flops / self.card.flops_per_s)
        if seconds + self.resolution_s / 2 < floor_s:
            raise CostFileError(
                f"{where}: {what} takes {seconds * 1e3:.4f} ms, but a {self.card.name} needs"
                f" {floor_s * 1e3:.4f} ms"
                " (bytes over bandwidth or FLOPs over peak); remove the row or check its units"
            )

    def gemm(self, where: str, m: int, n: int, k: int, seconds: float, shape: ModelShape) -> None:
        """Check an m x k by k x n product: its weights are read once."""
        self.require(where, f"product {m} x {k} x {n}", seconds, n * k * WHOLE_BYTES, 2.0 * m * n * k)

    def linear(
        self, where: str, num_tokens: int, seconds_by_name: Mapping[str, float], shape: ModelShape
    ) -> None:
        """Check the four matrix products of a layer."""
        for name, (n, k) in zip(_PRODUCTS, products(shape).values(), strict=True):
            self.gemm(f"{where}, {name}", num_tokens, n, k, seconds_by_name[name], shape)

    def attention(
        self, where: str, batch: int, chunk: int, context: int, seconds: float, shape: ModelShape
    ) -> None:
        """Check attention of one layer: K and V of every cached token are read, every causal pair is
        computed."""
        kv_bytes = batch * context * shape.kv_bytes_per_token / shape.layers
        pairs = batch * (chunk * context + chunk * (chunk - 1) / 2)
        what = f"attention of {batch} x {chunk} tokens over {context}"
        self.require(where, what, seconds, kv_bytes, 4.0 * shape.heads * shape.head_dim * pairs)

    def measurement(self, where: str, row: Measurement, shape: ModelShape) -> float:
        """Check a row of a profile, and return the seconds that the card's limits leave it; 0 for what they do not
        bound."""
        floor = floor_of(shape, self.card)
        tokens = row.chunks * row.chunk_tokens
        pairs = row.sequences * row.context + row.chunks * row.chunk_tokens * (
            row.chunk_context + (row.chunk_tokens - 1) / 2
        )
        cached = row.sequences * row.context + row.chunks * row.chunk_context
        attention_s = max(cached * floor.context_read_s, pairs * floor.pair_s) / shape.layers
        match row.operator:
            case "linear":
                matrices_bytes = shape.layer_matrix_parameters * shape.weight_bits / 8
                floor_s = max(matrices_bytes / self.card.bytes_per_s, row.tokens * floor.token_s / shape.layers)
            case "head":
                floor_s = max(floor.head_read_s, row.sequences * floor.head_row_s)
            case "step":
                floor_s = floor.step_s(row.sequences + tokens, 0, round(cached), round(pairs))
            case "decode" | "prefill" | "prefill_added" | "mixed" | "uneven" | "uneven_mixed":
                floor_s = attention_s
            case _:
                floor_s = 0.0
        if row.seconds + self.resolution_s / 2 < floor_s:
            raise CostFileError(
                f"{where}: {row.operator} takes {row.seconds * 1e3:.4f} ms, but a {self.card.name} needs"
                f" {floor_s * 1e3:.4f} ms (bytes over bandwidth or FLOPs over peak); remove the row or check its units"
            )
        return floor_s
