"""Text to ids and back, by the ``tokenizer.json`` of a model's folder; its chat template where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_backend.extras import require
from gpu_backend.model_folder import model_folder
from policies.core.errors import WeightsError
from policies.json_text import read_json


class Tokenizer:
    """Ids of a text and text of ids. ``stop_ids`` end an answer."""

    def __init__(self, inner: Any, settings: Mapping[str, Any], stop_ids: frozenset[int], where: Path) -> None:
        """``inner`` is a ``tokenizers.Tokenizer``, ``settings`` what ``tokenizer_config.json`` says."""
        self._inner = inner
        self._settings = settings
        self._where = where
        self.stop_ids = stop_ids

    @classmethod
    def open(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a folder; WeightsError, in one line, where it is missing or damaged."""
        require("tokenizers", extra="gpu")
        from tokenizers import Tokenizer as Inner

        path = model_folder(folder) / "tokenizer.json"
        if not path.is_file():
            raise WeightsError(f"{path}: no such file; text needs the tokenizer.json of the model")
        try:
            inner = Inner.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise WeightsError(f"{path}: no tokenizer ({' '.join(str(error).split())}); get the file again") from None
        settings = _settings(folder)
        return cls(inner, settings, _stop_ids(folder, inner, settings), folder)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was trained on chats of a given form."""
        return bool(self._template())

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with what the model expects in front of it (a token that begins a text)."""
        ids: list[int] = self._inner.encode(text).ids
        return ids

    def chat(self, text: str) -> list[int]:
        """Ids of a user's message and of what comes before the answer, by the chat template; without one those of the
        text alone."""
        template = self._template()
        if not template:
            return self.encode(text)
        ids: list[int] = self._inner.encode(self._rendered(template, text), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        text: str = self._inner.decode(list(ids))
        return text

    def stream(self) -> TextStream:
        """A reader of one answer, token by token."""
        return TextStream(self._inner)

    def _template(self) -> str:
        """The default one where a model has several."""
        found = self._settings.get("chat_template") or ""
        if isinstance(found, list):
            found = next((entry["template"] for entry in found if entry.get("name") == "default"), "")
        return str(found)

    def _rendered(self, template: str, text: str) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        # Templates are written for these two settings, and come from strangers: hence the sandbox.
        world = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        names = {key: _text(self._settings.get(key)) for key in ("bos_token", "eos_token")}
        messages = [{"role": "user", "content": text}]
        try:
            return world.from_string(template).render(
                messages=messages, add_generation_prompt=True, raise_exception=refuse, **names
            )
        except (TemplateError, TypeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise WeightsError(f"{self._where}: its chat template fails ({why}); send the text without it") from None


class TextStream:
    """Text of an answer as its tokens come; a character whose bytes are spread over tokens comes with the last one."""

    def __init__(self, inner: Any) -> None:
        """``inner`` is a ``tokenizers.Tokenizer``."""
        from tokenizers.decoders import DecodeStream

        self._inner = inner
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """What this token adds to the text; empty for a special token or a part of a character."""
        return self._stream.step(self._inner, token_id) or ""


def _settings(folder: Path) -> Mapping[str, Any]:
    """``tokenizer_config.json``, and ``chat_template.jinja`` where the template has a file of its own."""
    settings = _optional(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings = {**settings, "chat_template": template.read_text(encoding="utf-8")}
    return settings


def _optional(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); get the file again") from None
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: is no JSON object; get the file again")
    return found


def _stop_ids(folder: Path, inner: Any, settings: Mapping[str, Any]) -> frozenset[int]:
    """Of ``generation_config.json``, else ``config.json``, and the tokenizer's own end of text."""
    stops: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        given = _optional(folder / name).get("eos_token_id")
        if given is not None:
            stops = {given} if isinstance(given, int) else {int(one) for one in given}
            break
    own = inner.token_to_id(_text(settings.get("eos_token")))
    return frozenset(stops | ({own} if own is not None else set()))


def _text(token: Any) -> str:
    """A special token as files name it: its text, or an object that has it."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
