"""One step on the device: send its arrays, run the model, sample, keep the tokens there, and hand them back later."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from gpu_backend.batch import StepArrays
from gpu_backend.prompts import sampling_seeds
from gpu_backend.upload import Uploaded, Uploader

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from gpu_backend.cache import KvCache
    from gpu_backend.graphs import DecodeGraphs
    from gpu_backend.model import LlamaModel


class Sampling(NamedTuple):
    """How tokens are chosen: the most likely one at temperature 0; ``seed`` decides all draws."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


GREEDY: Final = Sampling()


class Launched:
    """A step under way; ``wait`` gives its sampled tokens and the seconds that the device worked on it."""

    def __init__(self, tokens_E: Tensor | None, began: Any, ended: Any) -> None:
        self._tokens_E, self._began, self._ended = tokens_E, began, ended

    def wait(self) -> tuple[list[int], float]:
        """Wait for the device."""
        if isinstance(self._ended, float):
            device_s = self._ended - self._began
        else:
            self._ended.synchronize()
            device_s = self._began.elapsed_time(self._ended) / 1e3
        tokens: list[int] = [] if self._tokens_E is None else self._tokens_E.tolist()
        return tokens, device_s


class StepRunner:
    """Runs steps one after the other on the device of ``model``; ``depth`` of them may be under way.

    ``tokens_RP`` holds the known tokens of every request, on the device. Decode steps go through ``graphs`` where there
    are any.
    """

    def __init__(
        self,
        model: LlamaModel,
        cache: KvCache,
        *,
        num_rows: int,
        num_columns: int,
        sampling: Sampling,
        depth: int,
    ) -> None:
        self.model, self.cache = model, cache
        self.graphs: DecodeGraphs | None = None
        self.tokens_RP = torch.zeros((num_rows, num_columns), dtype=torch.int64, device=model.device)
        self._sampling = sampling
        self._on_cuda = model.device.type == "cuda"
        self._uploader = Uploader(model.device, depth + 1)
        self._pinned: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * (depth + 1)
        self._turn = 0
        self._drawing: tuple[Tensor, Tensor, Tensor] = self._drawing_for(num_rows)

    def grow(self, num_rows: int) -> None:
        """Make room for that many rows; graphs go on with the old tokens until they are captured anew, so they are."""
        more = num_rows - self.tokens_RP.shape[0]
        if more > 0:
            self.tokens_RP = torch.cat((self.tokens_RP, self.tokens_RP.new_zeros((more, self.tokens_RP.shape[1]))))
            self._drawing = self._drawing_for(num_rows)
            if self.graphs is not None:
                self.graphs.capture(self.tokens_RP)

    def copy_blocks(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> None:
        """Copy blocks within the cache, before the next step."""
        ids = torch.from_numpy(np.stack((src, dst))).to(self.model.device)
        self.model.ops.copy_blocks(self.cache.blocks_NL2KSD, ids[0], ids[1])

    def launch(self, arrays: StepArrays) -> Launched:
        """Start a step; on the CPU it is over when this returns."""
        began = self._mark()
        if not len(arrays.rows_T):
            return Launched(None, began, self._mark())
        sent = self._uploader.upload(arrays, self._seeds(arrays))
        if len(arrays.new_rows_N):
            self.tokens_RP[sent.new_rows_N, sent.new_positions_N] = sent.new_ids_N
        tokens_E = self._sample(sent) if len(arrays.emit_ids) else None
        if tokens_E is None:
            self._forward(sent)
        else:
            self.tokens_RP[sent.batch.emit_rows_E, sent.batch.emit_positions_E] = tokens_E
            tokens_E = self._to_host(tokens_E)
        return Launched(tokens_E, began, self._mark())

    def _forward(self, sent: Uploaded) -> Tensor:
        if self.graphs is not None:
            return self.graphs.logits(sent.batch, self.tokens_RP)
        return self.model.forward(sent.batch, self.tokens_RP, self.cache.blocks_NL2KSD)

    def _sample(self, sent: Uploaded) -> Tensor:
        logits_EV = self._forward(sent)
        count = logits_EV.shape[0]
        temperature, top_p, no_seeds = self._drawing
        seeds_E = sent.seeds_E if self._sampling.temperature else no_seeds[:count]
        return self.model.ops.sample(logits_EV, temperature[:count], top_p[:count], seeds_E)

    def _seeds(self, arrays: StepArrays) -> NDArray[np.int64]:
        if not self._sampling.temperature:
            return np.zeros(0, np.int64)
        return sampling_seeds(self._sampling.seed, arrays.emit_ids, arrays.emit_positions_E)

    def _drawing_for(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Temperature, top-p and seed of a greedy draw for as many rows as a step can have."""
        device, sampling = self.model.device, self._sampling
        return (
            torch.full((num_rows,), sampling.temperature, dtype=torch.float32, device=device),
            torch.full((num_rows,), sampling.top_p, dtype=torch.float32, device=device),
            torch.zeros(num_rows, dtype=torch.int64, device=device),
        )

    def _to_host(self, tokens_E: Tensor) -> Tensor:
        """Begin the copy to the host, which is over when the step is."""
        if not self._on_cuda:
            return tokens_E
        self._turn = turn = (self._turn + 1) % len(self._pinned)
        count = tokens_E.shape[0]
        if self._pinned[turn].shape[0] < count:
            self._pinned[turn] = torch.empty(2 * count, dtype=torch.int64, pin_memory=True)
        target = self._pinned[turn][:count]
        target.copy_(tokens_E, non_blocking=True)
        return target

    def _mark(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.model.device))
        return event
