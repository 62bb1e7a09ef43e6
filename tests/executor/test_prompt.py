"""``batchscope execute --prompt``: a model answers in the terminal, and stops where it means to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from gpu_backend.tokenizer import Tokenizer
from tests.command import batchscope, settings
from tests.executor import small_tokenizer
from tests.executor.reference import greedy, save_random

HERE = ("--device", "cpu", "--dtype", "float32", "--ops", "torch")
TEXT = "Is the queue long?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    small_tokenizer.write(folder, small_tokenizer.trained())
    return folder


@pytest.fixture(scope="module")
def answer(folder: Path) -> list[int]:
    model = save_random(folder, vocab_size=512)
    return greedy(model, Tokenizer.open(folder).chat(TEXT), 24)


def ask(folder: Path, *more: object) -> str:
    ended = batchscope("execute", "--prompt", TEXT, "--model-folder", folder, *HERE, *more)
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout


def test_the_answer_is_what_the_model_says(folder: Path, answer: list[int]) -> None:
    shown = ask(folder, "--max-tokens", "24")
    expected = "".join(map(Tokenizer.open(folder).stream().push, answer))
    assert shown == f"{expected}\n"


def test_an_end_token_ends_it(folder: Path, answer: list[int], tmp_path: Path) -> None:
    stop = next(token for place, token in enumerate(answer) if place >= 4 and token not in answer[:place])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop}))
    try:
        shown = ask(folder, "--max-tokens", "24", "--out", tmp_path / "run")
    finally:
        (folder / "generation_config.json").unlink()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    made = answer.index(stop) + 1
    assert (summary["requests"]["reasons"], summary["requests"]["finished"]) == ({"stop": 1}, 1)
    stream = Tokenizer.open(folder).stream()
    assert shown == "".join(map(stream.push, answer[: made - 1])) + "\n"
    assert batchscope("diff", tmp_path / "run").stdout.startswith("first differing decision: none (")


@pytest.mark.usefixtures("answer")
def test_a_length_ends_it(folder: Path, tmp_path: Path) -> None:
    asked = ("execute", "--prompt", TEXT, "--model-folder", folder, *HERE, "--max-tokens", "7")
    ended = batchscope(*asked, "--json", "--out", tmp_path / "run")
    assert ended.summary["requests"]["reasons"] == {"length": 1}
    assert ended.summary["executor"]["weights"] == str(folder)


@pytest.mark.usefixtures("answer")
def test_draws_follow_the_seed(folder: Path) -> None:
    hot = ("--max-tokens", "24", "--temperature", "1.5", "--top-p", "0.95")
    one, again, other = (ask(folder, *hot, "--seed", seed) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("engine.max_model_len=16", "engine.max_model_len holds 16, answer included; shorten the text"),
        ("engine.num_gpu_blocks=2", "the KV pool (engine.num_gpu_blocks) holds 16, answer included; shorten the text"),
    ],
)
def test_a_text_that_does_not_fit_is_one_line(folder: Path, key: str, words: str) -> None:
    ended = batchscope("execute", "--prompt", TEXT, "--model-folder", folder, *HERE, *settings(key))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("batchscope: --prompt has ")
    assert ended.stderr.endswith(f"{words}\n")
