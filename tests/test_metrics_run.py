"""Metrics of small records whose every number is worked out by hand."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from policies.core.errors import ContractError
from policies.core.request import Slo
from tests.records import NAN, REQUEST, STEP, known, metrics_sink, small_run
from traces.metrics.accumulate import MetricsSink
from traces.metrics.queue import littles_law_error, stability
from traces.metrics.window import TokenTimeline
from traces.record.schema import Stall


def latencies_of(metrics: MetricsSink) -> dict[str, tuple[float, ...]]:
    """Number, mean, p50, p90, p95 and p99 by name, where there are samples."""
    return {name: tuple(stats) for name, stats in metrics.result().latencies.items() if stats}


def test_latencies_of_a_small_run() -> None:
    latencies = latencies_of(small_run())
    assert latencies["ttft_s"][:2] == (2, 1.0)
    assert latencies["e2e_s"][:3] == (2, 3.125, 3.125)
    assert latencies["queue_s"][:2] == (2, 0.0)
    assert latencies["waited_s"][:2] == (2, 0.375)
    # (2.25 - 1) / 2 = 0.625 and (4 - 1) / 3 = 1.
    assert latencies["tpot_s"][:2] == (2, 0.8125)
    # 2.25 / 3 = 0.75 and 4 / 4 = 1.
    assert latencies["normalized_latency_s"][:2] == (2, 0.875)


def test_latencies_count_from_the_arrival() -> None:
    metrics = metrics_sink()
    metrics.requests([
        REQUEST._replace(arrival_s=1.0, first_scheduled_s=1.5, first_token_s=3.0, finish_s=7.0, waited_s=0.75),
        REQUEST._replace(arrival_s=2.0, first_scheduled_s=5.5, first_token_s=6.0, finish_s=8.0, waited_s=3.75),
    ])  # fmt: skip
    # Of two samples p50 is the mean, and p90 nine tenths of the way from the smaller to the larger one.
    p50_p90 = {name: stats[2:4] for name, stats in latencies_of(metrics).items()}
    assert p50_p90 == {
        "ttft_s": (3.0, pytest.approx(2.0 + 0.9 * 2.0)),
        "queue_s": (2.0, pytest.approx(0.5 + 0.9 * 3.0)),
        "waited_s": (2.25, pytest.approx(0.75 + 0.9 * 3.0)),
        "e2e_s": (6.0, 6.0),
        "tpot_s": (0.75, pytest.approx(0.5 + 0.9 * 0.5)),  # 4 s and 2 s over 4 gaps
        "normalized_latency_s": (1.2, 1.2),
    }
    assert metrics.result().duration_s == 7.0


def test_gaps_between_tokens_are_pooled_over_steps_and_stalls() -> None:
    # 0.5 twice as stalls, 0.75 twice, and 4.0 - 2.25 = 1.75 once: N - 1 samples a request.
    stats = known(small_run().result().latencies["itl_s"])
    assert stats.n == (4 - 1) + (3 - 1)
    assert stats.mean == pytest.approx((2 * 0.5 + 2 * 0.75 + 1.75) / 5)
    assert stats.p50 == 0.75
    assert stats.p90 == pytest.approx(0.75 + 0.6 * 1.0)


def test_rates_of_a_small_run() -> None:
    metrics = small_run().result()
    assert metrics.duration_s == 4.0
    assert metrics.throughput.output_tokens_per_s == 7 / 4.0
    assert metrics.throughput.total_tokens_per_s == 23 / 4.0
    assert metrics.throughput.requests_per_s == 0.5
    # Contexts 10, 11, 12, 13 and 6, 7, 8.
    assert metrics.mean_context_tokens == pytest.approx(67 / 7)
    assert metrics.throughput.steady_output_tokens_per_s is None  # no arrival after the first completion


def test_means_over_the_steps_of_a_small_run() -> None:
    steps = small_run().result().steps
    assert steps.count == 4
    assert steps.tokens_mean == (16 + 2 + 2 + 1) / 4
    assert steps.rows_mean == (2 + 2 + 2 + 2) / 4
    assert steps.busy_s == 3.25
    # 2 running for 2.25 s and 1 for 1 s, of 4, over 4 s.
    assert steps.occupancy_mean == (2 * 2.25 + 1 * 1.0) / (4 * 4.0)
    assert steps.limited_by == {
        "arrivals": pytest.approx(2.0 / 3.25),
        "kv_blocks": pytest.approx(1.25 / 3.25),
    }
    # Slot-steps paid: 2 prompts, 2 x 2 decodes, 2 decodes of which one row is idle.
    assert steps.slot_waste == pytest.approx(1 - 7 / 8)


def test_kv_use_of_a_small_run() -> None:
    steps = small_run().result().steps
    # Used blocks 5, 5, then residues[(0 + 1) % 4] = 1 more, 3; for 1, 0.5, 0.75 and 1 s of 4.
    assert steps.kv_utilization_max == 0.06
    assert steps.kv_utilization_mean == pytest.approx((5 * 1 + 5 * 0.5 + 6 * 0.75 + 3 * 1) / (100 * 4.0))
    # Stored after each step: 16 of 20 slots, 18 of 20, 20 of 24, 13 of 12 (shared: no fragmentation below 0).
    waste = (4 / 20) * 1 + (2 / 20) * 0.5 + (4 / 24) * 0.75 + 0.0
    assert steps.fragmentation_mean == pytest.approx(waste / 3.25)


def test_preemptions_and_prefix_hits_of_a_small_run() -> None:
    metrics = small_run().result()
    assert (metrics.preemptions.recompute, metrics.preemptions.swap) == (1, 1)
    assert metrics.preemptions.recomputed_tokens == 5
    assert metrics.preemptions.moved_bytes == 7
    assert metrics.prefix_hit_rate_new == 4 / 16
    assert metrics.prefix_hit_rate_resumed == 15 / 20
    assert metrics.littles_law_error == 0.0


def test_every_outcome_is_counted_and_the_statistics_leave_out_what_has_none() -> None:
    metrics = metrics_sink()
    rows = [
        REQUEST,
        REQUEST._replace(
            id=1, reason="prompt_too_long", first_scheduled_s=NAN, first_token_s=NAN, output_tokens=0
        ),
        REQUEST._replace(id=2, reason="kv_capacity"),
        REQUEST._replace(id=3, reason="abort", first_token_s=NAN, output_tokens=0),
        REQUEST._replace(id=4, reason="unfinished", finish_s=NAN, output_tokens=2),
        REQUEST._replace(id=5, reason="length", output_tokens=1, finish_s=1.0),
    ]
    metrics.requests(rows)
    result = metrics.result()
    assert result.offered == 6
    assert result.counts == {"finished": 2, "rejected": 1, "aborted": 1, "failed": 1, "unfinished": 1}
    assert result.reasons == dict.fromkeys(
        ["abort", "kv_capacity", "length", "prompt_too_long", "stop", "unfinished"], 1
    )
    sizes = {name: stats[0] for name, stats in latencies_of(metrics).items()}
    assert sizes == {
        "ttft_s": 4, "tpot_s": 1, "e2e_s": 2, "queue_s": 5, "waited_s": 5, "normalized_latency_s": 2
    }  # fmt: skip
    assert result.throughput.output_tokens == 5 + 5 + 2 + 1


def test_an_empty_run_has_counts_and_no_statistics() -> None:
    result = metrics_sink().result(Slo(ttft_s=1.0))
    assert result.offered == 0
    assert result.counts["finished"] == 0
    assert set(result.latencies.values()) == {None}
    assert result.steps.count == 0
    assert result.steps.occupancy_mean is None
    assert known(result.goodput).attainment is None
    assert result.littles_law_error is None


def test_goodput_judges_all_limits_and_leaves_out_what_it_cannot_judge() -> None:
    metrics = metrics_sink()
    rows = [
        REQUEST,  # ttft 1, tpot 0.25, e2e 2
        REQUEST._replace(id=1, first_token_s=1.5, finish_s=2.5),  # ttft too late
        REQUEST._replace(id=2, finish_s=4.0),  # tpot 0.75: too slow
        REQUEST._replace(id=3, output_tokens=1, finish_s=1.0),  # tpot of one token: unmeasurable
        REQUEST._replace(id=4, reason="prompt_too_long", first_token_s=NAN, output_tokens=0),
        REQUEST._replace(id=5, reason="kv_capacity"),
        REQUEST._replace(id=6, reason="abort"),
        REQUEST._replace(id=7, reason="unfinished", finish_s=NAN),
    ]
    metrics.requests(rows)
    got = known(metrics.result(Slo(ttft_s=1.0, tpot_s=0.5)).goodput)
    assert (got.met, got.judged, got.unfinished, got.aborted, got.unmeasurable) == (1, 5, 1, 1, 1)
    assert got.attainment == 0.2
    assert got.requests_per_s == 1 / 4.0
    assert known(metrics.result(Slo(ttft_s=1.0)).goodput).met == 3
    by_itl = known(metrics.result(Slo(itl_s=0.25)).goodput)
    assert by_itl.itl_judged_by == "tpot_s"
    assert by_itl.met == 2
    assert metrics.result(Slo()).goodput is None
    assert metrics.result().goodput is None


@pytest.mark.parametrize(
    ("lengths", "total", "waste"), [([20] * 7 + [500], 4_000, 0.84), ([100] * 31 + [2_000], 64_000, 0.92)]
)
def test_slot_waste_of_the_headline_claims(lengths: list[int], total: int, waste: float) -> None:
    """A static batch: one prefill step, then decode steps in which finished rows keep their slot."""
    batch, longest = len(lengths), max(lengths)
    rows = [STEP._replace(chunk_emits=batch)]
    for low, high in zip([1, *sorted(set(lengths))[:-1]], sorted(set(lengths)), strict=True):
        alive = sum(length > low for length in lengths)
        rows.append(STEP._replace(steps=high - low, num_seqs=batch, emitting=alive, previous_emit_s=0.0))
    metrics = metrics_sink()
    metrics.steps(rows)
    assert batch * longest == total
    # 84 % and 92.0 % as printed: 640 of 4,000 and 5,100 of 64,000 slot-steps are useful.
    slot_waste = known(metrics.result().steps.slot_waste)
    assert slot_waste == pytest.approx(1 - sum(lengths) / total, rel=1e-12)
    assert round(slot_waste, 3) == waste


def test_steady_throughput_credits_tokens_by_their_own_time() -> None:
    metrics = metrics_sink()
    rows = [
        STEP._replace(step=i, start_s=i * 1.0, end_s=i + 1.0, emitting=i + 1, irregular=i + 1)
        for i in range(6)
    ]
    metrics.steps(rows)
    metrics.requests([REQUEST._replace(finish_s=2.0), REQUEST._replace(arrival_s=4.5, finish_s=6.0)])
    # Window (2.0, 4.5]: the steps that end at 3 and 4 give 3 and 4 tokens.
    assert metrics.result().throughput.steady_output_tokens_per_s == 7 / 2.5


def test_batch_end_delivery_credits_tokens_when_the_request_finishes() -> None:
    metrics = metrics_sink("batch_end")
    metrics.steps([STEP._replace(emitting=3, previous_emit_s=0.0)])
    metrics.stalls([Stall(0.0, 4, "batch"), Stall(0.5, 1, "decode")])
    times = [(0.0, 2.0), (1.0, 3.0), (3.5, 6.0)]
    metrics.requests([REQUEST._replace(arrival_s=a, first_token_s=c, finish_s=c) for a, c in times])
    assert latencies_of(metrics)["itl_s"] == (12, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert latencies_of(metrics)["tpot_s"][:2] == (3, 0.0)
    assert metrics.result().throughput.steady_output_tokens_per_s == 5 / 1.5


def test_batches_do_not_change_the_metrics() -> None:
    rows = [
        STEP._replace(
            step=i, steps=3, start_s=3.0 * i, end_s=3.0 * i + 3.0, first=0, anchor_s=3.0 * i, base_s=1.0,
            num_seqs=2, num_tokens=2, emitting=2, previous_emit_s=3.0 * i, running=2, free_blocks=90 - i,
            residues=(1, 0),
        )
        for i in range(10)
    ]  # fmt: skip
    requests = [REQUEST._replace(id=i, arrival_s=2.0 * i, finish_s=2.0 * i + 6.0) for i in range(10)]
    together, apart = metrics_sink(), metrics_sink()
    together.steps(rows)
    together.requests(requests)
    for row, request in zip(rows, requests, strict=True):
        apart.steps([row])
        apart.requests([request])
    one, other = together.result(), apart.result()
    assert replace(one, steps=other.steps) == other
    numbers = asdict(one.steps)
    assert numbers.pop("limited_by") == other.steps.limited_by == {"arrivals": 1.0}
    assert numbers == pytest.approx({name: getattr(other.steps, name) for name in numbers}, rel=1e-12)
    assert one.steps.busy_s == 30.0


def test_a_gap_without_an_earlier_token_is_a_broken_record() -> None:
    with pytest.raises(ContractError, match="previous_emit_s"):
        metrics_sink().steps([STEP._replace(emitting=1, previous_emit_s=NAN)])


def test_overlapping_steps_share_the_clock() -> None:
    metrics = metrics_sink()
    rows = [STEP._replace(running=2), STEP._replace(step=1, start_s=0.5, end_s=1.5, running=2, limited_by="batch")]
    metrics.steps(rows)
    steps = metrics.result().steps
    assert steps.busy_s == 1.5
    assert steps.occupancy_mean == 0.5
    assert steps.limited_by == {"arrivals": pytest.approx(1.0 / 1.5), "batch": pytest.approx(0.5 / 1.5)}


def test_stability_follows_the_queue() -> None:
    arrivals, batch_s = 0.1 * np.arange(400, dtype=np.float64), np.full(400, 0.2)
    assert known(stability(arrivals, arrivals + 1.0, batch_s)).stable
    # Served at half the rate: 5 more requests a second are left.
    growing = known(stability(arrivals, 2.0 * arrivals + 0.2, batch_s))
    assert not growing.stable
    assert growing.queue_slope_per_s == pytest.approx(5.0, rel=0.01)
    assert growing.arrivals_per_s == pytest.approx(10.0)
    stuck = np.where(np.arange(400) < 10, arrivals + 1.0, NAN)
    assert not known(stability(arrivals, stuck, batch_s[:10])).stable


def test_no_verdict_without_enough_data() -> None:
    arrivals = 0.1 * np.arange(400, dtype=np.float64)
    assert stability(np.zeros(100), np.ones(100), np.ones(100)) is None
    assert stability(arrivals[:38], arrivals[:38] + 0.1, np.full(38, 0.1)) is None
    assert stability(arrivals, np.full(400, NAN), np.empty(0)) is None
    # The first half of the arrivals lasts 20 s: three times in the batch of up to 6.67 s.
    assert stability(arrivals, arrivals + 6.6, np.full(400, 6.6)) is not None
    assert stability(arrivals, arrivals + 6.7, np.full(400, 6.7)) is None


def test_filling_up_is_no_growth() -> None:
    # One request in ten stays 100 s: in the second half their number still grows by one a second.
    arrivals = 0.1 * np.arange(1000, dtype=np.float64)
    batch_s = np.where(np.arange(1000) % 10 == 0, 100.0, 0.5)
    filling = known(stability(arrivals, arrivals + batch_s, batch_s))
    assert filling.stable
    assert abs(filling.queue_slope_per_s) < 0.05


def test_waves_that_last_longer_than_a_window_are_no_growth() -> None:
    """Endless servers with exponential times of one and a half windows: no queue whatever the seed. Independent
    windows would make 6 of these 40 runs unstable."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(0.1, 2000))
        batch_s = rng.exponential(7.5, 2000)
        alarms += not known(stability(arrivals, arrivals + batch_s, batch_s)).stable
    assert alarms <= 2


