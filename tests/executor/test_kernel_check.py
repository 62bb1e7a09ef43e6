"""The check of kernels that runs on a card passes on the CPU, in plain torch, with a pool past 2^31 elements."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from gpu_backend.kernel_check import PAST_32_BITS, main
from gpu_backend.kernel_comparison import check_kernels
from gpu_backend.torch_ops import TorchOps


def test_plain_torch_passes_with_addresses_past_32_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ops", "torch", "--device", "cpu", "--elements", str(PAST_32_BITS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 failed"
    pools = [int(number.replace(",", "")) for number in re.findall(r"pool of ([\d,]+)", "\n".join(lines))]
    assert min(pools) < 2**31 < PAST_32_BITS <= max(pools)


class Wrong(TorchOps):
    """Rows of a batch that read each other's cache, and copies that miss a block."""

    def decode_attention(self, q: Tensor, cache: Tensor, layer: int, tables: Tensor, contexts: Tensor) -> Tensor:
        return super().decode_attention(q, cache, layer, tables.roll(1, 0), contexts)

    def scatter_blocks(self, cache: Tensor, ids: Tensor, blocks: Tensor) -> None:
        super().scatter_blocks(cache, ids[1:], blocks[1:])


def test_what_is_wrong_does_not_pass() -> None:
    failed = {done.operation for done in check_kernels(Wrong(), torch.device("cpu")) if not done.passed}
    assert failed == {"decode", "blocks"}


def test_a_wrong_call_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ops", "tritan", "--device", "cpu"]) == 2
    assert "choose" in capsys.readouterr().err
