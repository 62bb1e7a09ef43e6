"""The catalog against published parameter counts and sizes."""

from __future__ import annotations

import pytest

from policies.catalog import card, cards, model, models
from policies.core.errors import CatalogError


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("codellama-34b", 33_743_970_304),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("opt-6.7b", 6_658_473_984),
        ("opt-13b", 12_853_473_280),
        ("gpt2-xl", 1_557_611_200),
        ("gpt-j-6b", 6_050_882_784),
        ("gpt-neox-20b", 20_554_567_680),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, num_parameters: int) -> None:
    assert model(name).num_parameters == num_parameters


def test_sizes_of_llama_2_7b() -> None:
    shape = model("llama-2-7b")
    assert shape.max_model_len == 4096
    assert shape.kv_bytes_per_token == 512 * 1024
    assert shape.block_bytes(16) == 8 * 1024 * 1024
    assert shape.block_bytes(16) // shape.swap_pieces_per_block() == 128 * 1024
    assert shape.read_bytes == pytest.approx(13.2e9, rel=0.005)
    assert shape.weight_bytes - shape.read_bytes == 2 * 32000 * 4096


def test_a_tied_head_is_stored_once_and_still_read() -> None:
    shape = model("llama-2-7b")
    tied = shape._replace(tied_head=True)
    assert shape.num_parameters - tied.num_parameters == shape.head_parameters
    assert tied.read_bytes == shape.read_bytes


def test_grouped_query_attention_shrinks_kv() -> None:
    assert model("llama-2-70b").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2


def test_every_entry_is_found_by_its_name() -> None:
    assert [model(shape.name) for shape in models()] == list(models())
    assert [card(entry.name) for entry in cards()] == list(cards())


def test_a100_80gb_is_the_data_sheet() -> None:
    entry = card("a100-80gb")
    assert (entry.flops_per_s, entry.bytes_per_s, entry.memory_bytes) == (312e12, 2039e9, 80 << 30)
    assert all(entry.source.endswith(", nominal") for entry in cards())


def test_an_unknown_name_gets_the_closest_one() -> None:
    with pytest.raises(CatalogError, match="unknown model 'llama2-7b'; did you mean 'llama-2-7b'"):
        model("llama2-7b")
    with pytest.raises(CatalogError, match="unknown card 'a100-80'; did you mean 'a100-80gb'"):
        card("a100-80")
    with pytest.raises(CatalogError, match="known: a100-40gb"):
        card("zzz")


@pytest.mark.parametrize("name", ["mixtral-8x7b", "DeepSeek-V3", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_a_mixture_of_experts_is_refused_by_name(name: str) -> None:
    with pytest.raises(CatalogError, match=f"model '{name}' is a mixture of experts; only dense decoders are modelled"):
        model(name)
