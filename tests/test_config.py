"""RUN.toml, flags and overrides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from sim.config import (
    EngineConfig,
    HardwareConfig,
    ModelConfig,
    RunConfig,
    SimConfig,
    SloConfig,
    WorkloadConfig,
    config_from_tables,
    load_config,
)
from sim.config_policy import PolicyConfig
from sim.config_price import PriceConfig
from traces.workload.lengths import Exponential, Fixed, Uniform

POISSON = """\
[workload]
generator = "poisson"
rate_per_s = 8
num_requests = 5000
prompt = {dist = "uniform", low = 50, high = 200}

[workload.output]
dist = "uniform"
low = 100
high = 500

[engine]
max_num_seqs = 64

[slo]
ttft_s = 0.5
"""


@pytest.fixture
def run_toml(tmp_path: Path) -> str:
    path = tmp_path / "RUN.toml"
    path.write_text(POISSON)
    return str(path)


def test_a_file(run_toml: str) -> None:
    assert load_config(run_toml) == RunConfig(
        WorkloadConfig(
            generator="poisson",
            rate_per_s=8,
            num_requests=5000,
            prompt=Uniform(50, 200),
            output=Uniform(100, 500),
        ),
        EngineConfig(max_num_seqs=64),
        slo=SloConfig(ttft_s=0.5),
    )


def test_defaults() -> None:
    config = load_config(trace="azure.csv")
    assert config == RunConfig(WorkloadConfig(trace="azure.csv"))
    assert config.to_dict() == {
        "workload": {
            "trace": "azure.csv",
            "rate_scale": 1.0,
            "think_time_s": 0.0,
            "over_length": "cut",
            "seed": 0,
        },
        "engine": {"preset": "vllm-0.11", "faithful": False},
        "model": {"name": "llama-2-7b", "weight_bits": 16, "kv_bits": 16},
        "hardware": {
            "name": "a100-80gb", "tp": 1, "all_reduce": "nccl", "host_term": True, "swap_layout": "layers"
        },
        "sim": {"record": "requests"},
        "slo": {},
    }


def test_flags_stand_over_the_file_and_overrides_over_both(run_toml: str) -> None:
    config = load_config(
        run_toml,
        ["model.name=opt-13b", "engine.max_num_seqs=8", "workload.output.high=900", "sim.skip_ahead=false"],
        model="llama-2-13b",
        hardware="h100",
        policy=None,
        limit=10,
    )
    assert config.model.name == "opt-13b"
    assert config.hardware.name == "h100"
    assert config.engine == EngineConfig(max_num_seqs=8)
    assert config.workload.output == Uniform(100, 900)
    assert config.workload.limit == 10
    assert not config.sim.skip_ahead


def test_another_law_starts_afresh(run_toml: str) -> None:
    config = load_config(run_toml, ["workload.output.dist=exponential", "workload.output.mean=128.5"])
    assert config.workload.output == Exponential(128.5)
    assert load_config(run_toml, ['workload.prompt={dist="fixed", value=7}']).workload.prompt == Fixed(7)


def test_a_trace_takes_the_place_of_the_files_generator_and_back(run_toml: str, tmp_path: Path) -> None:
    assert load_config(run_toml, trace="a.csv").workload == WorkloadConfig(trace="a.csv")
    path = tmp_path / "trace.toml"
    path.write_text('[workload]\ntrace = "a.csv"\nseed = 3\n')
    laws = ["workload.prompt.dist=fixed", "workload.prompt.value=5", "workload.output.dist=fixed"]
    numbers = ["workload.output.value=6", "workload.num_requests=7", "workload.concurrency=2"]
    config = load_config(str(path), ["workload.generator=closed-loop", *laws, *numbers])
    assert config.workload == WorkloadConfig(
        generator="closed-loop", prompt=Fixed(5), output=Fixed(6), num_requests=7, concurrency=2, seed=3
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("a b.csv", "a b.csv"), ('"3"', "3"), ("'x=y'", "x=y"), ("x=y", "x=y"), ("/tmp/a.csv", "/tmp/a.csv")],
)
def test_bare_words_are_texts(text: str, value: str) -> None:
    assert load_config(None, [f"workload.trace={text}"]).workload.trace == value


def said(overrides: list[str], **flags: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(None, overrides, None, **flags)
    assert "\n" not in str(error.value)
    return str(error.value)


POSITIVE = "give a whole number of at least 1"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "worklod.limit=3",
            "worklod: unknown section; known are workload, engine, model, hardware, sim, slo, policy, price; "
            "did you mean 'workload'?",
        ),
        ("engine.max_num_seq=3", "engine.max_num_seq: unknown key; 'batchscope keys engine' lists all; "
         "did you mean 'max_num_seqs'?"),
        (
            "model.nam=x",
            "model.nam: unknown key; known are name, config, weight_bits, kv_bits; did you mean 'name'?",
        ),
        (
            "hardware.pp=2",
            "hardware.pp: pipeline stages are not simulated yet; leave it out, or split the model with hardware.tp",
        ),
        ("engine=3", "--set engine=3: write section.key=value, for example engine.max_num_seqs=64"),
        (
            "engine.faithful",
            "--set engine.faithful: write section.key=value, for example engine.max_num_seqs=64",
        ),
        (
            "engine.preset=",
            "--set engine.preset=: write section.key=value, for example engine.max_num_seqs=64",
        ),
        (
            "workload.prompt={dist=uniform}",
            "--set workload.prompt={dist=uniform}: the value is no TOML; "
            'quote each text within it, as in {dist = "fixed", value = 8}',
        ),
        ("engine.preset=3", "engine.preset = 3: give a text"),
        ("engine.faithful=yes", 'engine.faithful = "yes": give true or false'),
        ("engine.max_num_seqs=0", f"engine.max_num_seqs = 0: {POSITIVE}"),
        ("engine.max_num_seqs=true", f"engine.max_num_seqs = true: {POSITIVE}"),
        ("engine.max_num_seqs=2.5", f"engine.max_num_seqs = 2.5: {POSITIVE}"),
        ("engine.block_size.x=3", f"engine.block_size = {{x = 3}}: {POSITIVE}"),
        (
            "engine.swap_space_bytes=-1",
            "engine.swap_space_bytes = -1: give a whole number of at least 0 and of at most 4398046511104",
        ),
        (
            "engine.gpu_memory_utilization=1.5",
            "engine.gpu_memory_utilization = 1.5: give a number above 0 and of at most 1",
        ),
        ("engine.watermark=1.0", "engine.watermark = 1.0: give a number of at least 0 and below 1"),
        (
            "engine.preemption_mode=swop",
            "engine.preemption_mode = \"swop\": give one of recompute, swap, auto; did you mean 'swap'?",
        ),
        (
            "sim.record=request",
            'sim.record = "request": give one of requests, steps, tokens, decisions; '
            "did you mean 'requests'?",
        ),
        ("sim.max_time_s=nan", "sim.max_time_s = nan: give a number above 0"),
        ("sim.max_time_s=inf", "sim.max_time_s = inf: give a number above 0"),
        ("slo.ttft_s=0", "slo.ttft_s = 0: give a number above 0"),
        ("workload.rate_scale=-2", "workload.rate_scale = -2: give a number of at least 1e-06 and of at most 1e+09"),
        ("workload.concurrency=0", f"workload.concurrency = 0: {POSITIVE}"),
        ("workload.seed=-1", "workload.seed = -1: give a whole number of at least 0"),
        ("sim.seed=3", "sim.seed: unknown key; known are skip_ahead, record, max_time_s"),
        (
            "workload.num_requests=5",
            "workload.num_requests = 5: a trace has no use for it; leave it out; "
            "to replay the first rows: workload.limit = 5",
        ),
        ("workload.cv=2", "workload.cv = 2: a trace has no use for it; leave it out"),
        ("workload.think_time_s=2", "workload.think_time_s = 2: a trace has no use for it; leave it out"),
        (
            "workload.prompt={dist='fixed', value=3}",
            'workload.prompt = {dist = "fixed", value = 3}: a trace has no use for it; leave it out',
        ),
        (
            "workload.max_tokens=all",
            "workload.max_tokens = 'all': give 'trace', 'output', 'model', a whole number of at least 1, "
            "or 'x' and a factor such as 'x1.5'",
        ),
    ],
)
def test_bad_overrides(override: str, expected: str) -> None:
    assert said([override], trace="a.csv") == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"generator": None},
            "workload: nothing to send; give a trace (--trace FILE), a profile (--profile NAME) or a generator",
        ),
        ({"trace": "a.csv"}, "workload: trace and generator are both given; leave one out"),
        (
            {"generator": "poison"},
            'workload.generator = "poison": give one of poisson, gamma, constant, closed-loop; '
            "did you mean 'poisson'?",
        ),
        ({"rate_per_s": -1}, "workload.rate_per_s = -1: give a number of at least 1e-06 and of at most 1e+09"),
        ({"rate_per_s": None}, "workload.rate_per_s is missing: generator = 'poisson' needs it"),
        ({"num_requests": None}, "workload.num_requests is missing: generator = 'poisson' needs it"),
        ({"prompt": None}, "workload.prompt is missing: generator = 'poisson' needs it"),
        ({"output": 5}, 'workload.output = 5: give a table like {dist = "uniform", low = 50, high = 200}'),
        ({"generator": "gamma"}, "workload.cv is missing: generator = 'gamma' needs it"),
        (
            {"concurrency": 4},
            "workload.concurrency = 4: generator = 'poisson' has no use for it; leave it out",
        ),
        (
            {"generator": "closed-loop"},
            "workload.concurrency is missing: generator = 'closed-loop' needs it",
        ),
        (
            {"generator": "closed-loop", "concurrency": 4},
            "workload.rate_per_s = 8: generator = 'closed-loop' has no use for it; leave it out",
        ),
    ],
)
def test_a_source_needs_what_it_needs_and_no_more(changes: dict[str, Any], expected: str) -> None:
    base: dict[str, Any] = {
        "generator": "poisson",
        "rate_per_s": 8,
        "num_requests": 10,
        "prompt": Fixed(3),
        "output": Fixed(3),
    }
    with pytest.raises(ConfigError) as error:
        WorkloadConfig(**(base | changes))
    assert str(error.value) == expected


@pytest.mark.parametrize(("word", "key"), [("rate", "rate_per_s"), ("qps", "rate_per_s"), ("seeds", "seed")])
def test_words_that_people_try(word: str, key: str) -> None:
    message = said([f"workload.{word}=3"], trace="a.csv")
    assert message.startswith(f"workload.{word}: unknown key; known are trace, profile, generator, ")
    assert message.endswith(f"; did you mean '{key}'?")


def test_the_pool_has_one_size() -> None:
    assert said(["engine.num_gpu_blocks=100", "engine.gpu_memory_utilization=0.5"], trace="a.csv") == (
        "engine: num_gpu_blocks and gpu_memory_utilization both set the size of the KV pool; leave one out"
    )


def test_tables_in_place_of_a_file(run_toml: str) -> None:
    import tomllib

    tables = tomllib.loads(POISSON)
    assert load_config(tables, ["engine.max_num_seqs=8"]) == load_config(run_toml, ["engine.max_num_seqs=8"])
    assert load_config(tables, trace="a.csv").workload == WorkloadConfig(trace="a.csv")
    assert tables == tomllib.loads(POISSON)


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [
        ("rate_per_s", "rate_per_s: unknown keyword; give overrides=['workload.rate_per_s=VALUE']"),
        ("modell", "modell: unknown keyword; known are trace, profile, limit, preset, policy, vllm_args, model, "
         "hardware, cost_model, record, max_time_s; did you mean 'model'?"),
    ],
)  # fmt: skip
def test_an_unknown_keyword(keyword: str, expected: str) -> None:
    assert said([], **{keyword: 3}) == expected


def test_a_source_that_is_replaced_is_named(run_toml: str) -> None:
    remarks: list[str] = []
    load_config(run_toml, ["engine.max_num_seqs=8"], remarks)
    assert remarks == []
    load_config(run_toml, [], remarks, trace="a.csv")
    load_config({"workload": {"trace": "a.csv"}}, [*_GENERATED, "workload.rate_per_s=1"], remarks)
    assert remarks == [
        "the trace takes the place of the workload's generator, rate_per_s, num_requests, prompt, output",
        "the generator takes the place of workload.trace = a.csv",
    ]


_GENERATED = [
    *("workload.generator=poisson", "workload.num_requests=5"),
    *('workload.prompt={dist="fixed",value=5}', 'workload.output={dist="fixed",value=5}'),
]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe", ": not a text file in UTF-8; give a RUN.toml"),
        (None, ": cannot be read (No such file or directory); give the path of a RUN.toml"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "RUN.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(str(path))
    assert str(error.value) == f"{path}{expected}"


def test_bad_toml_says_where(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text("[workload]\nlimit = three\n")
    with pytest.raises(ConfigError) as error:
        load_config(str(path))
    # What stands between is the parser's and differs between Python versions.
    assert str(error.value).startswith(f"{path}: not valid TOML: ")
    assert str(error.value).endswith("(at line 2, column 9); mend it")


def test_a_section_that_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text("workload = 3\n")
    with pytest.raises(ConfigError) as error:
        load_config(str(path))
    assert str(error.value) == ("workload = 3: this is a table; write [workload] or --set workload.KEY=VALUE")


def test_sections_are_frozen_and_replaced_with_checks() -> None:
    engine = EngineConfig(block_size=16)
    with pytest.raises(AttributeError) as error:
        engine.block_size = 32  # type: ignore[misc]
    assert str(error.value) == "EngineConfig is frozen; use replace(block_size=...)"
    assert engine.replace(block_size=32) == EngineConfig(block_size=32)
    assert hash(engine) == hash(EngineConfig(block_size=16))
    assert engine != EngineConfig()
    assert repr(engine) == "EngineConfig(block_size=16)"
    with pytest.raises(ConfigError, match=r"^engine\.block_size = 0: "):
        engine.replace(block_size=0)


_positive = st.floats(1e-3, 1e6) | st.integers(1, 1000)
_counts = st.integers(1, 10**6)
_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda text: bool(text.strip())
)
_laws = st.one_of(
    st.builds(Fixed, _counts),
    st.builds(lambda low, more: Uniform(low, low + more), _counts, st.integers(0, 99)),
    st.builds(Exponential, _positive, st.none() | _counts),
)
_rules = st.sampled_from([None, "trace", "output", "model", "x1.5", 64])


def _configs() -> st.SearchStrategy[RunConfig]:
    common = {"limit": st.none() | _counts, "max_tokens": _rules, "seed": st.integers(0, 2**70)}
    generated = {"prompt": _laws, "output": _laws, "num_requests": _counts, "rate_per_s": _positive}
    workloads = st.one_of(
        st.builds(WorkloadConfig, trace=_texts, rate_scale=_positive, **common),
        st.builds(WorkloadConfig, generator=st.just("gamma"), cv=_positive, **generated, **common),
    )
    engines = st.builds(
        EngineConfig,
        preset=_texts,
        policy=st.none() | _texts,
        faithful=st.booleans(),
        watermark=st.none() | st.floats(0, 0.99),
        preemption_mode=st.sampled_from([None, "swap", "auto"]),
        enable_prefix_caching=st.none() | st.booleans(),
    )
    sims = st.builds(SimConfig, skip_ahead=st.none() | st.booleans(), max_time_s=st.none() | _positive)
    slos = st.builds(SloConfig, itl_s=st.none() | _positive)
    models, cards = st.builds(ModelConfig, name=_texts), st.builds(HardwareConfig, cost_model=_texts)
    parameters = st.dictionaries(st.sampled_from(["alpha", "beta"]), st.booleans() | st.integers() | _positive | _texts)
    own = parameters.map(lambda values: PolicyConfig(**values))
    prices = st.dictionaries(st.sampled_from(["a100-80gb", "h100-80gb"]), st.floats(0.01, 100.0))
    priced = prices.map(lambda values: PriceConfig(**values))
    return st.builds(RunConfig, workloads, engines, models, cards, sims, slos, own, priced)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=_configs())
def test_round_trip_through_toml_and_tables(tmp_path: Path, config: RunConfig) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(config.to_toml(), encoding="utf-8", newline="")
    assert load_config(str(path)) == config
    assert config_from_tables(config.to_dict()) == config


def test_importing_the_configuration_is_light() -> None:
    code = "import sys, sim.config; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"dataclasses", "inspect", "numpy", "tomllib", "json", "csv", "pathlib"} & set(loaded)
