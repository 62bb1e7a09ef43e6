"""Stage 2: the executor's tokens are those of transformers, whatever the policy plans; graphs and bfloat16 compute what
they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from calibrate.gpu.drive import drive
from calibrate.gpu.kernels import TOKENS_MODEL
from calibrate.gpu.numerics import bf16_error, graph_differences, swap_is_exact
from calibrate.gpu.oracle import Oracle
from calibrate.gpu.replay import release
from calibrate.measure_points import BLOCK_SIZE
from policies.catalog import ModelShape, model
from policies.core.errors import RunError

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check

_SEED = 0
_RANDOM_PLANS = 12
_BF16_LIMIT = 2e-2
_PRESETS = ("vllm-0.6", "vllm-0.6-swap", "vllm-0.6-chunked", "vllm-0.11")
_SMALL = ModelShape("tokens", 64, 160, 2, 4, 2, 16, 512, 512)
"""Of the token checks on a CPU: any model takes the same paths."""

Tables = dict[str, dict[str, Any]]


def run(check: Check) -> None:
    """Everything that is wrong is in the error of the stage; the rest has been checked all the same. Random plans go on
    until the time is over."""
    shape = model(TOKENS_MODEL) if check.settings.on_cuda else _SMALL
    oracle = Oracle(shape, check.where.device, check.where.ops)
    wrong, alone = _against_oracle(check, oracle)
    plans: dict[str, Any] = {}
    for name, tables in _named_plans(shape, check):
        wrong += _same_tokens(check, oracle, name, tables, alone, plans)
    preemptions = sum(row["preemptions"] for row in plans.values())
    check.say(f"{len(plans)} policies, {preemptions} preemptions: {len(wrong)} wrong")
    wrong += [] if preemptions else ["no policy preempted anything"]
    for part in (_graphs, _bf16):
        wrong += part(check)
    for name, tables in _random_plans(shape, check):
        if check.left_s() <= 0:
            break
        wrong += _same_tokens(check, oracle, name, tables, alone, plans)
    check.say(f"{len(plans)} policies in all: {len(wrong)} wrong")
    if wrong:
        raise RunError("; ".join(wrong))


Outputs = Mapping[int, Sequence[int]]


def _against_oracle(check: Check, oracle: Oracle) -> tuple[list[str], Outputs]:
    """What is wrong with each request served alone, and the tokens it made."""
    alone = drive(oracle.model, _plain(check), poison=True).outputs
    least_gap, differ = oracle.compare(oracle.texts(alone, _plain(check)))
    tokens, exact = sum(map(len, alone.values())), swap_is_exact(oracle.model)
    check.record.keep(tokens=tokens, wrong_tokens=differ, least_gap=least_gap, swap_is_exact=exact)
    check.say(f"{tokens} tokens of {len(alone)} requests alone: {differ} differ from transformers (fp32)")
    wrong = [f"{differ} tokens are not those of transformers"] if differ else []
    return wrong if exact else [*wrong, "blocks that were swapped out and in are not what they were"], alone


def _same_tokens(
    check: Check, oracle: Oracle, name: str, tables: Tables, alone: Outputs, plans: dict[str, Any]
) -> list[str]:
    """Run the same requests under a policy; what has other tokens than alone must have met a tie. Memory begins as
    NaN."""
    found = drive(oracle.model, tables, poison=True)
    differ = [number for number, made in found.outputs.items() if list(made) != list(alone[number])]
    texts = oracle.texts(found.outputs, tables) if differ else []
    _, wrong = oracle.compare([texts[number] for number in differ])
    row = {"requests": len(found.outputs), "preemptions": found.preemptions, "differ": len(differ), "wrong": wrong}
    plans[name] = row
    check.record.keep(plans=plans)
    del found
    release(check)
    return [f"{name}: {wrong} tokens of requests {differ[:4]} are not those of transformers"] if wrong else []


def _graphs(check: Check) -> list[str]:
    """A graph's logits are those of the same step without it, bit by bit."""
    if not check.settings.on_cuda:
        check.record.keep(graphs="no graphs on a CPU")
        return []
    differences = graph_differences(check.settings.model, check.where)
    check.record.keep(graphs=differences)
    check.say(
        f"graphs at {', '.join(map(str, differences))} rows: {sum(differences.values())} logits differ from eager"
    )
    return [f"a graph of {size} rows: {count} logits differ" for size, count in differences.items() if count]