def test_littles_law_compares_the_steps_with_the_requests() -> None:
    arrivals, ends, waited = np.array([0.0, 1.0, 5.0]), np.array([2.0, 4.0, 6.0]), np.array([0.0, 0.5, 0.0])
    assert littles_law_error(5.5, arrivals, ends, waited) == 0.0
    assert littles_law_error(5.5, arrivals[1:], ends[1:], waited[1:]) == pytest.approx(2.0 / 5.5)
    assert littles_law_error(5.0, arrivals, ends, waited) == pytest.approx(0.5 / 5.5)
    assert littles_law_error(0.0, arrivals[:0], ends[:0], waited[:0]) is None
    assert littles_law_error(2.0, arrivals[:0], ends[:0], waited[:0]) == 1.0


def test_littles_law_notices_a_tampered_record() -> None:
    late = small_run()
    late.requests([REQUEST._replace(id=2, arrival_s=1.0, first_scheduled_s=1.0, finish_s=1.5)])
    assert late.result().littles_law_error == pytest.approx(0.5 / 6.0)
    long = small_run()
    long.steps([STEP._replace(step=4, start_s=4.0, end_s=6.0, running=1)])
    assert long.result().littles_law_error == pytest.approx(2.0 / 7.5)


def test_merged_steps_move_no_token_by_more_than_a_group() -> None:
    exact, merged = TokenTimeline(), TokenTimeline(max_pending=8)
    times = np.arange(40.0)
    for low in range(0, 40, 4):
        for timeline in (exact, merged):
            timeline.add(times[low : low + 4], np.ones(4, np.int64))
    for timeline in (exact, merged):
        timeline.note(4.5, 34.5)
    assert exact.output_tokens_per_s() == 30 / 30.0
    assert merged.output_tokens_per_s() == pytest.approx(1.0, abs=0.6)
