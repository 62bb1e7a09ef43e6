"""Continuous against static batching on the real executor, and against padded static batches of ``transformers``, on
the CPU: ``python -m tests.perf.executor_bench`` (``make executor-bench``).

Every case serves the same requests with random weights of one shape: a closed loop of 32 clients, or batches of 32.
Tokens are those that somebody asked for; what a padded batch decodes beyond them counts for nothing. The cases take
turns, in ``--rounds`` rounds, and medians are shown; before each, a fixed matrix product says how fast the machine is.
The table is made from what ``--json`` writes, at once or later (``--stored``), and ``--pages`` puts it into README.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from calibrate.dates import today
from calibrate.execute import Machine, Options, open_machine, prepare_on, run_on
from calibrate.gpu.oracle import transformers_config
from calibrate.marked import check_marks, replace
from gpu_backend.device import device_name
from policies.core.errors import UserError
from policies.json_text import read_json
from sim.config import RunConfig, load_config
from sim.runs import write_whole
from traces.workload.rows import TraceRow
from traces.workload.source import build_source

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

CONTINUOUS, STATIC, EARLY, PADDED = "continuous", "static", "static, early return", "transformers, padded static"
NEEDED = ((STATIC, 2.5), (PADDED, 2.0))
"""How many times the tokens per second of these continuous batching must reach."""

_PRESETS = {CONTINUOUS: "vllm-0.11", STATIC: "ft-static", EARLY: "ft-static-early-return"}
_SEED = 11
_MARK = "executor-bench"
"""Between which marks of README.md the table stands."""


class Load(NamedTuple):
    """Requests for ``clients`` at once: prompts of 10 to ``most_prompt_tokens``, exponential outputs of a mean."""

    model: str = "110m"
    dtype: str = "float32"
    clients: int = 32
    num_requests: int = 128
    most_prompt_tokens: int = 100
    mean_output_tokens: int = 70
    most_output_tokens: int = 400

    def config(self, preset: str) -> RunConfig:
        """The same requests under a preset."""
        workload = {
            "generator": "closed-loop",
            "concurrency": self.clients,
            "num_requests": self.num_requests,
            "prompt": {"dist": "uniform", "low": min(10, self.most_prompt_tokens), "high": self.most_prompt_tokens},
            "output": {"dist": "exponential", "mean": self.mean_output_tokens, "cap": self.most_output_tokens},
            "seed": _SEED,
        }
        engine = {"max_num_seqs": self.clients, "max_model_len": self.max_model_len}
        pool = {} if preset.startswith("ft-") else {"num_gpu_blocks": self.clients * self.max_model_len // 16}
        tables: dict[str, object] = {"workload": workload, "engine": engine | pool}
        return load_config(tables, (), model=self.model, policy=preset)

    @property
    def max_model_len(self) -> int:
        """Room for the longest request, in whole blocks."""
        return -(-(self.most_prompt_tokens + self.most_output_tokens) // 16) * 16

    def rows(self) -> list[TraceRow]:
        """Every request, in the order in which they are sent."""
        return list(build_source(self.config(_PRESETS[CONTINUOUS]).workload, self.max_model_len).rows())


class Run(NamedTuple):
    """One case, once: useful tokens, seconds of wall clock and of CPU, and of the fixed product before it."""

    tokens: int
    wall_s: float
    cpu_s: float
    product_s: float

    @property
    def tokens_per_s(self) -> float:
        """Useful tokens over the whole run."""
        return self.tokens / self.wall_s


def own(machine: Machine, load: Load, preset: str) -> tuple[int, float, float]:
    """One run of the executor: tokens, seconds, CPU seconds."""
    setup = prepare_on(machine, load.config(preset))
    result = run_on(machine, setup, Options(device="cpu", dtype=load.dtype))
    summary = result.summary
    assert summary["requests"]["finished"] == load.num_requests, summary["requests"]
    return int(result.requests.output_tokens.sum()), summary["duration_s"], summary["wall"]["cpu_s"]


def transformers_model(machine: Machine) -> LlamaForCausalLM:
    """Random weights of the same shape and numbers, in the hands of ``transformers``."""
    from transformers import LlamaForCausalLM

    config = transformers_config(machine.model.shape, pad_token_id=0)
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(machine.model.dtype).eval()


def padded_batches(model: LlamaForCausalLM, rows: Sequence[TraceRow], batch_size: int) -> int:
    """Greedy generation in batches, padded on the left, each until its longest answer is done; the useful tokens."""
    generator = torch.Generator().manual_seed(0)
    left, tokens = iter(rows), 0
    while batch := list(islice(left, batch_size)):
        longest = max(row.prompt_tokens for row in batch)
        steps = max(row.output_tokens for row in batch)
        ids = torch.randint(1, model.config.vocab_size, (len(batch), longest), generator=generator)
        mask = torch.ones_like(ids)
        for number, row in enumerate(batch):
            mask[number, : longest - row.prompt_tokens] = 0
        said = model.generate(
            ids * mask, attention_mask=mask, do_sample=False, min_new_tokens=steps, max_new_tokens=steps
        )
        assert said.shape[1] == longest + steps, said.shape
        tokens += sum(row.output_tokens for row in batch)
    return tokens


def cases(load: Load, names: Sequence[str]) -> dict[str, Callable[[], tuple[int, float, float]]]:
    """What serves the load, by name; models are loaded once."""
    machine = open_machine(load.config(_PRESETS[CONTINUOUS]), Options(device="cpu", dtype=load.dtype))
    found: dict[str, Callable[[], tuple[int, float, float]]] = {}
    for name in names:
        if name == PADDED:
            found[name] = _padded(machine, load)
        else:
            found[name] = partial(own, machine, load, _PRESETS[name])
    return found


def _padded(machine: Machine, load: Load) -> Callable[[], tuple[int, float, float]]:
    model, rows = transformers_model(machine), load.rows()
    padded_batches(model, rows[:1], 1)  # what is set up at a first call
    return lambda: _timed(lambda: padded_batches(model, rows, load.clients))


def _timed(call: Callable[[], int]) -> tuple[int, float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    tokens = call()
    return tokens, time.perf_counter() - wall_s, time.process_time() - cpu_s


def product_s() -> float:
    """The median of a fixed matrix product, which shows how fast the machine just is."""
    square = torch.ones(1024, 1024)
    return statistics.median(_timed(lambda: int((square @ square)[0, 0]))[1] for _ in range(9))


def play(load: Load, names: Sequence[str], rounds: int, tell: Callable[[str], object]) -> dict[str, list[Run]]:
    """The rounds, in each of which every case serves the whole load once."""
    runs: dict[str, list[Run]] = {name: [] for name in names}
    serve = cases(load, names)
    for number in range(rounds):
        for name in names:
            gc.collect()
            speed_s = product_s()
            run = Run(*serve[name](), speed_s)
            runs[name].append(run)
            tell(f"round {number + 1}, {name}: {run.tokens} tokens in {run.wall_s:.1f} s, {run.cpu_s:.1f} CPU s")
    return runs


def found_of(load: Load, threads: int, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """All there is to tell of the rounds, in JSON types."""
    rows = load.rows()
    prompts, lengths = [row.prompt_tokens for row in rows], [row.output_tokens for row in rows]
    return {
        "load": load._asdict(),
        "prompt_tokens": {"least": min(prompts), "most": max(prompts)},
        "output_tokens": {"mean": statistics.mean(lengths), "most": max(lengths)},
        "device": device_name(torch.device("cpu")),
        "threads": threads,
        "torch": str(torch.__version__),
        "date": today(),
        "runs": {name: [run._asdict() for run in of_case] for name, of_case in runs.items()},
    }


def runs_of(found: Mapping[str, Any]) -> dict[str, list[Run]]:
    """The runs of each case again."""
    return {name: [Run(**run) for run in of_case] for name, of_case in found["runs"].items()}


def page(found: Mapping[str, Any]) -> str:
    """The table, in Markdown, with what it was measured on and whether continuous batching gained what it must."""
    load, prompt, output, runs = Load(**found["load"]), found["prompt_tokens"], found["output_tokens"], runs_of(found)
    rounds = len(runs[CONTINUOUS])
    lines = [
        f"Measured on {found['device']}, {found['date']}: the {load.model} shape, random weights,"
        f" {load.dtype}, torch {found['torch']}; {load.num_requests} requests of {load.clients} clients, prompts of"
        f" {prompt['least']} to {prompt['most']} tokens, outputs exponential (mean {output['mean']:.0f},"
        f" longest {output['most']}); {f'medians of {rounds} interleaved rounds' if rounds > 1 else 'one round'}.",
        "",
        "| batching | useful tokens/s | least to most | continuous gains | CPU s | s | fixed product, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(name, found, _rate(runs[CONTINUOUS])) for name, found in runs.items()]
    for name, least in NEEDED:
        if name in runs:
            gain = _rate(runs[CONTINUOUS]) / _rate(runs[name])
            verdict = "reached" if gain >= least else "MISSED"
            lines += ["", f"At least {least:g} times {name}: {verdict} ({gain:.2f})."]
    return "\n".join(lines)


def _row(name: str, runs: Sequence[Run], continuous: float) -> str:
    rates = [run.tokens_per_s for run in runs]
    cells = [
        name,
        f"{_rate(runs):.1f}",
        f"{min(rates):.1f} to {max(rates):.1f}",
        "" if name == CONTINUOUS else f"{continuous / _rate(runs):.2f} x",
        f"{statistics.median(run.cpu_s for run in runs):.1f}",
        f"{statistics.median(run.wall_s for run in runs):.1f}",
        f"{1e3 * statistics.median(run.product_s for run in runs):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _rate(runs: Sequence[Run]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


def reached(runs: dict[str, list[Run]]) -> bool:
    """Whether continuous batching gained what it must over each case that was run."""
    return all(_rate(runs[CONTINUOUS]) >= least * _rate(runs[name]) for name, least in NEEDED if name in runs)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    usual = Load()
    for name, value in usual._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cases", nargs="+", choices=[*_PRESETS, PADDED], default=[*_PRESETS, PADDED])
    parser.add_argument("--json", type=Path, help="every run, as a file")
    parser.add_argument("--stored", type=Path, help="run nothing: the table of what --json wrote")
    parser.add_argument("--pages", type=Path, help="folder whose README.md gets the table")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Play the rounds, or take stored ones, and print the table; 1 where a target was missed, 2 for what cannot be
    read or written."""
    options = _arguments(words)
    try:
        if options.pages is not None:
            check_marks(options.pages / "README.md", _MARK)
        found = _played(options) if options.stored is None else read_stored(options.stored)
        if options.json is not None:
            write_whole(options.json, json.dumps(found, indent=1))
        print(page(found))
        if options.pages is not None:
            replace(options.pages / "README.md", _MARK, page(found))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if reached(runs_of(found)) else 1


def read_stored(path: Path) -> dict[str, Any]:
    """What ``--json`` wrote; UserError for any other file."""
    try:
        found: dict[str, Any] = read_json(path)
        page(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not what --json writes now ({error!r}); run with --json once more") from None
    return found


def _played(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    load = Load(*(getattr(options, name) for name in Load._fields))
    names = [CONTINUOUS, *(name for name in options.cases if name != CONTINUOUS)]
    runs = play(load, names, options.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    return found_of(load, options.threads, runs)


if __name__ == "__main__":
    sys.exit(main())
