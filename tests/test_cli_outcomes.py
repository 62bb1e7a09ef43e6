"""What becomes of requests that do not fit, engines that die or hang, and runs that are interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import OWN, TRACE, batchscope, chat, own_csv, settings
from traces.record.read import read_run

PAGED = ("vllm-0.11", "vllm-0.6", "vllm-0.6-chunked", "vllm-0.6-swap", "orca-oracle", "orca-pow2")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)


# -- files that are not quite as they should be --------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "notices"),
    [
        (OWN.replace("\n", "\r\n").encode(), ["CRLF line ends"]),
        (b"\xef\xbb\xbf" + OWN.encode(), ["byte order mark ignored"]),
        (own_csv((1, 20, 6), (0, 10, 5)).encode(), ["rows were not in order of arrival: sorted"]),
        (own_csv((0, 1, 2, 3), columns="arrival_s,prompt_tokens,output_tokens,max_token").encode(), [
            "column 'max_token' is not used; did you mean 'max_tokens'?",
        ]),
        (
            b"\xef\xbb\xbf" + own_csv((1, 20, 6), (0, 10, 5)).replace("\n", "\r\n").encode(),
            ["byte order mark ignored", "CRLF line ends", "rows were not in order of arrival: sorted"],
        ),
    ],
)  # fmt: skip
def test_accepted_and_said(content: bytes, notices: list[str]) -> None:
    Path("own.csv").write_bytes(content)
    ended = batchscope("run", *TRACE, "--json")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.summary["notes"][: len(notices)] == notices
    assert len(ended.summary["notes"]) == len(notices)
    table = batchscope("run", *TRACE).stdout
    assert all(f"note: {notice}\n" in table for notice in notices)


def test_an_unsorted_file_gives_what_a_sorted_one_gives() -> None:
    sorted_, unsorted = batchscope("run", *TRACE, "--json").summary, own_csv((1, 20, 6), (0, 10, 5))
    Path("own.csv").write_text(unsorted)
    again = batchscope("run", *TRACE, "--json").summary
    for summary in (sorted_, again):
        del summary["wall"], summary["config"]["trace_sha256"]
    assert again.pop("notes") != sorted_.pop("notes", [])
    assert again == sorted_


# -- requests that do not fit --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PAGED)
def test_what_model_and_pool_cannot_take_is_counted(policy: str) -> None:
    # Fits; prompt beyond the model; prompt beyond the pool; prompt fits, prompt and output outgrow the pool; fits.
    rows = [(0, 50, 20), (1, 4097, 5), (2, 500, 5), (3, 300, 40), (4, 50, 20)]
    Path("own.csv").write_text(own_csv(*rows))
    ended = batchscope("run", *TRACE, "--policy", policy, "--json", *settings(engine__num_gpu_blocks=20))
    assert (ended.exit_code, ended.stderr) == (0, "")
    counts = ended.summary["requests"]
    assert counts == {
        **{"offered": 5, "finished": 2, "rejected": 1, "aborted": 0, "failed": 2, "unfinished": 0},
        "reasons": {"kv_capacity": 2, "prompt_too_long": 1, "stop": 2},
    }
    assert ended.summary["status"] == "completed"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            {"engine__max_model_len": 10},
            "no request at all could be served (prompt_too_long 2); give requests that fit engine.max_model_len = 10 "
            "and a KV pool of 118,272 tokens, or raise these",
        ),
        (
            {"engine__num_gpu_blocks": 2, "engine__block_size": 4},
            "no request at all could be served (kv_capacity 2); give requests that fit engine.max_model_len = 4096 "
            "and a KV pool of 4 tokens, or raise these",
        ),
    ],
)
def test_if_nobody_can_be_served_the_user_is_told(setting: dict[str, object], expected: str) -> None:
    ended = batchscope("run", *TRACE, "--json", *settings(**setting))
    assert (ended.exit_code, ended.stderr) == (2, f"batchscope: {expected}\n")
    summary = ended.summary
    assert summary["status"] == "completed"
    assert summary["requests"]["offered"] == 2
    assert summary["notes"][0] == expected
    table = batchscope("run", *TRACE, *settings(**setting))
    assert table.exit_code == 2
    assert "0 of 2 finished, 2 " in table.stdout


# -- engines that die or hang --------------------------------------------------------------------------------


def test_a_faithful_engine_dies_when_swap_space_runs_out() -> None:
    options = [*chat(20, 60, engine__num_gpu_blocks=300, engine__swap_space_bytes=80_000_000)]
    faithful = settings(engine__faithful=True, engine__max_model_len=2048)
    ended = batchscope("run", "--policy", "vllm-0.6-swap", *options, *faithful, "--json", "--out", "dead")
    assert ended.exit_code == 3
    assert ended.stderr == (
        "batchscope: engine_died: no CPU swap space for request 26; raise engine.swap_space_bytes or preempt by "
        "recompute\n"
    )
    summary = ended.summary
    assert summary["status"] == "engine_died"
    assert summary["requests"]["unfinished"] == summary["requests"]["offered"] > 26
    assert len(read_run("dead").requests) == summary["requests"]["offered"]

    guarded = batchscope("run", "--policy", "vllm-0.6-swap", *options, "--json")
    assert (guarded.exit_code, guarded.summary["status"]) == (0, "completed")
    assert guarded.summary["requests"]["finished"] == 60
    assert guarded.summary["preemptions"]["swap_exhausted"] > 0


CHUNKED_SWAP = ("--policy", "vllm-0.6-chunked", *settings("engine.preemption_mode=swap"))
HANGS = own_csv((0, 8, 79), (0, 12, 51), (0, 15, 47), (0.2, 188, 30))


def test_chunked_prefill_with_swap_hangs_as_the_real_engine_does() -> None:
    """A request swapped out in mid-prefill, with more left than a step takes, never returns (vLLM 0.6.3)."""
    Path("own.csv").write_text(HANGS)
    small = {
        **{"engine__max_num_batched_tokens": 16, "engine__max_num_seqs": 8},
        **{"engine__num_gpu_blocks": 20, "engine__max_model_len": 320},
    }
    run = ("run", *TRACE, *CHUNKED_SWAP, *settings(**small))
    ended = batchscope(*run, *settings(engine__faithful=True))
    assert ended.exit_code == 3
    assert ended.stderr == (
        "batchscope: stuck: no progress: request 3 waits, nothing runs and nothing will change "
        "(blocked; 0 waiting, 1 swapped, 20 of 20 KV blocks free)\n"
    )
    assert "status: stuck\n3 of 4 finished, 1 unfinished\n" in ended.stdout
    guarded = batchscope(*run, "--json")
    assert (guarded.exit_code, guarded.summary["requests"]["finished"]) == (0, 4)


@pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(310, 5), (290, 25)])
def test_a_request_beyond_the_pool_starts_over_for_ever_in_the_real_v1(
    prompt_tokens: int, output_tokens: int
) -> None:
    Path("own.csv").write_text(own_csv((0, 100, 5), (1, prompt_tokens, output_tokens), (2, 100, 5)))
    run = ("run", *TRACE, *settings(engine__num_gpu_blocks=20, engine__max_model_len=320), "--json")
    ended = batchscope(*run, *settings(engine__faithful=True))
    assert ended.exit_code == 3
    assert ended.stderr == "batchscope: stuck: request 1 can never get its KV blocks; the pool has 19\n"
    assert ended.summary["status"] == "stuck"
    assert ended.summary["requests"]["finished"] == 1
    guarded = batchscope(*run)
    assert guarded.exit_code == 0
    assert guarded.summary["requests"]["reasons"] == {"kv_capacity": 1, "stop": 2}


# -- interrupts ----------------------------------------------------------------------------------------------

INTERRUPTS = """
from signal import SIGINT, raise_signal

