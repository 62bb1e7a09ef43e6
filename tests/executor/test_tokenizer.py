"""Text to ids and back by the files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from gpu_backend.tokenizer import Tokenizer
from policies.core.errors import WeightsError
from tests.executor import small_tokenizer


@pytest.fixture(scope="module")
def inner() -> Any:
    return small_tokenizer.trained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, inner: Any) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    small_tokenizer.write(folder, inner)
    return folder


@given(text=st.text(max_size=30))
def test_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(st.sampled_from("aé漢🙂 .\n"), max_size=30))
def test_a_stream_is_the_same_text(folder: Path, text: str) -> None:
    tokenizer = Tokenizer.open(folder)
    stream = tokenizer.stream()
    parts = [stream.push(token) for token in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


def test_special_tokens_are_read_whole_and_not_shown(folder: Path, inner: Any) -> None:
    tokenizer = Tokenizer.open(folder)
    ids = tokenizer.encode("full<|im_end|>")
    assert ids[-1] == inner.token_to_id("<|im_end|>")
    assert tokenizer.decode(ids) == "full"
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) == "full"


def test_chat_is_the_templates_text(folder: Path) -> None:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.has_chat_template
    expected = "<|im_start|>user\nIs it free?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat("Is it free?") == tokenizer.encode(expected)


def test_a_template_in_a_file_of_its_own_or_among_several(tmp_path: Path, inner: Any) -> None:
    template = "{{ bos_token }}{{ messages[0]['content'] }}!"
    small_tokenizer.write(tmp_path, inner, bos_token={"content": "<|im_start|>"})
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.chat("full") == tokenizer.encode("<|im_start|>full!")
    (tmp_path / "chat_template.jinja").unlink()
    several = [{"name": "tool", "template": "no"}, {"name": "default", "template": template}]
    small_tokenizer.write(tmp_path, inner, chat_template=several, bos_token="<|im_start|>")
    assert Tokenizer.open(tmp_path).chat("full") == tokenizer.encode("<|im_start|>full!")


def test_without_a_template_chat_is_the_text(tmp_path: Path, inner: Any) -> None:
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    assert not tokenizer.has_chat_template
    assert tokenizer.chat("full") == tokenizer.encode("full")
    assert tokenizer.stop_ids == frozenset()


def test_stops_are_those_of_the_generation_and_the_tokenizer(tmp_path: Path, inner: Any) -> None:
    small_tokenizer.write(tmp_path, inner)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    own = inner.token_to_id("<|im_end|>")
    assert Tokenizer.open(tmp_path).stop_ids == {7, own}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert Tokenizer.open(tmp_path).stop_ids == {5, 6, own}


def test_what_is_missing_or_damaged_is_one_line(tmp_path: Path, inner: Any) -> None:
    with pytest.raises(WeightsError, match=r"tokenizer.json: no such file"):
        Tokenizer.open(tmp_path)
    with pytest.raises(WeightsError, match="no such folder"):
        Tokenizer.open(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="convert it first"):
        Tokenizer.open(tmp_path / "model.gguf")
    small_tokenizer.write(tmp_path, inner)
    for name, text, line in (
        ("tokenizer_config.json", "[]", "is no JSON object"),
        ("tokenizer_config.json", "{", "cannot be read"),
        ("tokenizer.json", "{}", "no tokenizer"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(WeightsError, match=line) as told:
            Tokenizer.open(tmp_path)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("template", [
    "{{ raise_exception('system\nonly') }}",
    "{% for x in %}",
    "{{ messages.nothing.at_all }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
])  # fmt: skip
def test_a_template_that_fails_is_one_line(tmp_path: Path, inner: Any, template: str) -> None:
    small_tokenizer.write(tmp_path, inner, chat_template=template)
    with pytest.raises(WeightsError, match="its chat template fails") as told:
        Tokenizer.open(tmp_path).chat("hello")
    assert "\n" not in str(told.value)
