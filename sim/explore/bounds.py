"""Limits that no load can meet: below what a request alone gets, or even below what the card can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.explore.limits import Limit
from sim.explore.loads import Loads
from sim.explore.measures import reading_s, statistic_of
from sim.wording import digits, seconds


class Refusal(NamedTuple):
    """A limit that cannot be met: ``alone_s`` is what requests that are alone on the server get, ``floor_s`` the least
    that the card's data sheet allows (None: the statistic has none)."""

    limit: Limit
    alone_s: float
    floor_s: float | None

    @property
    def factor(self) -> float:
        """How many times the limit even a request alone needs."""
        return self.alone_s / self.limit.limit_s

    def in_words(self) -> str:
        """The refusal in a sentence."""
        words = f"{self.limit.in_words()} cannot be met: a request alone on the server gets {seconds(self.alone_s)}"
        words += f", {digits(self.factor)} times as much" if self.factor >= 1.01 else ""
        if self.floor_s is None:
            return f"{words}."
        work = "weights and KV cache read once at full bandwidth"
        if self.limit.latency == "ttft":
            work = "the larger of weights read once and the prompt's matrix work at full speed"
        bound = f"the floor of this model on this card ({work}) is {seconds(self.floor_s)}"
        if self.floor_s > self.limit.limit_s:
            return f"{words}; {bound}, so that no software on it can."
        return f"{words}; {bound}."


def refusals(loads: Loads, limits: Sequence[Limit]) -> list[Refusal]:
    """The limits that not even requests alone on the server meet."""
    found = []
    for limit in limits:
        alone_s = reading_s(loads.alone, limit)
        if alone_s is not None and alone_s > limit.limit_s:
            found.append(Refusal(limit, alone_s, floor_s(loads, limit)))
    return found


def floor_s(loads: Loads, limit: Limit) -> float | None:
    """The least value of the statistic by the card's data sheet: of TTFT one pass over the prompt, of the gaps between
    tokens one decode step of the request alone; None for what is not a single step."""
    if limit.latency not in ("ttft", "itl", "tpot"):
        return None
    setup = loads.source.setup()
    floor = setup.costs.floor
    values, weights = [], []
    for row in loads.draws[0].rows:
        if row.prompt_tokens <= limit.above or (limit.at_most is not None and row.prompt_tokens > limit.at_most):
            continue
        if limit.latency == "ttft":
            pairs = row.prompt_tokens * (row.prompt_tokens + 1) // 2
            values.append(floor.step_s(row.prompt_tokens, 1, 0, pairs) - limit.per_prompt_token_s * row.prompt_tokens)
            weights.append(1)
        else:
            values.append(floor.decode_s(1, row.prompt_tokens + row.output_tokens // 2))
            weights.append(row.output_tokens if limit.latency == "itl" else 1)
    return statistic_of(np.sort(np.repeat(values, weights)), limit.statistic)