from policies.systems.token_budget import TokenBudget


class {name}(TokenBudget):
    def schedule(self, now_s):
        self.plans = getattr(self, "plans", 0) + 1
        if self.plans >= 60:
            raise_signal(SIGINT)
            {again}
        return super().schedule(now_s)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_with_a_summary_of_what_ran(name: str) -> None:
    Path("mine.py").write_text(INTERRUPTS.format(name="Once", again="").replace("SIGINT", name))
    work = chat(8, 200, sim__skip_ahead=True)
    ended = batchscope("run", "--policy", "mine.py:Once", *work, "--out", "half", "--json")
    assert ended.exit_code == 130
    assert ended.stderr.startswith("batchscope: interrupted: stopped at ")
    summary = ended.summary
    assert summary["status"] == "interrupted"
    counts = summary["requests"]
    assert 0 < counts["unfinished"] < counts["offered"] < 200
    assert counts["offered"] == counts["finished"] + counts["unfinished"]
    assert json.loads(Path("half/summary.json").read_text()) == summary
    assert len(read_run("half").requests) == counts["offered"]


def test_a_second_interrupt_stops_at_once() -> None:
    Path("mine.py").write_text(INTERRUPTS.format(name="Twice", again="raise_signal(SIGINT)"))
    ended = batchscope("run", "--policy", "mine.py:Twice", *chat(8, 200), "--json")
    assert ended[:2] == (130, "")
    assert ended.stderr.strip() == "batchscope: interrupted"  # below the ^C that a terminal shows


# -- what the cost model does not know -----------------------------------------------------------------------


def test_steps_beyond_what_was_measured_are_counted_and_said() -> None:
    Path("own.csv").write_text(own_csv(*[(0, 16, 4)] * 200, *[(1, 16, 200)] * 128))
    ended = batchscope("run", *TRACE, "--json")
    beyond = ended.summary["cost_model"]["extrapolated_steps"]
    assert 0 < beyond < ended.summary["steps"]["count"]
    assert ended.summary["notes"][-1] == (
        f"{beyond} of {ended.summary['steps']['count']} steps are outside the measured range "
        "(sequences up to 200, measured to 128)"
    )
    assert f"note: {ended.summary['notes'][-1]}\n" in batchscope("run", *TRACE).stdout


def test_limits_are_judged_in_the_table() -> None:
    stdout = batchscope("run", *TRACE, *settings(slo__ttft_s=9)).stdout
    rows = {line.rpartition("  ")[0].strip(): line.split()[-2:] for line in stdout.splitlines() if "  " in line}
    assert rows["within all limits"] == ["100", "%"]
    assert "goodput, requests/s" in rows
    assert "within all limits" not in batchscope("run", *TRACE).stdout
