"""What ``make validate`` executes and simulates: an easy load, one past saturation, and two short of KV memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from calibrate.measure_points import BLOCK_SIZE
from sim.config import RunConfig, load_config

_PROMPT = {"dist": "uniform", "low": 12, "high": 96}
_OUTPUT = {"dist": "exponential", "mean": 40, "cap": 140}
_SEED = 5
_EASY, _BEYOND = 0.6, 3.0
"""Rates of the two open loops, as shares of what the executor can serve."""

_SHORT_OF_BLOCKS = 0.28
"""Share of the blocks that a full batch of the longest requests would take."""


class Scale(NamedTuple):
    """Of all workloads: the model, the limits of its engine, and requests of each."""

    model: str = "15m"
    max_num_seqs: int = 16
    max_model_len: int = 256
    num_requests: int = 40

    @property
    def whole_pool(self) -> int:
        """Blocks that are never short."""
        return self.max_num_seqs * self.max_model_len // BLOCK_SIZE

    def config(
        self, preset: str, workload: dict[str, Any], num_gpu_blocks: int | None = None, record: str = "requests"
    ) -> RunConfig:
        """A run of this scale on a CPU."""
        engine = {
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_model_len,
            "num_gpu_blocks": num_gpu_blocks or self.whole_pool,
        }
        tables: dict[str, object] = {
            "workload": workload,
            "engine": engine,
            "hardware": {"name": "cpu"},
            "sim": {"record": record},
        }
        return load_config(tables, (), model=self.model, policy=preset)


class Case(NamedTuple):
    """A workload under a preset. ``timeless``: all requests come at once, so that time has no say in any decision."""

    name: str
    what: str
    config: RunConfig
    timeless: bool = False


def full_house(scale: Scale) -> RunConfig:
    """Clients who keep the batch full: how many requests a second can be served."""
    return scale.config("vllm-0.11", _requests(scale) | {"generator": "closed-loop", "concurrency": scale.max_num_seqs})


def cases(scale: Scale, capacity_per_s: float) -> list[Case]:
    """The workloads, rates as shares of the capacity."""
    easy, beyond = (float(f"{share * capacity_per_s:.3g}") for share in (_EASY, _BEYOND))
    open_loop = _requests(scale) | {"generator": "poisson"}
    at_once = _requests(scale) | {"generator": "closed-loop", "concurrency": scale.num_requests}
    short = int(_SHORT_OF_BLOCKS * scale.whole_pool)
    seats = f"{scale.max_num_seqs} at a time"
    return [
        Case("easy", f"vllm-0.11, {easy:g} requests/s", scale.config("vllm-0.11", open_loop | {"rate_per_s": easy})),
        Case(
            "past saturation",
            f"vllm-0.11, {beyond:g} requests/s, twice as many",
            scale.config("vllm-0.11", open_loop | {"rate_per_s": beyond, "num_requests": 2 * scale.num_requests}),
        ),
        Case(
            "short of KV, recompute",
            f"vllm-0.6, all at once, {seats}, {short} blocks",
            scale.config("vllm-0.6", at_once, short),
            timeless=True,
        ),
        Case(
            "short of KV, swap",
            f"vllm-0.6-swap, all at once, {seats}, {short} blocks",
            scale.config("vllm-0.6-swap", at_once, short),
            timeless=True,
        ),
    ]


def _requests(scale: Scale) -> dict[str, Any]:
    return {"prompt": _PROMPT, "output": _OUTPUT, "num_requests": scale.num_requests, "seed": _SEED}
