"""What is not installed is asked for by the name of its extra, in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_backend import aot, extras, kernel_check
from gpu_backend.ops import load_ops
from policies.core.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)


@pytest.mark.parametrize("main", [aot.main, kernel_check.main])
def test_a_command(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "not installed; pip install 'batchscope[gpu]'" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("kind", "missing"), [("torch", "torch"), ("triton", "torch and triton")])
def test_operations(kind: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^{missing} not installed; pip install"):
        load_ops(kind)
