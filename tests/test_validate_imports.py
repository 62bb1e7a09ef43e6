"""Results of other tools become requests with our definitions of their times, and are compared with simulations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrate.validation.recorded import Host, compare_run
from calibrate.validation.run_text import run_lines
from policies.core.errors import TraceError
from sim.api import Setup, prepare, run_setup
from sim.config import config_from_tables
from sim.costs.load import shipped_path
from sim.costs.terms import HostTerm
from tests.command import batchscope
from traces.imports.readers import FORMATS, read_served
from traces.imports.served import Served, ServedRequest

TABLES: dict[str, dict[str, object]] = {
    "engine": {"preset": "vllm-0.11", "max_model_len": 2048},
    "model": {"name": "llama-2-7b"},
    "hardware": {"name": "a100-80gb"},
}


def vllm_bench(path: Path, **changes: Any) -> Path:
    """Two answered requests and one that failed, as ``vllm bench serve --save-detailed`` writes them."""
    content = {
        "request_rate": "inf",
        "max_concurrency": 2,
        "input_lens": [100, 50, 70],
        "output_lens": [3, 1, 0],
        "ttfts": [0.5, 0.2, 0.0],
        "itls": [[0.1, 0.3], [], []],
        "errors": ["", "", "refused"],
        "start_times": [1000.0, 1000.25, 1001.0],
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def guidellm(path: Path, benchmarks: int = 1) -> Path:
    """The same two, as guidellm writes them."""
    first: dict[str, Any] = {"prompt_tokens": 100, "output_tokens": 3, "request_start_time": 1000.0}
    first |= {"request_end_time": 1000.9, "time_to_first_token_ms": 500.0, "inter_token_latency_ms": 200.0}
    second = {**first, "prompt_tokens": 50, "output_tokens": 1, "request_start_time": 1000.25}
    second |= {"time_to_first_token_ms": 200.0, "inter_token_latency_ms": None, "request_end_time": 1000.45}
    part = {"requests": {"successful": [second, first], "errored": [{}], "incomplete": []}}
    path.write_text(json.dumps({"benchmarks": [part] * benchmarks}))
    return path


def aiperf(path: Path) -> Path:
    """The same two and a failure, after a warm-up, as aiperf writes them."""

    def line(start_s: float, ttft_ms: float, latency_ms: float, prompt: int, output: int, **more: Any) -> str:
        start_ns = round(start_s * 1e9)
        metadata = {"request_start_ns": start_ns, "request_end_ns": start_ns + round(latency_ms * 1e6)}
        values = {
            "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
            "request_latency": {"value": latency_ms, "unit": "ms"},
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        }
        phase = {"benchmark_phase": more.pop("phase", "profiling")}
        return json.dumps({"metadata": {**metadata, **phase}, "metrics": values, "error": None, **more})

    rows = [
        line(900.0, 1.0, 2.0, 9, 9, phase="warmup"),
        line(1000.25, 200.0, 200.0, 50, 1),
        line(1000.0, 500.0, 900.0, 100, 3),
        line(1001.0, 0.0, 0.0, 70, 1, error={"code": 500}),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def llmservingsim(path: Path) -> Path:
    """The same two, as LLMServingSim records them."""
    path.write_text(
        "request_id,input_toks,output_toks,arrival_s,queued_s,scheduled_s,first_token_s,last_token_s\n"
        "b-0,100,3,5.0,5.01,5.02,5.5,5.9\n"
        "b-1,50,1,5.25,5.26,5.3,5.45,5.45\n"
    )
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "vllm-bench": vllm_bench,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "llmservingsim": llmservingsim,
}


@pytest.mark.parametrize("kind", FORMATS)
def test_all_formats_give_the_same_requests(tmp_path: Path, kind: str) -> None:
    served = read_served(WRITERS[kind](tmp_path / "result"), kind)
    first, second = served.requests
    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens, second.output_tokens) == (100, 3, 50, 1)
    assert [first.sent_s, second.sent_s] == pytest.approx([0.0, 0.25], abs=1e-6)
    assert [first.ttft_s, first.e2e_s] == pytest.approx([0.5, 0.9])
    assert [second.ttft_s, second.e2e_s] == pytest.approx([0.2, 0.2])
    assert first.tpot_s == pytest.approx(0.2)
    assert second.tpot_s is None
    assert served.failed == (0 if kind == "llmservingsim" else 1)
    assert served.side == ("server" if kind == "llmservingsim" else "client")


def test_a_report_of_several_benchmarks_asks_which(tmp_path: Path) -> None:
    path = guidellm(tmp_path / "report.json", benchmarks=3)
    with pytest.raises(TraceError, match="holds 3 benchmarks; choose one with --part"):
        read_served(path, "guidellm")
    assert len(read_served(path, "guidellm", 2).requests) == 2
    with pytest.raises(TraceError, match="--part 4"):
        read_served(path, "guidellm", 4)


def test_without_times_of_sending_the_clients_are_those_of_the_tool(tmp_path: Path) -> None:
    served = read_served(vllm_bench(tmp_path / "r.json", start_times=None), "vllm-bench")
    assert not served.has_times
    assert (served.rate_per_s, served.concurrency) == (None, 2)
    assert served.notices


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("vllm-bench", "{", "not JSON"),
        ("vllm-bench", "{}", "'input_lens' is missing or no list"),
        ("vllm-bench", '{"input_lens": [1], "output_lens": [1], "ttfts": [], "itls": []}', "'input_lens' has 1"),
        ("vllm-bench", '{"input_lens": [1], "output_lens": [2], "ttfts": ["x"], "itls": [[]]}', "'ttfts' is 'x'"),
        ("vllm-bench", '{"input_lens": [1], "output_lens": [2], "ttfts": [1], "itls": [["x"]]}', "'itls[0]' is 'x'"),
        ("vllm-bench", '{"input_lens": [], "output_lens": [], "ttfts": [], "itls": []}', "no request in it"),
        ("guidellm", '{"benchmarks": [{"requests": {"successful": [{}]}}]}', "'output_tokens' is missing"),
        ("aiperf", '{"metadata": {}}', "metrics: not an object"),
        ("llmservingsim", "queued_s,first_token_s\n1,2\n", "row 2: 'output_toks' is missing"),
        ("nothing", "", "use one of vllm-bench"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, kind: str, content: str, said: str) -> None:
    path = tmp_path / "result"
    path.write_text(content)
    with pytest.raises(TraceError) as caught:
        read_served(path, kind)
    assert said in str(caught.value)


def recorded(folder: Path, host: Host, requests: int = 60) -> Served:
    """What a client would see of a server whose host takes that long: a simulation taken for a measurement."""
    config = config_from_tables({**TABLES, "workload": {"trace": str(sent(folder, requests))}})
    costs = prepare(config).costs
    costs.host = HostTerm(host.base_s, host.per_seq_s)
    return served_by(prepare(config, costs=costs), host.request_s)


def sent(folder: Path, requests: int) -> Path:
    """A trace."""
    lines = [f"{0.11 * i},{200 + 13 * (i % 17)},{20 + 7 * (i % 11)}" for i in range(requests)]
    trace = folder / "trace.csv"
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return trace


def served_by(setup: Setup, request_s: float = 0.0) -> Served:
    """A simulation taken for a measurement; so long lies between client and engine."""
    rows = run_setup(setup, keep=True).requests.sort_values("id")
    return Served("test", [_served(row, request_s) for row in rows.itertuples()], 0, "client", has_times=True)


def _served(row: Any, request_s: float) -> ServedRequest:
    ttft_s, e2e_s = (end_s - row.arrival_s + request_s for end_s in (row.first_token_s, row.finish_s))
    return ServedRequest(row.arrival_s, row.prompt_tokens, row.output_tokens, ttft_s, e2e_s)


def test_the_host_time_of_a_run_is_found_again(tmp_path: Path) -> None:
    """Of a run that was simulated with a known host time, the fit gives that time back, and no error is left."""
    truth = Host(1.2e-3, 0.03e-3, 0.04)
    served = recorded(tmp_path, truth)
    plain, fitted = (compare_run(served, TABLES, fit_host=fit) for fit in (False, True))
    assert max(abs(line.error) for line in plain.lines) > 0.05
    assert max(abs(line.error) for line in fitted.lines) < 0.02
    assert fitted.host.base_s == pytest.approx(truth.base_s, rel=0.2)
    assert fitted.host.request_s == pytest.approx(truth.request_s, rel=0.1)


def test_what_a_cost_file_says_of_steps_that_prefill_is_the_hosts_time_of_these_steps(tmp_path: Path) -> None:
    data = json.loads(shipped_path("llama-2-7b", "a100-80gb", 1).read_text())
    data["terms"]["host"] = {"base_s": 1.2e-3, "per_seq_s": 0.03e-3, "prefill_s": 0.05}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(data))
    tables: dict[str, dict[str, object]] = {**TABLES, "hardware": {"name": "a100-80gb", "cost_model": str(path)}}
    served = served_by(prepare(config_from_tables({**tables, "workload": {"trace": str(sent(tmp_path, 60))}})))
    found = compare_run(served, tables, fit_host=False)
    assert found.host == Host(1.2e-3, 0.03e-3)
    assert max(abs(line.error) for line in found.lines) < 1e-6


def test_the_command_compares_a_result_with_its_simulation(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[model]\nname = "llama-2-7b"\n[hardware]\nname = "a100-80gb"\n')
    result = vllm_bench(tmp_path / "bench.json")
    found = batchscope("calibrate", "validate", "--run", result, "--format", "vllm-bench", "--config", config)
    assert found.exit_code == 0, found.stderr
    assert "vllm bench: 2 requests, client side; 1 more failed or had no answer" in found.stdout
    assert "ttft_p99" in found.stdout



@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start_times": [1000.0, None, 1001.0]}, "request 1: 'start_times' is missing"),
        ({"start_times": [1000.0, "soon", 1001.0]}, "request 1: 'start_times' is 'soon'"),
        ({"start_times": [1000.0, float("nan"), 1001.0]}, "request 1: 'start_times' is nan"),
        ({"start_times": [1000.0]}, "'start_times' has 1 entries, 'ttfts' 3"),
        ({"itls": [[0.1, float("nan")], [], []]}, "request 0: 'itls[1]' is nan"),
        ({"itls": [[0.1, -0.3], [], []]}, "request 0: 'itls[1]' is -0.3"),
        ({"errors": "refused"}, "'errors' is missing or no list"),
        ({"ttfts": [0.5, 0.0, 0.0]}, "request 1: its first token comes 0 s after sending"),
        ({"duration": 0.5}, "request 0: takes 0.9 s, more than the run"),
    ],
)
def test_times_that_no_run_has_are_refused_by_request(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError, match=re.escape(said)):
        read_served(vllm_bench(tmp_path / "bench.json", **changes), "vllm-bench")


def test_clocks_that_go_backwards_are_refused_in_every_format(tmp_path: Path) -> None:
    report = json.loads(guidellm(tmp_path / "guidellm.json").read_text())
    row = report["benchmarks"][0]["requests"]["successful"][0]
    row |= {"request_end_time": 900.0, "inter_token_latency_ms": None}
    (tmp_path / "guidellm.json").write_text(json.dumps(report))
    lines = aiperf(tmp_path / "aiperf.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    record["metadata"]["request_end_ns"] = 0
    del record["metrics"]["request_latency"]
    (tmp_path / "aiperf.jsonl").write_text(json.dumps(record))
    (tmp_path / "server.csv").write_text(
        "input_toks,output_toks,arrival_s,first_token_s,last_token_s\n9,9,5.0,6.0,7.0\n9,9,5.0,4.0,7.0\n"
    )
    for name, kind, said in (
        ("guidellm.json", "guidellm", "successful 0: ends -100.25 s"),
        ("aiperf.jsonl", "aiperf", "line 1: ends -"),
        ("server.csv", "llmservingsim", "row 3: its first token comes -1 s"),
    ):
        with pytest.raises(TraceError, match=re.escape(said)):
            read_served(tmp_path / name, kind)


def test_answers_without_tokens_count_as_failed_in_every_format(tmp_path: Path) -> None:
    report = json.loads(guidellm(tmp_path / "guidellm.json").read_text())
    report["benchmarks"][0]["requests"]["successful"][0]["output_tokens"] = 0
    (tmp_path / "guidellm.json").write_text(json.dumps(report))
    lines = aiperf(tmp_path / "aiperf.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    record["metrics"]["output_sequence_length"]["value"] = 0
    (tmp_path / "aiperf.jsonl").write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]))
    found = [read_served(tmp_path / "guidellm.json", "guidellm"), read_served(tmp_path / "aiperf.jsonl", "aiperf")]
    assert [(len(served.requests), served.failed) for served in found] == [(1, 2), (1, 2)]


def test_requests_that_the_simulation_refuses_and_fits_to_few_are_said(tmp_path: Path) -> None:
    path = vllm_bench(tmp_path / "bench.json", input_lens=[100, 50_000, 70])
    served = read_served(path, "vllm-bench")
    text = "\n".join(run_lines(served, compare_run(served, TABLES, fit_host=True)))
    assert "1 of these do not finish in the simulation (1 are refused)" in text
    assert "fitted to 2 requests: too few" in text
