"""Who waited for what, and why, in plain words, from the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from policies.core.errors import UserError
from sim.report.lives import in_words, life
from sim.report.view import RunView
from sim.report.words import CAUSES, OUTCOMES, PHASES
from sim.wording import digits, percent, seconds
from traces.record.read import expand_steps

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 5
_SOON_S = 1e-9


def explain_request(view: RunView, request_id: int) -> list[str]:
    """The life of one request, line by line. Raises a UserError if the record does not know it."""
    table = view.requests
    mine = table[table["id"] == request_id]
    if not len(mine):
        known = f"{table['id'].min()} to {table['id'].max()}" if len(table) else "none"
        raise UserError(f"--request {request_id}: no such request in this run; its ids are {known}")
    row = next(mine.itertuples())
    if row.outcome != "finished":
        text = OUTCOMES[row.outcome]
        lines = [f"Request {row.id}: {row.prompt_tokens:,} tokens of prompt; it is one of those {text} ({row.reason})."]
        if np.isnan(row.first_scheduled_s):
            return [*lines, f"It arrived at {_at(row.arrival_s)} and never got into the batch."]
    else:
        lines = [in_words(life(view, row))]
    return [*lines, *_queue(view, row), *_course(view, row), *_ranks(view, row)]


def explain_step(view: RunView, step: int) -> list[str]:
    """What one step did, who was in it, and what kept the others out. Needs a record with steps."""
    rows = view.record.steps
    if rows is None:
        raise UserError("--step: this record has no steps; run again with --set sim.record=steps")
    last = int((rows["step"] + rows["steps"]).max()) - 1 if len(rows) else -1
    mine = rows[(rows["step"] <= step) & (step < rows["step"] + rows["steps"])]
    if not len(mine):
        raise UserError(f"--step {step}: no such step in this run; it has steps 0 to {last}")
    table = expand_steps(mine)
    row = next(table[table["step"] == step].itertuples())
    lines = [
        f"Step {step:,} of {last + 1:,} ran from {_at(row.start_s)} for {seconds(row.end_s - row.start_s)}.",
        _work(row),
        f"{_requests(row.running)} in the batch, {row.waiting:,} waiting"
        + (f", {row.swapped:,} swapped out" if row.swapped else "")
        + f"; {row.free_blocks:,} of {view.summary['kv']['num_gpu_blocks']:,} KV blocks were free.",
        _kept_out(row),
    ]
    group = int(view.summary["config"]["parameters"].get("num_scheduler_steps", 1))
    if group > 1 and row.num_seqs:
        lines.insert(1, f"It is one of {group} on one plan, whose tokens come together: the first has the time of all.")
    if int(mine.iloc[0]["steps"]) > 1:
        alike = int(mine.iloc[0]["steps"])
        lines.append(f"It is one of {alike:,} like steps in a row, in which nobody came or went.")
    middle_s = (row.start_s + row.end_s) / 2
    return [*lines, *_in_batch(view, middle_s), *_waiting_at(view, middle_s)]


def _work(row: Any) -> str:
    parts = []
    if row.emitting:
        parts.append(f"one token for each of {row.emitting:,} decoding requests" if row.emitting > 1 else "one token")
    if row.chunk_tokens:
        done = f", which completed {row.chunk_emits:,} of these prompts" if row.chunk_emits else ""
        parts.append(f"{row.chunk_tokens:,} tokens of prompts{done}")
    if row.moved_bytes:
        parts.append(f"{digits(row.moved_bytes / 1e6)} MB over the swap link before it")
    return f"It computed {' and '.join(parts)}." if parts else "It computed nothing that a request could use."


def _kept_out(row: Any) -> str:
    if row.limited_by == "arrivals":
        return "No request was kept out: nothing was waiting."
    return f"No further request was let in: {CAUSES.get(row.limited_by, row.limited_by)}."


def _queue(view: RunView, row: Any) -> list[str]:
    """Who was ahead, what kept it out, and whose end let it in."""
    table = view.requests
    ahead = (table["arrival_s"] < row.arrival_s) & (
        table["first_scheduled_s"].fillna(table["finish_s"]) > row.arrival_s
    )
    lines = [f"It arrived at {_at(row.arrival_s)}, with {_requests(int(ahead.sum()))} waiting before it."]
    if row.queue_s <= _SOON_S:
        return [*lines, "It was taken into the batch at once."]
    lines.append(f"It was first worked on at {_at(row.first_scheduled_s)}, after {seconds(row.queue_s)}.")
    held = _held_s(view, row.arrival_s, row.first_scheduled_s)
    if not any(time_s for cause, time_s in held.items() if cause != "arrivals"):
        return [*lines, "It had to wait for the end of the step that was running, for nothing else."]
    lines += _causes(view, held)
    lines += _in_batch(view, (row.arrival_s + row.first_scheduled_s) / 2, "Half-way through that wait")
    ended = table[np.isclose(table["finish_s"], row.first_scheduled_s, rtol=0, atol=_SOON_S)]
    if len(ended):
        lines.append(f"It got in when {_ids(ended)} ended and made room.")
    passed = (table["arrival_s"] > row.arrival_s) & (table["first_scheduled_s"] < row.first_scheduled_s)
    if passed.any():
        lines.append(f"{_requests(int(passed.sum()))} that came later got in before it.")
    return lines


def _held_s(view: RunView, start_s: float, end_s: float) -> dict[str, float]:
    """Seconds of each limit between two times: exact from steps, else from the intervals of the digest."""
    held: dict[str, float] = {}
    if view.record.steps is not None:
        rows = view.record.steps
        overlap = np.minimum(rows["end_s"], end_s) - np.maximum(rows["start_s"], start_s)
        for cause, time_s in overlap.clip(lower=0).groupby(rows["limited_by"].astype(str)).sum().items():
            held[str(cause)] = float(time_s)
    elif view.digest is not None:
        digest = view.digest
        low_s = digest.start_s + np.arange(len(digest.middle_s)) * digest.width_s
        overlap_s = np.minimum(low_s + digest.width_s, end_s) - np.maximum(low_s, start_s)
        inside = np.clip(overlap_s, 0, None) / digest.width_s
        held = {cause: float(np.sum(time_s * inside)) for cause, time_s in digest.limited_by().items()}
    return held


def _causes(view: RunView, held: dict[str, float]) -> list[str]:
    total_s = sum(held.values())
    parts = [
        f"{percent(time_s / total_s)} of it, {CAUSES.get(cause, cause)}"
        for cause, time_s in sorted(held.items(), key=lambda item: -item[1])
        if total_s and time_s >= 0.01 * total_s
    ]
    about = "" if view.record.steps is not None else " (about: from intervals)"
    return [f"Why nobody else was let in during that time{about}: {'; '.join(parts)}."] if parts else []


def _in_batch(view: RunView, at_s: float, when: str = "In the batch then") -> list[str]:
    """The requests under way at a time that hold most; those preempted just then are counted too."""
    table = view.requests
    inside = table[(table["first_scheduled_s"] <= at_s) & (table["finish_s"].fillna(np.inf) > at_s)]
    if not len(inside):
        return []
    decode_s = inside["finish_s"].fillna(np.inf) - inside["first_token_s"]
    share = ((at_s - inside["first_token_s"]) / decode_s).clip(0, 1).fillna(0.0)
    held = (inside["prompt_tokens"] + share * inside["output_tokens"]).round().astype(int)
    largest = held.sort_values(ascending=False, kind="stable").head(_NAMED)
    names = ", ".join(f"{inside.at[place, 'id']} ({tokens:,})" for place, tokens in largest.items())
    return [f"{when}: {_requests(len(inside))} under way; the largest, with about so many cached tokens: {names}."]


def _waiting_at(view: RunView, at_s: float) -> list[str]:
    table = view.requests
    since = table["first_scheduled_s"].fillna(table["finish_s"].fillna(np.inf))
    queue = table[(table["arrival_s"] <= at_s) & (since > at_s)]
    if not len(queue):
        return []
    longest = queue.iloc[0]
    return [
        f"Waiting then: {_ids(queue)}; request {longest['id']} for longest, {seconds(at_s - longest['arrival_s'])}."
    ]


def _course(view: RunView, row: Any) -> list[str]:
    """The phases with their times."""
    drawn = life(view, row)
    lines = [
        f"  {_at(phase.start_s)} to {_at(phase.end_s)}, {seconds(phase.end_s - phase.start_s)}: {PHASES[phase.kind]}"
        for phase in drawn.phases
    ]
    if drawn.vague:
        lines.append("  when it was preempted is not in this record: run again with --set sim.record=tokens")
    return ["Its course:", *lines] if lines else []


def _ranks(view: RunView, row: Any) -> list[str]:
    if row.outcome != "finished":
        return []
    lines = []
    for metric, words in (("ttft_s", "time to first token"), ("e2e_s", "whole time")):
        value = getattr(row, metric)
        values = view.values(metric)
        slower = float(np.mean(values > value))
        lines.append(f"Its {words} of {seconds(value)} is longer than that of {percent(1 - slower)} of the requests.")
    return lines


def _ids(table: pd.DataFrame) -> str:
    ids = [str(number) for number in table["id"].tolist()]
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return f"request{'s' if len(ids) > 1 else ''} {', '.join(ids[:_NAMED])}{more}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _at(time_s: float) -> str:
    return f"{time_s:,.3f} s"
