"""What a user reads after a mistake: one line on stderr that says what, where and what to do; exit code 2.

A table of mistakes and the whole line each ends in. Nothing is printed on stdout and nothing is left in the folder.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from policies.catalog import models
from policies.presets import presets
from sim.config_sections import HardwareConfig
from tests.command import OWN, POSITIVE, TRACE, message_of, settings

KNOWN = (
    "TIMESTAMP,ContextTokens,GeneratedTokens; arrived_at,num_prefill_tokens,num_decode_tokens; "
    "arrival_s,prompt_tokens,output_tokens"
)
ALL_PRESETS = ", ".join(preset.name for preset in presets())


def having(key: str) -> str:
    """The presets that have a parameter, as messages list them."""
    return ", ".join(preset.name for preset in presets() if key in preset.defaults)


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- traces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": the file is empty; give a trace with at least one row"),
        (OWN.splitlines()[0] + "\n", ": no rows; give a trace with at least one row"),
        (
            OWN.replace("output_tokens", "out_tokens"),
            ", line 1: column 'output_tokens' is missing; did you mean 'out_tokens'? "
            "(found arrival_s,prompt_tokens,out_tokens)",
        ),
        (
            "TIMESTAMP,ContextToken,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
            ", line 1: column 'ContextTokens' is missing; did you mean 'ContextToken'? "
            "(found TIMESTAMP,ContextToken,GeneratedTokens)",
        ),
        ("1,2,3\n", f", line 1: no known format: found 1,2,3; write a header with {KNOWN}"),
        (OWN + "2,x,5\n", ", line 4, column prompt_tokens: 'x' is not a number; give the number of tokens"),
        (OWN + "2,nan,5\n", ", line 4, column prompt_tokens: 'nan' is not finite; give the number of tokens"),
        (
            OWN + "2,1.5,5\n",
            ", line 4, column prompt_tokens: '1.5' is not a whole number; give the number of tokens",
        ),
        (OWN + "2,5\n", ", line 4: 2 fields where the header has 3; mend the line (the file may be cut off)"),
        (OWN + "-2,5,5\n", ", line 4, column arrival_s: '-2' is negative; times start at 0 seconds"),
        (OWN + "nan,5,5\n", ", line 4, column arrival_s: 'nan' is not finite; give seconds"),
        (OWN + "inf,5,5\n", ", line 4, column arrival_s: 'inf' is not finite; give seconds"),
        (
            OWN + "1700000000000,5,5\n",
            ", line 4, column arrival_s: '1700000000000' is above 1e+10 seconds; give seconds, not parts of them",
        ),
        (
            OWN + "2,0,5\n",
            ", line 4, column prompt_tokens: '0' is below 1; give at least one token or remove the row",
        ),
        (
            OWN + "2,5,0\n",
            ", line 4, column output_tokens: '0' is below 1; give at least one token or remove the row",
        ),
        (
            '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": "many"}\n',
            ", line 1, column output_tokens: 'many' is not a number; give the number of tokens",
        ),
        (
            b"\x89PNG\r\n\x1a\n\xff\x00",
            ": not a text file in UTF-8; give a trace as CSV or JSON lines, plain or gzip",
        ),
        (
            gzip.compress(OWN.encode() * 50, mtime=0)[:-20],
            ": the gzip file is cut off or damaged; fetch it again",
        ),
    ],
)
def test_traces(content: str | bytes, expected: str) -> None:
    assert message_of("run", "--trace", "t.csv", files={"t.csv": content}) == f"t.csv{expected}"


def test_traces_that_are_not_there() -> None:
    assert message_of("run", "--trace", "none.csv") == "none.csv: no such file; give the path of a trace"
    assert message_of("run", "--trace", ".") == ".: cannot be read (Is a directory); give the path of a trace"
    column = message_of("run", *TRACE, *settings("workload.max_tokens=trace"))
    assert column == (
        "own.csv: workload.max_tokens = 'trace', but 2 of 2 rows have no max_tokens; "
        "use 'output', 'model', a number or 'xF'"
    )


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--policy", "vllm-0.12"),
            "engine.policy = 'vllm-0.12': neither a preset nor FILE.py:CLASS; did you mean 'vllm-0.11'?",
        ),
        (("--policy", "mine.py"), "engine.policy = 'mine.py': name the class in it, too: mine.py:CLASS"),
        (
            ("--policy", "magic"),
            f"engine.policy = 'magic': neither a preset nor FILE.py:CLASS; known: {ALL_PRESETS}",
        ),
        (
            settings("engine.preset=vllm-0.5"),
            "engine.preset = 'vllm-0.5': unknown preset; did you mean 'vllm-0.6'?",
        ),
        (("--policy", ""), 'engine.policy = "": give a text'),
        (("--policy", "none.py:Mine"), "engine.policy = 'none.py:Mine': there is no file none.py"),
        (
            ("--policy", "mine.py:Min"),
            "engine.policy = 'mine.py:Min': mine.py has no class 'Min'; did you mean 'Mine'?",
        ),
        (
            ("--policy", "mine.py:Mine"),
            "engine.policy = 'mine.py:Mine': Mine is no policy; derive it from policies.systems.base.BatchingPolicy"
            " (or policies.core.protocols.Policy)",
        ),
        (
            ("--policy", "broken.py:Mine"),
            "engine.policy = 'broken.py:Mine': broken.py, line 2 fails with ModuleNotFoundError: "
            "No module named 'there_is_no_such_module'",
        ),
        (("--model", "llama-2-7"), "unknown model 'llama-2-7'; did you mean 'llama-2-7b'?"),
        (
            ("--model", "x"),
            f"unknown model 'x'; known: {', '.join(shape.name for shape in models())}",
        ),
        (("--hardware", "a100"), "unknown card 'a100'; did you mean 'a100-80gb'?"),
        (
            settings("engin.max_num_seqs=3"),
            "engin: unknown section; known are workload, engine, model, hardware, sim, slo, policy, price; "
            "did you mean 'engine'?",
        ),
        (
            settings("hardware.nam=a100-80gb"),
            f"hardware.nam: unknown key; known are {', '.join(HardwareConfig.all_keys())}; did you mean 'name'?",
        ),
        (
            settings("engine.max_num_seqs=3", "engine.max_num_seqs=4"),
            "--set engine.max_num_seqs: given twice; leave one out",
        ),
        (
            settings("engine.max_num_seqs"),
            "--set engine.max_num_seqs: write section.key=value, for example engine.max_num_seqs=64",
        ),
    ],
)
def test_names(arguments: tuple[str, ...], expected: str) -> None:
    files: dict[str, str | bytes] = {
        "own.csv": OWN,
        "mine.py": "class Mine:\n    pass\n",
        "broken.py": "\nimport there_is_no_such_module\n",
    }
    assert message_of("run", *TRACE, *arguments, files=files) == expected


# -- values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("engine.max_num_seqs=0", f"engine.max_num_seqs = 0: {POSITIVE}"),
        ("engine.max_num_seqs=many", f'engine.max_num_seqs = "many": {POSITIVE}'),
        ("engine.max_num_seqs=1.5", f"engine.max_num_seqs = 1.5: {POSITIVE}"),
        ("engine.max_num_batched_tokens=0", f"engine.max_num_batched_tokens = 0: {POSITIVE}"),
        (
            "engine.max_num_batched_tokens=100",
            "engine.max_num_batched_tokens = 100: vLLM wants at least max_num_seqs = 256; raise it or lower "
            "engine.max_num_seqs",
        ),
        ("engine.block_size=0", f"engine.block_size = 0: {POSITIVE}"),
        ("engine.num_gpu_blocks=0", f"engine.num_gpu_blocks = 0: {POSITIVE}"),
        (
            "engine.num_gpu_blocks=1",
            "engine.num_gpu_blocks = 1: the KV pool holds less than one usable block of 16 tokens, so no request at "
            "all can be served; give more blocks, a larger card, or a smaller engine.max_model_len",
        ),
        (
            "engine.num_gpu_blocks=100000000000000",
            "engine.num_gpu_blocks = 100000000000000: llama-2-7b on a100-80gb has memory for 8633 blocks of 16 tokens "
            "at most; give fewer, a larger card or a smaller model",
        ),
        (
            "engine.block_size=1000000",
            "llama-2-7b on a100-80gb leaves no room for KV blocks: 0.9 x 85.9 GB memory - 13.5 GB weights - 0.3 GB "
            "activations - 1.5 GB reserve = 62.0 GB, where a block takes 524288.0 MB; choose a larger card or a "
            "smaller model, split it with hardware.tp, or raise engine.gpu_memory_utilization",
        ),
        (
            "engine.gpu_memory_utilization=0",
            "engine.gpu_memory_utilization = 0: give a number above 0 and of at most 1",
        ),
        (
            "engine.gpu_memory_utilization=2",
            "engine.gpu_memory_utilization = 2: give a number above 0 and of at most 1",
        ),
        (
            "engine.gpu_memory_utilization=0.17",
            "llama-2-7b on a100-80gb leaves no room for KV blocks: 0.17 x 85.9 GB memory - 13.5 GB weights - 0.3 GB "
            "activations - 1.5 GB reserve = -0.7 GB, where a block takes 8.4 MB; choose a larger card or a smaller "
            "model, split it with hardware.tp, or raise engine.gpu_memory_utilization",
        ),
        ("engine.max_model_len=4097", "engine.max_model_len = 4097: the model takes at most 4096 tokens"),
        ("engine.faithful=1", "engine.faithful = 1: give true or false"),
        (
            "engine.long_prefill_token_threshold=-1",
            "engine.long_prefill_token_threshold = -1: give a whole number of at least 0",
        ),
        ("engine.preemption_mode=drop", 'engine.preemption_mode = "drop": give one of recompute, swap, auto'),
        (
            "engine.preemption_mode=swap",
            'engine.preemption_mode = "swap": preset vllm-0.11 has no such parameter, leave it out; '
            f"presets that have it: {having('preemption_mode')}",
        ),
        (
            "engine.swap_space_bytes=5",
            "engine.swap_space_bytes = 5: preset vllm-0.11 has no such parameter, leave it out; "
            f"presets that have it: {having('swap_space_bytes')}",
        ),
        ("sim.record=all", 'sim.record = "all": give one of requests, steps, tokens, decisions'),
        ("sim.max_time_s=0", "sim.max_time_s = 0: give a number above 0"),
        ("slo.ttft_s=nan", "slo.ttft_s = nan: give a number above 0"),
        ("workload.limit=0", f"workload.limit = 0: {POSITIVE}"),
        (
            "workload.rate_scale=0",
            "workload.rate_scale = 0: give a number of at least 1e-06 and of at most 1e+09",
        ),
        ("workload.rate_per_s=8", "workload.rate_per_s = 8: a trace has no use for it; leave it out"),
        ("workload.over_length=keep", 'workload.over_length = "keep": give one of cut, reject'),
        (
            "workload.max_tokens=all",
            "workload.max_tokens = 'all': give 'trace', 'output', 'model', a whole number of at least 1, or 'x' and a "
            "factor such as 'x1.5'",
        ),
    ],
)
def test_values(setting: str, expected: str) -> None:
    assert message_of("run", *TRACE, *settings(setting)) == expected


@pytest.mark.parametrize(
    ("policy", "setting", "expected"),
    [
        ("vllm-0.6", "engine.watermark=1", "engine.watermark = 1: give a number of at least 0 and below 1"),
        (
            "vllm-0.6",
            "engine.max_num_batched_tokens=1000",
            "engine.max_num_batched_tokens = 1000: without chunked prefill vLLM wants at least max_model_len = 4096; "
            "raise it, lower engine.max_model_len, or set engine.enable_chunked_prefill = true",
        ),
        (
            "vllm-0.6-swap",
            "engine.swap_space_bytes=-1",
            "engine.swap_space_bytes = -1: give a whole number of at least 0 and of at most 4398046511104",
        ),
        (
            "ft-static",
            "engine.num_gpu_blocks=255",
            "engine.num_gpu_blocks = 255: the KV pool holds less than one slot of 4096 tokens, so no request at all "
            "can be served; give more blocks, a larger card, or a smaller engine.max_model_len",
        ),
        (
            "orca-max",
            "engine.watermark=0.1",
            "engine.watermark = 0.1: preset orca-max has no such parameter, leave it out; "
            f"presets that have it: {having('watermark')}",
        ),
    ],
)
def test_values_of_other_presets(policy: str, setting: str, expected: str) -> None:
    assert message_of("run", *TRACE, "--policy", policy, *settings(setting)) == expected


def test_faithful_engines_that_refuse_to_start() -> None:
    for policy in ("vllm-0.11", "vllm-0.6"):
        few = settings(engine__faithful=True, engine__num_gpu_blocks=200)
        assert message_of("run", *TRACE, "--policy", policy, *few) == (
            "engine.max_model_len = 4096: vLLM refuses to start with a KV pool of 3200 tokens (200 blocks); "
            "lower it or raise engine.num_gpu_blocks"
        )


def test_weights_that_leave_no_room_are_named_before_a_missing_cost_file() -> None:
    assert message_of("run", *TRACE, "--model", "llama-2-70b") == (
        "llama-2-70b on a100-80gb leaves no room for KV blocks: 0.9 x 85.9 GB memory - 138.0 GB weights - 0.7 GB "
        "activations - 1.5 GB reserve = -62.8 GB, where a block takes 5.2 MB; choose a larger card or a smaller "
        "model, split it with hardware.tp, or raise engine.gpu_memory_utilization"
    )
    assert message_of("run", *TRACE, "--model", "llama-2-70b", *settings(engine__num_gpu_blocks=9)) == (
        "the weights of llama-2-70b, 138.0 GB, exceed the 85.9 GB of a100-80gb; choose a larger card or a smaller "
        "model, or split it with hardware.tp"
    )


# -- sources that lack something -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), "workload: nothing to send; give a trace (--trace FILE), a profile (--profile NAME) or a generator"),
        (
            ("workload.generator=poison",),
            'workload.generator = "poison": give one of poisson, gamma, constant, closed-loop; '
            "did you mean 'poisson'?",
        ),
        (
            ("workload.generator=poisson", "workload.trace=own.csv"),
            "workload: trace and generator are both given; leave one out",
        ),
        (
            ("workload.generator=poisson",),
            "workload.rate_per_s is missing: generator = 'poisson' needs it",
        ),
        (
            ("workload.generator=gamma", "workload.rate_per_s=1", "workload.cv=1e-200"),
            "workload.cv = 1e-200: give a number of at least 0.001 and of at most 1e+06",
        ),
        (
            ("workload.generator=closed-loop", "workload.think_time_s=1e300"),
            "workload.think_time_s = 1e+300: give a number of at least 0 and of at most 1e+09",
        ),
        (
            ("workload.generator=poisson", "workload.prompt=100"),
            'workload.prompt = 100: give a table like {dist = "uniform", low = 50, high = 200}',
        ),
        (
            ("workload.generator=poisson", 'workload.prompt={dist="unifrom",low=1,high=2}'),
            "workload.prompt.dist = 'unifrom': unknown; known are fixed, uniform, exponential, lognormal; "
            "did you mean 'uniform'?",
        ),
        (
            ("workload.generator=poisson", 'workload.prompt={dist="uniform",low=1}'),
            "workload.prompt (dist = 'uniform'): 'high' is missing; add high = ...",
        ),
        (
            ("workload.generator=poisson", 'workload.prompt={dist="uniform",low=9,high=3}'),
            "workload.prompt: low = 9 is above high = 3; swap them",
        ),
    ],
)
def test_sources(keys: tuple[str, ...], expected: str) -> None:
    assert message_of("run", *settings(*keys)) == expected
