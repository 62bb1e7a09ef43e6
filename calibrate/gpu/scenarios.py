"""The runs that are measured and simulated: a closed loop of chats under several policies.

The workload is claim c32 (prompts of 50-200 tokens, outputs of 100-500); the tables are those of a RUN.toml, so that
both worlds read the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calibrate.measure_points import BLOCK_SIZE
from policies.catalog import ModelShape

LEVELS = {1: 8, 4: 16, 8: 32, 16: 48, 32: 64}
"""Clients, and the requests that they share."""

_MOST_CLIENTS = 32
_PROMPT, _OUTPUT = (50, 200), (100, 500)
_MAX_MODEL_LEN, _STEP_TOKENS, _CAPPED_BLOCKS = 1024, 2048, 600


class Scenario(NamedTuple):
    """A run: its name, the tables [engine], [workload] and [model] of a RUN.toml."""

    name: str
    tables: dict[str, dict[str, Any]]

    @property
    def clients(self) -> int:
        """Requests under way at once."""
        return int(self.tables["workload"]["concurrency"])


def scenarios(shape: ModelShape, divisor: int) -> list[Scenario]:
    """All runs, in order of worth; requests and lengths divided by ``divisor``, but at least a request a client."""
    longest = min(-(-_MAX_MODEL_LEN // divisor // BLOCK_SIZE) * BLOCK_SIZE, shape.max_model_len)
    pool = _MOST_CLIENTS * longest // BLOCK_SIZE
    budget = {"max_num_batched_tokens": max(_STEP_TOKENS // divisor, longest)}
    capped = max(_CAPPED_BLOCKS // divisor, longest // BLOCK_SIZE)

    def of(name: str, preset: str, clients: int, **engine: Any) -> Scenario:
        usual = {"preset": preset, "max_num_seqs": clients, "max_model_len": longest, "num_gpu_blocks": pool}
        workload = {
            "generator": "closed-loop",
            "concurrency": clients,
            "num_requests": max(clients, LEVELS[clients] // divisor),
            "prompt": _uniform(_PROMPT, divisor),
            "output": _uniform(_OUTPUT, divisor),
        }
        tables = {"model": {"name": shape.name}, "engine": {**usual, **engine}, "workload": workload}
        return Scenario(f"{name}-{clients}", tables)

    def paged(clients: int) -> Scenario:
        return of("paged", "vllm-0.6", clients, **budget)

    # Pinned memory comes in powers of two.
    swap_blocks = 1 << (capped.bit_length() - 1)
    swap = {"num_gpu_blocks": capped, "swap_space_bytes": swap_blocks * shape.block_bytes(BLOCK_SIZE)}
    return [
        paged(32),
        paged(8),
        of("static", "ft-static", 32),
        of("orca", "orca-max", 32),
        of("capped-swap", "vllm-0.6-swap", 32, **budget, **swap),
        of("capped-recompute", "vllm-0.6", 32, **budget, num_gpu_blocks=capped),
        paged(1),
        of("static", "ft-static", 8),
        of("orca", "orca-max", 8),
        paged(4),
        paged(16),
    ]


def _uniform(bounds: tuple[int, int], divisor: int) -> dict[str, Any]:
    low, high = (max(1, bound // divisor) for bound in bounds)
    return {"dist": "uniform", "low": low, "high": high}
