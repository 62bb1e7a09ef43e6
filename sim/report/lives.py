"""The life of single requests: which ones to show, and their phases from the record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.report.view import RunView
from sim.wording import seconds

if TYPE_CHECKING:
    import pandas as pd

MAX_LIVES = 60
_OF_A_KIND = 12


class Phase(NamedTuple):
    """A stretch of a request's life; ``kind`` is a key of ``words.PHASES``, times are those of the run."""

    kind: str
    start_s: float
    end_s: float


class Life(NamedTuple):
    """A request: its row of the record, why it was chosen, and its phases in order of time.

    ``vague`` is true where the record does not say when it was preempted (below sim.record = tokens).
    """

    row: Any
    chosen: str
    phases: tuple[Phase, ...]
    vague: bool


def chosen_lives(view: RunView) -> list[Life]:
    """At most ``MAX_LIVES`` finished requests: the slowest, typical ones, the fastest, and those preempted most."""
    table = view.requests
    table = table.assign(hits=table["recompute_preemptions"] + table["swap_preemptions"])
    done = table[table["outcome"] == "finished"].sort_values("e2e_s", kind="stable")
    if not len(done):
        return []
    middle = len(done) // 2
    picks = {
        "preempted most often": done[done["hits"] > 0].sort_values("hits", kind="stable").tail(_OF_A_KIND),
        "slowest": done.tail(_OF_A_KIND),
        "around the median": done.iloc[max(0, middle - _OF_A_KIND // 2) : middle + _OF_A_KIND // 2],
        "fastest": done.head(_OF_A_KIND // 2),
    }
    lives: list[Life] = []
    seen: set[int] = set()
    for chosen, rows in picks.items():
        for row in rows.itertuples():
            if row.id not in seen and len(lives) < MAX_LIVES:
                seen.add(row.id)
                lives.append(life(view, row, chosen))
    return lives


def life(view: RunView, row: Any, chosen: str = "") -> Life:
    """The phases of one request, a row of ``view.requests``."""
    count = row.recompute_preemptions + row.swap_preemptions
    segments = _segments(view, row.id)
    queued = ("waiting", row.arrival_s, row.first_scheduled_s)
    if view.at_batch_end:
        return Life(row, chosen, _known(queued, ("batch", row.first_scheduled_s, row.finish_s)), vague=False)
    first_s = row.first_token_s
    phases = _known(queued, ("prefill", row.first_scheduled_s, first_s))
    if segments is None or not len(segments):
        return Life(row, chosen, phases + _known(("decode", first_s, row.finish_s)), vague=count > 0)
    away = "swapped" if row.swap_preemptions and not row.recompute_preemptions else "preempted"
    now_s = first_s
    for start_s, end_s in _stretches(view, segments):
        if start_s > now_s + 1e-9:
            phases += _known((away, now_s, start_s))
        phases += _known(("decode", max(start_s, first_s), end_s))
        now_s = max(now_s, end_s)
    return Life(row, chosen, phases, vague=False)


def _stretches(view: RunView, segments: pd.DataFrame) -> Iterator[tuple[float, float]]:
    """Start and end of each stretch of decode steps."""
    ends_s = view.record.decode_ends_s
    for token_s, step, steps in zip(segments["first_token_s"], segments["step"], segments["steps"], strict=True):
        end_s = float(ends_s[step + steps - 1]) if steps else math.nan
        before_s = float(ends_s[step - 1]) if step else math.nan
        start_s = token_s if token_s == token_s else before_s
        if not steps:
            end_s = start_s
        if start_s == start_s and end_s == end_s:
            yield float(start_s), float(end_s)


def _segments(view: RunView, request_id: int) -> pd.DataFrame | None:
    table = view.segments
    if table is None or request_id not in table.index:
        return None
    return table.loc[[request_id]]


def _known(*phases: tuple[str, float, float]) -> tuple[Phase, ...]:
    """Those with a beginning and an end, and time in between."""
    return tuple(Phase(kind, float(start_s), float(end_s)) for kind, start_s, end_s in phases if end_s > start_s)


def in_words(life: Life) -> str:
    """What became of the request, in one or two sentences."""
    row = life.row
    counts = [(row.recompute_preemptions, "recomputed"), (row.swap_preemptions, "swapped out and back in")]
    preempted = " and ".join(f"{_times(n)} {what}" for n, what in counts if n)
    words = [f"Request {row.id}: {row.prompt_tokens:,} tokens of prompt, {row.output_tokens:,} of answer."]
    if row.ttft_s == row.ttft_s:
        words.append(f"First token after {seconds(row.ttft_s)}, {seconds(max(row.queue_s, 0.0))} of it in the queue.")
    words.append(f"Done after {seconds(row.finish_s - row.arrival_s)}.")
    if preempted:
        words.append(f"Preempted: {preempted}; {seconds(row.waited_s)} outside the batch in all.")
    return " ".join(words)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