def _bf16(check: Check) -> list[str]:
    """Two layers at the model's full width in bfloat16 beside float32 of the same weights."""
    release(check)
    error = bf16_error(check.settings.model, check.where)
    check.record.keep(bf16_error=error, bf16_limit=_BF16_LIMIT)
    check.say(f"bfloat16 logits of two layers of {check.settings.model}: relative error {error:.1e}")
    return [] if error <= _BF16_LIMIT else [f"bfloat16 logits are off by {error:.2e}, more than {_BF16_LIMIT:.0e}"]


# -- plans ---------------------------------------------------------------------------------------------------


def _tables(check: Check, clients: int, engine: Mapping[str, Any]) -> Tables:
    on_cuda = check.settings.on_cuda
    return {
        "engine": {"max_model_len": 128, "max_num_seqs": clients, **engine},
        "workload": {
            "generator": "closed-loop",
            "concurrency": clients,
            "num_requests": 20 if on_cuda else 6,
            "prompt": {"dist": "uniform", "low": 5, "high": 70 if on_cuda else 40},
            "output": {"dist": "uniform", "low": 4, "high": 40 if on_cuda else 16},
        },
        "model": {"name": TOKENS_MODEL},
    }


def _plain(check: Check) -> Tables:
    return _tables(check, 1, {"preset": "vllm-0.6", "num_gpu_blocks": 64})


def _of(check: Check, preset: str, *, clients: int | None = None, **engine: Any) -> Tables:
    usual = 8 if check.settings.on_cuda else 4
    return _tables(check, clients or usual, {"preset": preset, **engine})


def _tight(check: Check) -> int:
    """Blocks of a pool that hardly holds two requests."""
    return 14 if check.settings.on_cuda else 6


def _named_plans(shape: ModelShape, check: Check) -> Iterator[tuple[str, Tables]]:
    tight, swap = _tight(check), _swap_space(shape)
    yield "batched", _of(check, "vllm-0.6", num_gpu_blocks=128)
    yield "recomputed", _of(check, "vllm-0.6", num_gpu_blocks=tight)
    yield "swapped", _of(check, "vllm-0.6-swap", num_gpu_blocks=tight, **swap)
    yield "chunked", _of(check, "vllm-0.6-chunked", num_gpu_blocks=tight, max_num_batched_tokens=16)
    yield "static slots", _of(check, "ft-static", num_gpu_blocks=64)
    yield "orca slots", _of(check, "orca-max", num_gpu_blocks=64)


def _random_plans(shape: ModelShape, check: Check) -> Iterator[tuple[str, Tables]]:
    """Preset, sequences, pool and token budget are drawn."""
    draw, tight = Random(_SEED), _tight(check)
    for number in range(_RANDOM_PLANS if check.settings.on_cuda else 2):
        preset, clients = draw.choice(_PRESETS), draw.randint(2, 8)
        engine: dict[str, Any] = {"num_gpu_blocks": draw.randint(tight, 2 * tight)}
        if preset == "vllm-0.6-swap":
            engine |= _swap_space(shape)
        elif preset != "vllm-0.6":
            engine["max_num_batched_tokens"] = draw.randint(clients, 64)
        yield f"random {number}: {preset}, {clients} clients, {engine}", _of(check, preset, clients=clients, **engine)


def _swap_space(shape: ModelShape) -> dict[str, int]:
    return {"swap_space_bytes": 64 * shape.block_bytes(BLOCK_SIZE)}
