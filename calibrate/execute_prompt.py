"""One question and its answer, token by token in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.execute import Options, Texts, open_machine, prepare_on, run_on, with_weights
from policies.core.errors import ConfigError, UserError
from sim.config import load_config
from sim.runs import check_new
from traces.workload.rows import TraceRow
from traces.workload.source import Workload

if TYPE_CHECKING:
    from policies.core.request import Request
    from sim.result import Result


def answer(
    prompt: str,
    folder: str | None,
    config: str | None,
    options: Options,
    overrides: Sequence[str],
    *,
    out: str | None,
    max_tokens: int,
    quiet: bool = False,
    **flags: Any,
) -> Result:
    """Let the model of ``folder`` answer ``prompt``, in chat form where it has one, and write the text to the terminal
    as it comes, unless ``quiet``. Raises a UserError for a folder without model or tokenizer, or a text too long."""
    if folder is None:
        raise UserError("--prompt needs a model that can read: give --model-folder DIR with weights and tokenizer.json")
    if max_tokens < 1:
        raise UserError(f"--max-tokens {max_tokens}: give a whole number of at least 1")
    from gpu_backend.extras import require

    require("torch", "safetensors", "tokenizers", extra="gpu")
    from gpu_backend.tokenizer import Tokenizer

    if out is not None:
        check_new(Path(out))
    tokenizer = Tokenizer.open(Path(folder))
    ids = np.array(tokenizer.chat(prompt), np.int64)
    options = options._replace(weights=folder)
    loaded = load_config(config, with_weights((*overrides, *_one_request(len(ids), max_tokens)), options), **flags)
    machine = open_machine(loaded, options)
    setup = prepare_on(machine, loaded, workload=_workload(len(ids), max_tokens))
    longest, pool = setup.parameters.max_model_len, setup.policy.kv.num_blocks * setup.policy.kv.block_size
    for limit, what in ((longest, "engine.max_model_len"), (pool, "the KV pool (engine.num_gpu_blocks)")):
        if len(ids) >= limit:
            said = f"--prompt has {len(ids):,} tokens, and {what} holds {limit:,}, answer included"
            raise ConfigError(f"{said}; shorten the text")
    stream = tokenizer.stream()

    def show(request_id: int, token: int) -> None:
        if token not in tokenizer.stop_ids and not quiet:
            sys.stdout.write(stream.push(token))
            sys.stdout.flush()

    def tokens_of(request: Request) -> np.ndarray[Any, np.dtype[np.int64]]:
        return ids

    texts = Texts(tokens_of, tokenizer.stop_ids, show)
    result = run_on(machine, setup, options, out=out, texts=texts, interruptible=True)
    if not quiet:
        sys.stdout.write("\n")
        sys.stderr.write(_speed(result))
    return result


def _one_request(prompt_tokens: int, max_tokens: int) -> Sequence[str]:
    """What run.toml says of the workload."""
    return (
        "workload.generator=closed-loop",
        "workload.concurrency=1",
        "workload.num_requests=1",
        f'workload.prompt={{dist="fixed",value={prompt_tokens}}}',
        f'workload.output={{dist="fixed",value={max_tokens}}}',
    )


def _workload(prompt_tokens: int, max_tokens: int) -> Workload:
    """A request whose length nobody knows: it is cut at ``max_tokens`` unless the model ends it before."""
    row = TraceRow(0.0, prompt_tokens, max_tokens + 1, max_tokens)
    return Workload(lambda: iter((row,)), 1, (), 1, 0.0, "one prompt", "trace", "cut")


def _speed(result: Result) -> str:
    """How fast it went, for people."""
    summary = result.summary
    tokens = int(result.requests["output_tokens"].sum()) if summary["requests"]["offered"] else 0
    words = [f"{tokens:,} tokens"]
    if "ttft_s" in summary:
        words.append(f"first after {summary['ttft_s']['mean']:.2f} s")
    if "tpot_s" in summary:
        words.append(f"then {1 / summary['tpot_s']['mean']:.1f} a second")
    return f"({', '.join(words)}; {summary['model']} on {summary['hardware']})\n"
