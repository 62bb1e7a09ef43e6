"""KV memory: the catalog's bytes a block, and one line where there is too little of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpu_backend.cache import KvCache, block_bytes, blocks_in  # noqa: E402
from gpu_backend.device import free_bytes, placement  # noqa: E402
from policies.catalog import model  # noqa: E402
from policies.core.errors import ConfigError  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["tiny", "15m", "llama-2-7b", "llama-3-8b"])
@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_a_block_takes_the_bytes_that_the_catalog_says(name: str, block_size: int) -> None:
    shape = model(name)
    half = KvCache(1, shape, block_size, torch.bfloat16, CPU)
    assert half.block_bytes == half.blocks_NL2KSD.nbytes == shape.block_bytes(block_size)
    assert block_bytes(shape, block_size, torch.float32) == 2 * half.block_bytes


def test_a_block_of_all_layers_is_one_run() -> None:
    cache = KvCache(3, model("tiny"), 8, torch.float32, CPU)
    assert cache.blocks_NL2KSD[1].is_contiguous()
    assert cache.blocks_NL2KSD[1].data_ptr() - cache.blocks_NL2KSD.data_ptr() == cache.block_bytes


def test_as_many_blocks_as_the_budget_holds() -> None:
    shape = model("15m")
    each = block_bytes(shape, 16, torch.float16)
    assert blocks_in(10 * each + each // 2, shape, 16, torch.float16) == 10
    with pytest.raises(ConfigError, match="a block of 15m takes"):
        blocks_in(each - 1, shape, 16, torch.float16)


def test_a_pool_beyond_the_memory_is_refused_before_it_is_touched() -> None:
    shape = model("llama-2-7b")
    too_many = 2 * free_bytes(CPU) // shape.block_bytes(16)
    with pytest.raises(ConfigError, match=r"out of memory: [\d,]+ KV blocks of 16 tokens take") as told:
        KvCache(too_many, shape, 16, torch.bfloat16, CPU)
    assert "\n" not in str(told.value)
    with pytest.raises(ConfigError, match="must have a block at least"):
        KvCache(0, shape, 16, torch.bfloat16, CPU)


@pytest.mark.parametrize(("device", "dtype", "ops", "line"), [
    ("tpu", "auto", "auto", "choose auto, cpu, cuda or cuda:N"),
    ("meta", "auto", "auto", "choose auto, cpu, cuda or cuda:N"),
    ("cuda:99", "auto", "auto", "CUDA devices here"),
    ("auto", "float23", "auto", "did you mean 'float32'"),
    ("cpu", "auto", "tritn", "did you mean 'triton'"),
])  # fmt: skip
def test_a_place_that_is_not_there_is_one_line(device: str, dtype: str, ops: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as told:
        placement(device, dtype, ops)
    assert "\n" not in str(told.value)


def test_the_cpu_takes_plain_torch_in_float32() -> None:
    where = placement("cpu")
    assert (where.ops.name, where.dtype) == ("torch", torch.float32)


def test_a_cuda_device_is_made_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, whatever tensors it is given. No machine with two cards is asked for."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert placement("cuda:1", ops="torch").device == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]


def test_triton_on_the_cpu_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        placement("cpu", ops="triton")
