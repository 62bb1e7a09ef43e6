"""SmolLM2-135M-Instruct, a model that people use, against `transformers`: opt-in, since its weights are 98 MB.

``BATCHSCOPE_SMOLLM2`` names its GGUF file or a folder with it in Hugging Face's layout (CONTRIBUTING.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from gpu_backend.model import LlamaModel
    from gpu_backend.tokenizer import Tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_backend.device import placement  # noqa: E402
from gpu_backend.gguf import convert  # noqa: E402
from gpu_backend.model import open_model  # noqa: E402
from gpu_backend.tokenizer import Tokenizer as FolderTokenizer  # noqa: E402
from tests.executor.reference import greedy  # noqa: E402
from tests.executor.request_schedules import SCHEDULES, Case, said  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

VARIABLE = "BATCHSCOPE_SMOLLM2"
NUM_TOKENS = 16
QUESTION = "What is the capital of France?"
TEXTS = {
    "short": "The capital of France is",
    "code": "def fibonacci(n):\n    ",
    "long": "Once upon a time there was a scheduler of requests who never slept, and " * 4,
}


class SmolLM2(NamedTuple):
    theirs: Any
    ours: LlamaModel
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> SmolLM2:
    from transformers import LlamaForCausalLM

    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no SmolLM2-135M-Instruct; see CONTRIBUTING.md")
    folder = Path(named)
    if folder.is_file():
        folder = tmp_path_factory.mktemp("smollm2") / "folder"
        convert(Path(named), folder)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return SmolLM2(theirs, open_model(str(folder), placement("cpu", ops="torch")), FolderTokenizer.open(folder))


@pytest.fixture(scope="module")
def case(smollm2: SmolLM2) -> Case:
    return Case({name: smollm2.tokenizer.encode(text) for name, text in TEXTS.items()}, NUM_TOKENS)


@pytest.fixture(scope="module")
def answers(smollm2: SmolLM2, case: Case) -> dict[str, list[int]]:
    return {name: greedy(smollm2.theirs, prompt, NUM_TOKENS) for name, prompt in case.prompts.items()}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_greedy_tokens_are_those_of_transformers(
    smollm2: SmolLM2, case: Case, answers: dict[str, list[int]], schedule: Any
) -> None:
    run = Sequences(smollm2.ours, block_size=16, num_blocks=32)
    schedule(run, case)
    assert said(run, case) == answers


def test_logits_are_those_of_transformers(smollm2: SmolLM2, case: Case) -> None:
    prompt = case.prompts["long"]
    run = Sequences(smollm2.ours, block_size=16, num_blocks=32)
    run.add("x", prompt)
    ours = run.step(chunks={"x": len(prompt)})
    with torch.no_grad():
        theirs = smollm2.theirs(torch.tensor([prompt])).logits[0, -1:]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_it_answers_a_question(smollm2: SmolLM2) -> None:
    tokenizer = smollm2.tokenizer
    run = Sequences(smollm2.ours, block_size=16, num_blocks=32)
    prompt = tokenizer.chat(QUESTION)
    run.add("x", prompt)
    run.step(chunks={"x": len(prompt)})
    while run.known["x"][-1] not in tokenizer.stop_ids and len(run.known["x"]) < len(prompt) + 32:
        run.step(["x"])
    assert tokenizer.decode(run.known["x"][len(prompt) :]) == "The capital of France is Paris."
