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
from policies.catalog import ModelShape, model
from policies.core.errors import RunError

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check

_SEED = 0
_RANDOM_PLANS = 12
_BF16_LIMIT = 2e-2
_SMALL = ModelShape("tokens", 64, 160, 2, 4, 2, 16, 512, 512)
"""Of the token checks on a CPU: any model takes the same paths."""

Tables = dict[str, dict[str, Any]]


def run(check: Check) -> None:
    """Everything that is wrong is in the error of the stage; the rest has been checked all the same."""
    wrong: list[str] = []
    for part in (_tokens, _graphs, _bf16):
        wrong += part(check)
    if wrong:
        raise RunError("; ".join(wrong))


def _tokens(check: Check) -> list[str]:
    """Each request alone, then the same requests under one policy after the other with memory for hardly any of them:
    always the same tokens, and those of transformers."""
    shape = model(TOKENS_MODEL) if check.settings.on_cuda else _SMALL
    oracle = Oracle(shape, check.where.device, check.where.ops)
    alone = drive(oracle.model, _plain(check), poison=True)
    texts = oracle.texts(alone.outputs, _plain(check))
    least_gap, wrong_tokens = oracle.compare(texts)
    checked: dict[str, Any] = {"alone": {"requests": len(texts), "preemptions": 0}}
    wrong = [f"{wrong_tokens} tokens are not those of transformers"] if wrong_tokens else []
    tokens = sum(len(made) for made in alone.outputs.values())
    check.record.keep(tokens=tokens, wrong_tokens=wrong_tokens, least_gap=least_gap, plans=checked)
    check.say(f"{tokens} tokens of {len(texts)} requests alone: {wrong_tokens} differ from transformers (fp32)")
    for name, tables in _plans(shape, check):
        if check.left_s() <= 0:
            check.say("no time for more plans")
            break
        found = drive(oracle.model, tables, poison=True)
        differ = [number for number, made in found.outputs.items() if list(made) != list(alone.outputs[number])]
        checked[name] = {"requests": len(found.outputs), "preemptions": found.preemptions, "differ": len(differ)}
        check.record.keep(plans=checked)
        if differ:
            wrong.append(f"{name}: requests {differ[:4]} have other tokens than alone")
        del found
        release(check)
    preemptions = sum(row["preemptions"] for row in checked.values())
    check.say(f"{len(checked)} plans, {preemptions} preemptions: {len(wrong)} wrong")
    if not preemptions:
        wrong.append("no plan preempted anything")
    exact = swap_is_exact(oracle.model)
    check.record.keep(swap_is_exact=exact)
    return wrong if exact else [*wrong, "blocks that went out and came back are not what they were"]


def _graphs(check: Check) -> list[str]:
    """A graph's logits are those of the same step without it, bit by bit."""
    if not check.settings.on_cuda:
        check.record.keep(graphs="no graphs on a CPU")
        return []
    differences = graph_differences(check.where)
    check.record.keep(graphs=differences)
    check.say(f"graphs at {', '.join(map(str, differences))} rows: {sum(differences.values())} bits differ from eager")
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


def _plans(shape: ModelShape, check: Check) -> Iterator[tuple[str, Tables]]:
    """Named ones first, then random ones: preset, sequences, pool, chunk and block sizes are drawn."""

    def of(preset: str, **engine: Any) -> Tables:
        clients = engine.pop("clients", 8 if check.settings.on_cuda else 4)
        return _tables(check, clients, {"preset": preset, **engine})

    tight = 14 if check.settings.on_cuda else 6
    swap = {"swap_space_bytes": 64 * shape.block_bytes(16)}
    yield "batched", of("vllm-0.6", num_gpu_blocks=128)
    yield "recomputed", of("vllm-0.6", num_gpu_blocks=tight)
    yield "swapped", of("vllm-0.6-swap", num_gpu_blocks=tight, **swap)
    yield "chunked", of("vllm-0.6-chunked", num_gpu_blocks=tight, max_num_batched_tokens=16)
    yield "static slots", of("ft-static", num_gpu_blocks=64)
    yield "orca slots", of("orca-max", num_gpu_blocks=64)
    draw = Random(_SEED)
    for number in range(_RANDOM_PLANS if check.settings.on_cuda else 3):
        preset = draw.choice(("vllm-0.6", "vllm-0.6-swap", "vllm-0.6-chunked", "vllm-0.11"))
        clients = draw.randint(2, 8)
        engine: dict[str, Any] = {"clients": clients, "num_gpu_blocks": draw.randint(tight, 2 * tight)}
        if preset == "vllm-0.6-swap":
            engine |= swap
        if preset in ("vllm-0.6-chunked", "vllm-0.11"):
            engine["max_num_batched_tokens"] = draw.randint(clients, 64)
        yield f"random {number}: {preset}, {engine}", of(preset, **engine)


