"""Refuses measurements that no card could have made: less time than its bytes or its FLOPs take at nominal
rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policies.catalog import Card, ModelShape
from policies.catalog.shapes import WHOLE_BYTES
from policies.core.errors import CostFileError


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
        heads = shape.head_dim * (shape.heads + 2 * shape.kv_heads)
        up = shape.intermediate * (2 if shape.gated_mlp else 1)
        for name, n, k in (
            ("attn_pre_proj", heads, shape.hidden),
            ("attn_post_proj", shape.hidden, shape.head_dim * shape.heads),
            ("mlp_up_proj", up, shape.hidden),
            ("mlp_down_proj", shape.hidden, shape.intermediate),
        ):
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
