"""Workload profiles: what they draw is what they say, and what they say is what the traces hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice, pairwise, repeat
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from calibrate.workloads import TRACES, fitted, reasoning
from policies.core.errors import ConfigError, TraceError
from sim.config import WorkloadConfig, load_config
from traces.workload.fit import Label, fit_profile
from traces.workload.prefixes import distances_without_end, reuse_of
from traces.workload.profile import Profile, load_profile, profile_from, shipped, to_json
from traces.workload.profile_rows import profile_arrivals, profile_rows
from traces.workload.quantiles import GRID, QuantileTable, quantile, table_of
from traces.workload.readers import open_trace
from traces.workload.rows import TraceRow
from traces.workload.source import Workload, build_source
from traces.workload.streams import stream

MODEL_LEN = 16_384
NUM = 8_000


def drawn(profile: Profile, num: int = NUM, seed: int = 0) -> list[TraceRow]:
    arrivals = profile.arrivals
    times = profile_arrivals(arrivals, arrivals.rate_per_s, seed) if arrivals else repeat(0.0)
    return list(islice(profile_rows(profile, times, seed, None), num))


def workload(**keys: object) -> Workload:
    return build_source(WorkloadConfig(**keys), MODEL_LEN)  # type: ignore[arg-type]


def share_up_to(values: Sequence[float], limit: float) -> float:
    return sum(value <= limit for value in values) / len(values)


def check_quantiles(values: Sequence[float], expected: QuantileTable) -> None:
    """The share of values up to each quantile is its share of the grid, within five standard errors. A value that
    many rows share is one quantile for many shares: any of them will do."""
    for share, limit in zip(GRID, expected.values, strict=True):
        error = 5 * sqrt(share * (1 - share) / len(values)) + 1e-3
        below, up_to = share_up_to(values, limit - 1), share_up_to(values, limit + 1)
        assert below - error <= share <= up_to + error, (share, limit, below, up_to)


def prefix_hits(rows: Sequence[TraceRow]) -> tuple[float, float]:
    """Share of requests that begin like an earlier one, and of all prompt tokens that do."""
    hits = reuse_of([row.segments for row in rows]).hit_tokens
    return sum(hit > 0 for hit in hits) / len(rows), sum(hits) / sum(row.prompt_tokens for row in rows)


def dispersion(times_s: Sequence[float], window_s: float) -> float:
    """Variance over mean of the counts in windows."""
    counts = [0] * int((times_s[-1] - times_s[0]) / window_s)
    for time in times_s:
        window = int((time - times_s[0]) / window_s)
        if window < len(counts):
            counts[window] += 1
    return stdev(counts) ** 2 / fmean(counts)


@pytest.mark.parametrize("name", shipped())
def test_a_sample_has_the_quantiles_of_its_profile(name: str) -> None:
    profile = load_profile(name)
    rows = drawn(profile)
    check_quantiles([row.prompt_tokens for row in rows], profile.prompt)
    check_quantiles([row.output_tokens for row in rows], profile.output)
    assert all(row.max_tokens == row.output_tokens for row in rows)
    assert profile.source.startswith("https://")
    assert profile.licence
    assert profile.recorded
    assert profile.approximated


@pytest.mark.parametrize("name", shipped())
def test_outputs_depend_on_prompts_as_the_profile_says(name: str) -> None:
    profile = load_profile(name)
    rows = sorted(drawn(profile), key=lambda row: row.prompt_tokens)
    classes = len(profile.output_by_prompt)
    for number, expected in enumerate(profile.output_by_prompt):
        outputs = [row.output_tokens for row in rows[NUM * number // classes : NUM * (number + 1) // classes]]
        error = 5 * expected.cv() * expected.mean() / sqrt(len(outputs))
        # Prompts of one length are in several classes, whose outputs the sort does not tell apart.
        if profile.prompt.at(number / classes) < profile.prompt.at((number + 0.999) / classes):
            assert abs(fmean(outputs) - expected.mean()) < error + 0.05 * expected.mean()


@pytest.mark.parametrize("name", [name for name in shipped() if load_profile(name).arrivals])
def test_arrivals_have_the_rate_and_the_bursts_of_the_profile(name: str) -> None:
    profile = load_profile(name)
    assert profile.arrivals is not None
    slots = profile.arrivals._replace(relative_rate=(1.0,))
    times = list(islice(profile_arrivals(slots, 4.0, 1), 40_000))
    gaps = [after - before for before, after in pairwise(times)]
    cv = slots.gaps.cv() / 1.0
    assert min(gaps) >= 0.0
    assert fmean(gaps) == pytest.approx(1 / 4.0, rel=5 * cv / sqrt(len(gaps)))
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.15)


def test_the_rate_follows_the_slots_and_starts_over() -> None:
    gaps = table_of([1.0] * 100)
    arrivals = load_profile("chat").arrivals
    assert arrivals is not None
    shape = arrivals._replace(rate_per_s=1.0, span_s=400.0, gaps=gaps, relative_rate=(2.0, 0.0, 0.5, 1.5))
    times = list(islice(profile_arrivals(shape, 10.0, 0), 1_200))
    counts = [sum(start <= time * 10.0 < start + 100 for time in times) for start in range(0, 800, 100)]
    assert counts == pytest.approx([200, 0, 50, 150] * 2, abs=1)


def test_another_rate_scales_the_same_arrivals() -> None:
    arrivals = load_profile("code").arrivals
    assert arrivals is not None
    slow, fast = (list(islice(profile_arrivals(arrivals, rate, 3), 1_000)) for rate in (2.0, 8.0))
    assert [time / 4 for time in slow] == fast


def test_prompts_begin_like_earlier_ones_as_much_and_as_long_ago_as_in_the_profile() -> None:
    profile = load_profile("shared-prefix")
    assert profile.sharing is not None
    rows = drawn(profile, 12_000)
    reuse = reuse_of([row.segments for row in rows])
    assert all(sum(length for _, length in row.segments) == row.prompt_tokens for row in rows)
    # Once all distances lead to requests that were sent, the shares are those of the profile.
    late = range(int(profile.sharing.distance.values[-1]), len(rows))
    share = sum(reuse.hit_tokens[row] > 0 for row in late) / len(late)
    assert share == pytest.approx(fmean(profile.sharing.share_of_requests), abs=0.03)
    parts = [reuse.hit_tokens[row] / rows[row].prompt_tokens for row in late if reuse.hit_tokens[row]]
    weighed = zip(profile.sharing.share_of_requests, profile.sharing.shared_part, strict=True)
    expected = sum(share * part.mean() for share, part in weighed) / sum(profile.sharing.share_of_requests)
    assert fmean(parts) == pytest.approx(expected, abs=0.04)
    distances = sorted(reuse.distance[row] for row in late if reuse.distance[row])
    for quarter in (0.25, 0.5, 0.75):
        assert quantile(distances, quarter) == pytest.approx(profile.sharing.distance.at(quarter), rel=0.2)


def test_distances_are_those_of_a_trace_that_began_long_ago() -> None:
    """Row i shows a distance only if it is at most i, so that the long ones are missed most."""
    draw = stream(0, "prefixes").random
    true = [1 + int(1_000 * draw()) for _ in range(4_000)]
    seen = [(row, distance) for row, distance in enumerate(true) if distance <= row]
    steps, shares = distances_without_end([row for row, _ in seen], [distance for _, distance in seen])
    for limit in (250, 500, 750):
        estimated = shares[max(place for place, step in enumerate(steps) if step <= limit)]
        assert estimated == pytest.approx(limit / 1_000, abs=0.03)
        naive = sum(distance <= limit for _, distance in seen) / len(seen)
        assert naive > estimated


def test_reuse_counts_what_an_unbounded_prefix_cache_would_find() -> None:
    prompts = (
        (("doc", 100), ("q1", 20)),
        (("doc", 100), ("q2", 20)),
        (("doc", 60), ("q1", 20)),
        (),
        (("doc", 100), ("q2", 30)),
        (("q1", 20),),
    )
    reuse = reuse_of(prompts)
    assert list(reuse.hit_tokens) == [0, 100, 60, 0, 120, 0]
    assert list(reuse.distance) == [0, 1, 1, 0, 3, 0]


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: str(trace.label.name))
def test_shipped_profiles_are_those_of_the_public_traces(trace: object, shared_data: Path) -> None:
    (known,) = [known for known in TRACES if known is trace]
    profile = fitted(known, shared_data)
    assert profile_from(json.loads(to_json(profile)), "fitted anew") == load_profile(profile.name)


def test_the_profile_of_published_histograms(shared_data: Path) -> None:
    assert profile_from(json.loads(to_json(reasoning(shared_data))), "made anew") == load_profile("reasoning")


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: str(trace.label.name))
def test_a_sample_has_the_quantiles_of_the_original_trace(trace: object, shared_data: Path) -> None:
    (known,) = [known for known in TRACES if known is trace]
    original = open_trace(str(shared_data / "traces" / known.file))
    rows, sample = list(original.rows), drawn(load_profile(known.label.name))
    assert prefix_hits(sample[: len(rows)]) == pytest.approx(prefix_hits(rows), abs=0.08)
    for name in ("prompt_tokens", "output_tokens"):
        theirs, ours = ([getattr(row, name) for row in part] for part in (rows, sample))
        check_quantiles(ours, table_of(sorted(theirs)))
        error = 5 * stdev(theirs) / sqrt(len(sample))
        assert fmean(ours) == pytest.approx(fmean(theirs), abs=error + 0.02 * fmean(theirs))
    if original.has_arrivals:
        theirs, ours = ([row.arrival_s for row in part] for part in (rows, sample[: len(rows)]))
        for window_s in (1.0, 10.0):
            assert 0.5 < dispersion(ours, window_s) / dispersion(theirs, window_s) < 2.0


def test_a_profile_of_a_sample_is_the_profile() -> None:
    profile = load_profile("shared-prefix")
    again = fit_profile(drawn(profile, 16_000), Label("again"), block_tokens=512)
    assert again.arrivals is not None
    assert profile.arrivals is not None
    assert again.sharing is not None
    assert profile.sharing is not None
    assert again.arrivals.rate_per_s == pytest.approx(profile.arrivals.rate_per_s, rel=0.05)
    assert again.arrivals.gaps.cv() == pytest.approx(profile.arrivals.gaps.cv(), rel=0.1)
    for ours, theirs in zip(again.sharing.share_of_requests, profile.sharing.share_of_requests, strict=True):
        assert ours == pytest.approx(theirs, abs=0.06)


def test_rows_of_a_workload_by_profile() -> None:
    chat = workload(profile="chat", num_requests=500)
    rows = list(chat.rows())
    assert rows == list(chat.rows()) == list(workload(profile="chat", limit=500).rows())
    assert rows != list(workload(profile="chat", num_requests=500, seed=1).rows())
    assert chat.num_requests == len(rows)
    assert chat.description == "profile chat at 5.9063/s"
    assert chat.notices[0].startswith("requests are drawn after profile chat (https://github.com/Azure/")
    assert workload(profile="chat").num_requests == load_profile("chat").requests


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({"rate_per_s": 2 * 5.9063}, lambda row: row._replace(arrival_s=row.arrival_s / 2)),
        ({"rate_scale": 2.0}, lambda row: row._replace(arrival_s=row.arrival_s / 2)),
        ({"concurrency": 4}, lambda row: row._replace(arrival_s=0.0)),
        ({"generator": "closed-loop", "concurrency": 4}, lambda row: row._replace(arrival_s=0.0)),
        ({"generator": "constant", "rate_per_s": 0.5}, lambda row: row),
        ({"max_tokens": 7}, lambda row: row._replace(max_tokens=7)),
    ],
    ids=("rate", "scale", "clients", "closed loop", "constant", "limit"),
)
def test_keys_change_only_what_they_name(keys: dict[str, object], change: object) -> None:
    assert callable(change)
    rows = list(workload(profile="chat", num_requests=200).rows())
    changed = list(workload(profile="chat", num_requests=200, **keys).rows())
    expected = [change(row) for row in rows]
    if "constant" in keys.values():
        expected = [row._replace(arrival_s=2.0 * number) for number, row in enumerate(expected)]
    assert [row[1:] for row in changed] == [row[1:] for row in expected]
    assert [row.arrival_s for row in changed] == pytest.approx([row.arrival_s for row in expected], rel=1e-12)


def test_prompts_beyond_the_model_are_announced() -> None:
    notices = build_source(WorkloadConfig(profile="shared-prefix"), 4_096).notices
    assert "about 61 % of its prompts exceed max_model_len = 4,096" in notices
    share = sum(row.prompt_tokens > 4_095 for row in drawn(load_profile("shared-prefix"))) / NUM
    assert share == pytest.approx(0.61, abs=0.02)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"profile": "sharegpt"}, "workload.rate_per_s is missing: profile sharegpt has no arrivals of its own"),
        ({"profile": "chat", "trace": "x.csv"}, "workload: trace and profile are both given; leave one out"),
        (
            {"profile": "chat", "generator": "gamma", "rate_per_s": 1.0},
            "workload.cv is missing: profile = 'chat' with generator = 'gamma' needs it",
        ),
        ({"profile": "chat", "cv": 1.0}, "workload.cv = 1.0: profile = 'chat' has no use for it; leave it out"),
        (
            {"profile": "chat", "concurrency": 2, "rate_per_s": 1.0},
            "workload.rate_per_s = 1.0: profile = 'chat' has no use for it; leave it out",
        ),
    ],
)
def test_keys_that_do_not_fit(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        workload(**keys)
    assert str(error.value) == message


def test_a_profile_without_arrivals_takes_any_rate() -> None:
    rows = list(workload(profile="sharegpt", rate_per_s=4.0, num_requests=2_000).rows())
    assert len(rows) / rows[-1].arrival_s == pytest.approx(4.0, rel=0.12)
    assert rows[-1].arrival_s == list(
        workload(profile="sharegpt", generator="poisson", rate_per_s=4.0, num_requests=2_000).rows()
    )[-1].arrival_s


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("chatt", "workload.profile = 'chatt': unknown; known are chat, code, reasoning, shared-prefix, sharegpt, "
         "summaries; did you mean 'chat'?, or give the path of a FILE.json of 'batchscope traces fit'"),
        ("none.json", "none.json: cannot be read (No such file or directory); give a profile, or its path"),
    ],
)  # fmt: skip
def test_an_unknown_profile(given: str, message: str) -> None:
    with pytest.raises(TraceError) as error:
        load_profile(given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema": 9}, "schema is 9, this version reads 1"),
        ({"requests": 0}, "requests = 0 is below 1"),
        ({"prompt_tokens": [1, 2]}, "prompt_tokens has 2 quantiles where 29 are needed"),
        ({"output_tokens": [5] * 28 + [4]}, "output_tokens decreases"),
        ({"output_tokens": [0] * 29}, "output_tokens leaves the range from 1 to 2147483647"),
        ({"output_tokens": [1] * 28 + ["x"]}, "output_tokens holds 'x', which is no number of at least 0"),
        ({"output_by_prompt": []}, "output_by_prompt is empty"),
        ({"arrivals": {"rate_per_s": 1}}, "'gaps' is missing"),
        ({"arrivals": 7}, "a value is of the wrong kind"),
        ({"source": None, "licence": None}, None),
    ],
)
def test_files_that_are_no_profile(change: dict[str, object], fault: str | None, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(json.loads(to_json(load_profile("chat"))) | change), encoding="utf-8")
    if fault is None:
        assert load_profile(str(path)).prompt == load_profile("chat").prompt
        return
    with pytest.raises(TraceError) as error:
        load_profile(str(path))
    assert str(error.value) == f"{path}: no profile: {fault}; make it with 'batchscope traces fit'"


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", "7", "nothing"])
def test_files_of_anything(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"own\.json: no (JSON|profile)"):
        load_profile(str(path))


def test_too_few_rows_for_a_profile() -> None:
    with pytest.raises(TraceError, match="x: 2 rows are too few for a profile; give at least 100"):
        fit_profile([TraceRow(0.0, 1, 1), TraceRow(1.0, 1, 1)], Label("x"))


@pytest.mark.parametrize(
    ("in_file", "flags", "left", "remark"),
    [
        ({"trace": "a.csv"}, {"profile": "chat"}, {"profile": "chat"},
         "the profile takes the place of workload.trace = a.csv"),
        ({"generator": "poisson", "rate_per_s": 1.0, "num_requests": 9}, {"profile": "chat"}, {"profile": "chat"},
         "the profile takes the place of the workload's generator, rate_per_s, num_requests"),
        ({"profile": "code"}, {"trace": "a.csv"}, {"trace": "a.csv"},
         "the trace takes the place of the workload's profile"),
        ({"profile": "code"}, {"profile": "chat"}, {"profile": "chat"}, ""),
    ],
)  # fmt: skip
def test_a_source_given_outside_the_file_replaces_the_files(
    in_file: dict[str, object], flags: dict[str, Any], left: dict[str, object], remark: str
) -> None:
    remarks: list[str] = []
    config = load_config({"workload": in_file}, (), remarks, **flags)
    assert {name: getattr(config.workload, name) for name in left} == left
    assert config.workload.generator is None
    assert remarks == ([remark] if remark else [])
