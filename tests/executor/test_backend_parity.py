"""Policies drive the model through the whole executor, short of memory: what it says is what `transformers` says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_backend.clock import TickClock  # noqa: E402
from gpu_backend.device import placement  # noqa: E402
from gpu_backend.executor import Limits, make_backend  # noqa: E402
from gpu_backend.loop import Door, RealTimeLoop  # noqa: E402
from gpu_backend.model import LlamaModel, open_model  # noqa: E402
from gpu_backend.traffic import Traffic  # noqa: E402
from policies.core.engine import Engine  # noqa: E402
from policies.core.request import Request  # noqa: E402
from tests.executor.reference import KINDS, greedy, save_random  # noqa: E402
from tests.variants import VARIANTS, Size  # noqa: E402
from traces.workload.rows import TraceRow  # noqa: E402

SIZE = Size(12, 4, 48, 5, 12, num_cpu_blocks=16, kv_bytes_per_token=1, pieces_per_block=1)
"""Twelve blocks of four tokens: two requests fill them."""

LENGTHS = ((7, 20), (3, 24), (12, 9), (1, 30), (9, 16), (5, 22))
NAMES = (
    *("hf-static", "orca-max", "v0-recompute", "v0-swap", "v0-chunked-swap", "v0-multi-step-auto", "v1"),
    *("sarathi-96f9911", "tgi-3", "trtllm-max-utilization", "llamacpp", "fastserve"),
)


class Models(NamedTuple):
    ours: LlamaModel
    prompts: Mapping[int, list[int]]
    answers: Mapping[int, list[int]]


@pytest.fixture(scope="module", params=["mha", "gqa-tied"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder: Path = tmp_path_factory.mktemp(request.param)
    theirs = save_random(folder, **KINDS[request.param])
    draw = np.random.default_rng(4)
    prompts = {number: draw.integers(256, size=prompt).tolist() for number, (prompt, _) in enumerate(LENGTHS)}
    answers = {number: greedy(theirs, prompts[number], output) for number, (_, output) in enumerate(LENGTHS)}
    return Models(open_model(str(folder), placement("cpu", ops="torch")), prompts, answers)


class Services:
    """What policies may ask; recomputing always takes as long as swapping."""

    def step_time_s(self, *args: object) -> float:
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        return 0.0

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        return 0.0

    def predict_output_len(self, request: Request) -> int:
        return LENGTHS[request.id][1]


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_that_of_transformers(models: Models, name: str) -> None:
    policy, clock = VARIANTS[name].build(SIZE, Services()), TickClock()
    limits = Limits(SIZE.max_model_len, SIZE.max_num_seqs)
    backend = make_backend(
        models.ours, policy, limits, clock, prompt_of=lambda request: np.array(models.prompts[request.id], np.int64)
    )
    backend.runner.cache.blocks_NL2KSD.fill_(float("nan"))
    rows = [TraceRow(0.01 * number, prompt, output) for number, (prompt, output) in enumerate(LENGTHS)]
    traffic = Traffic(iter(rows))
    engine = Engine(policy, deliver_at_batch_end=VARIANTS[name].deliver_at_batch_end)
    loop = RealTimeLoop(engine, backend, traffic, clock, Door(SIZE.max_model_len))
    assert loop.run().status == "completed"
    assert {number: list(tokens) for number, tokens in backend.outputs.items()} == models.answers
