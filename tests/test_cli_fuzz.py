"""Whatever a user puts into a file or a key, ``run`` either works or ends in one line; it never shows a traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import EngineConfig, HardwareConfig, ModelConfig, SimConfig, SloConfig, WorkloadConfig
from sim.config_keys import Section
from tests.command import OWN, TRACE, Ended, batchscope, settings

SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadConfig,
    "engine": EngineConfig,
    "model": ModelConfig,
    "hardware": HardwareConfig,
    "sim": SimConfig,
    "slo": SloConfig,
}
ODD = (
    *("nan", "-1", "0", "1", "3", "0.5", "1e308", "1e-320", "{}", "[1]", "true", "x2", '"a\\nb"'),
    *("99999999999999999999", "2020-01-01", "swap", '{dist="fixed",value=3}'),
)
GENERATED = {
    **{"workload.generator": "poisson", "workload.rate_per_s": "5", "workload.num_requests": "3"},
    **{"workload.prompt": '{dist="fixed",value=3}', "workload.output": '{dist="fixed",value=3}'},
}
OWN_JSON = (
    '{"arrival_s": 0, "prompt_tokens": 10, "output_tokens": 5, "segments": [["a", 4], ["b", 6]]}\n'
    '{"arrival_s": 1, "prompt_tokens": 10, "output_tokens": 5, "parent_id": 0, "client_id": "c"}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99,3,9\n"
PIECES = (
    *("", ",", "\n", '"', "0", "-1", "nan", "inf", "1e5", "1.0", "9" * 30, "\x00", "\ufeff", "\r", "é", "\u2028"),
    *("{", "}", "[", "]", ":", "|", "null", "true", "out:", " ", "2023-"),
)


def works_or_says_why(ended: Ended, what: object) -> None:
    assert ended.exit_code in (0, 2), what
    if ended.exit_code == 2:
        assert ended.stderr.startswith("batchscope: "), what
        assert ended.stderr.count("\n") == 1, (what, ended.stderr)
    else:
        assert ended.stderr == "", what


@pytest.mark.parametrize("section", SECTIONS)
def test_any_value_of_any_key(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)
    for name in SECTIONS[section]._keys:
        key = f"{section}.{name}"
        generated = settings(*(f"{other}={value}" for other, value in GENERATED.items() if other != key))
        for value in ODD:
            for source in (TRACE, generated) if section == "workload" else (TRACE,):
                works_or_says_why(batchscope("run", *source, "--json", *settings(f"{key}={value}")), (key, value))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A trace with a few pieces put in, some of them in place of others."""
    text = draw(st.sampled_from((OWN, OWN_JSON, AZURE)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.sampled_from((0, 0, 1, 2, 5, 20))))
        text = text[:start] + draw(st.sampled_from(PIECES)) + text[stop:]
    raw = text.encode()
    raw = gzip.compress(raw, mtime=0) if draw(st.integers(0, 9)) == 0 else raw
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


@given(content=damaged())
def test_any_damage_to_a_trace(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    trace = tmp_path_factory.mktemp("damaged") / "trace"
    trace.write_bytes(content)
    works_or_says_why(batchscope("run", "--trace", trace, "--json", *settings(sim__max_time_s=1_000)), content)
