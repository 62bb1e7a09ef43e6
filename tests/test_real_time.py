"""The real-time driver: every policy, driven by a clock of its own, with what comes in, goes away and waits."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_backend.clock import RealClock
from gpu_backend.traffic import GiveUp, Send, Traffic
from sim.replay import replay_events
from tests.real_time import Lengths, drive
from tests.variants import VARIANTS, Size, Variant
from traces.record.events import EVENTS_NAME, read_events
from traces.workload.rows import TraceRow

SIZE = Size(14, 4, 48, 5, 12, num_cpu_blocks=16, kv_bytes_per_token=1, pieces_per_block=1)


def test_no_time_passes_while_the_clock_stands() -> None:
    began_s = time.perf_counter()
    clock = RealClock()
    with clock.stopped():
        time.sleep(0.05)
    now_s = clock.now_s()
    assert 0 < now_s <= time.perf_counter() - began_s - 0.05


@st.composite
def crowds(draw: st.DrawFn) -> list[TraceRow]:
    """Requests close together, with families, followers and clients that give up."""
    rows: list[TraceRow] = []
    arrival_s = 0.0
    for number in range(draw(st.integers(1, 8))):
        arrival_s += draw(st.sampled_from((0.0, 0.004, 0.03)))
        family, own = draw(st.sampled_from((None, "a", "b"))), draw(st.integers(1, 6))
        segments = () if family is None else ((family, 9), (f"own{number}", own))
        output = draw(st.integers(1, 20))
        rows.append(
            TraceRow(
                arrival_s,
                own + 9 * bool(segments),
                output,
                draw(st.sampled_from((None, output + 2, max(output - 1, 1)))),
                parent_id=draw(st.sampled_from((None, None, *range(number)))),
                segments=segments,
                abort_after_s=draw(st.sampled_from((None, None, 0.02, 0.1))),
            )
        )
    return rows


@settings(max_examples=max(150, settings.default.max_examples))  # type: ignore[union-attr]
@given(name=st.sampled_from(sorted(VARIANTS)), rows=crowds(), clients=st.sampled_from((None, None, 3)))
def test_any_policy_runs_on_any_crowd_and_replays(
    name: str, tmp_path_factory: pytest.TempPathFactory, rows: list[TraceRow], clients: int | None
) -> None:
    variant = VARIANTS[name]
    path = tmp_path_factory.getbasetemp() / f"{name}.jsonl"
    if clients:
        rows = [row._replace(arrival_s=0.0, parent_id=None) for row in rows]
    ran = drive(variant, SIZE, rows, concurrency=clients, events=path)
    assert (ran.ending.status, ran.ending.offered) == ("completed", len(rows))
    services, lengths = Lengths(), dict[int, int]()
    services.lengths = lengths
    policy = variant.build(SIZE, services)
    replay = replay_events(read_events(path), policy, lengths, deliver_at_batch_end=variant.deliver_at_batch_end)
    assert (replay.difference, replay.plans, lengths) == (None, ran.ending.plans, {})


FIVE = [TraceRow(0.01 * number, 4 + number, 12) for number in range(5)]


def test_refusals_at_the_door_are_replayed(tmp_path: Path) -> None:
    options = {"max_concurrent_requests": 2, "max_waiting_tokens": 6}
    full = Variant("tgi", "tgi-3", "slots", options)
    path = tmp_path / EVENTS_NAME
    drive(full, SIZE, FIVE, events=path)
    refused = [line["refused"] for line in read_events(path) if line["type"] == "arrival"]
    assert set(refused) == {None, "overloaded"}
    for limit, differs in ((2, False), (3, True)):
        services, lengths = Lengths(), dict[int, int]()
        services.lengths = lengths
        fresh = full._replace(overrides={**options, "max_concurrent_requests": limit}).build(SIZE, services)
        difference = replay_events(read_events(path), fresh, lengths).difference
        assert (difference is not None) == differs
    assert difference == 'request 2 at the door: recorded "overloaded", replayed nothing'


def test_a_run_ends_at_its_time() -> None:
    whole, cut = (drive(VARIANTS["v1"], SIZE, FIVE, max_time_s=limit_s) for limit_s in (None, 0.03))
    assert whole.ending.end_s > 0.04 > cut.ending.end_s >= 0.03
    assert cut.ending.offered < 5
    assert sum(cut.made.values()) < sum(whole.made.values()) == 60


def replayed(path: Path) -> str | None:
    """What differs when the events of a file are replayed through ``v0-swap``."""
    services, lengths = Lengths(), dict[int, int]()
    services.lengths = lengths
    return replay_events(read_events(path), VARIANTS["v0-swap"].build(SIZE, services), lengths).difference


def changed(line: dict[str, object]) -> dict[str, object] | None:
    """One event made wrong; None where it cannot be."""
    match line["type"]:
        case "arrival":
            request = line["request"]
            assert isinstance(request, list)
            return {**line, "request": [*request[:2], request[2] + 9, *request[3:]]}
        case "plan":
            plan = line["plan"]
            assert isinstance(plan, dict)
            return {**line, "plan": {**plan, "num_tokens": plan["num_tokens"] + 1}}
        case "abort":
            return {**line, "output_tokens": 99}
    return None


def test_any_other_event_is_a_difference(tmp_path: Path) -> None:
    rows = [row._replace(output_tokens=18, abort_after_s=0.02 if row.prompt_tokens == 6 else None) for row in FIVE]
    path, other = tmp_path / EVENTS_NAME, tmp_path / "other.jsonl"
    drive(VARIANTS["v0-swap"], SIZE, rows, events=path)
    assert replayed(path) is None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["type"] for line in lines} >= {"arrival", "plan", "result", "abort", "end"}
    for place, line in enumerate(lines):
        wrong = changed(line)
        if wrong is not None:
            made = [*lines[:place], wrong, *lines[place + 1 :]]
            other.write_text("".join(json.dumps(line) + "\n" for line in made))
            assert replayed(other) is not None, line


@pytest.mark.parametrize("kind", ["arrival", "abort"])
def test_a_missing_event_is_a_difference(kind: str, tmp_path: Path) -> None:
    rows = [row._replace(abort_after_s=0.015) for row in FIVE]
    path = tmp_path / EVENTS_NAME
    drive(VARIANTS["v0-swap"], SIZE, rows, events=path)
    lines = path.read_text().splitlines(keepends=True)
    gone = next(place for place, line in enumerate(lines) if json.loads(line)["type"] == kind)
    path.write_text("".join(lines[:gone] + lines[gone + 1 :]))
    difference = replayed(path)
    assert difference is not None
    assert "seen" in difference or "do not fit" in difference


def test_what_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / EVENTS_NAME
    drive(VARIANTS["v0-swap"], SIZE, FIVE, events=path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    whole = text[: len(text) // 2].count("\n")
    assert len(list(read_events(path))) == whole
    assert replayed(path) is None


# -- traffic -------------------------------------------------------------------------------------------------


def test_rows_come_at_their_times_and_followers_after_their_answers() -> None:
    times_and_parents = ((0.0, None), (1.0, 0), (2.0, None), (2.0, 1))
    traffic = Traffic(TraceRow(time_s, 1, 1, parent_id=parent) for time_s, parent in times_and_parents)
    assert [event.number for event in traffic.due(0.5)] == [0]
    assert traffic.next_s == 1.0
    assert list(traffic.due(1.5)) == []
    traffic.answered(0, 1.75)
    assert [(event.time_s, event.number) for event in traffic.due(1.9)] == [(1.75, 1)]
    assert [event.number for event in traffic.due(9.0)] == [2]
    traffic.answered(1, 9.5)
    assert [(event.time_s, event.number) for event in traffic.due(9.5)] == [(9.5, 3)]
    assert traffic.next_s is None


def test_clients_take_rows_in_turn() -> None:
    traffic = Traffic((TraceRow(0.0, 1, 1) for _ in range(4)), concurrency=2, think_time_s=0.5)
    assert [event.number for event in traffic.due(0.0)] == [0, 1]
    assert list(traffic.due(9.0)) == []
    traffic.answered(1, 10.0)
    assert traffic.next_s == 10.5
    assert [(event.time_s, event.number) for event in traffic.due(11.0)] == [(10.5, 2)]


def test_who_has_an_answer_does_not_give_up() -> None:
    rows = [TraceRow(0.0, 1, 1, abort_after_s=1.0), TraceRow(0.0, 1, 1, abort_after_s=2.0), TraceRow(2.0, 1, 1)]
    traffic = Traffic(iter(rows))
    assert [type(event) for event in traffic.due(0.0)] == [Send, Send]
    traffic.answered(0, 0.5)
    assert list(traffic.due(3.0)) == [GiveUp(2.0, 1), Send(2.0, 2, rows[2])]
