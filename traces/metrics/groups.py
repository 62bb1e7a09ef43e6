"""The metrics of parts of the requests (by client, priority, prompt length), and how evenly they are served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.core.request import Slo
from traces.metrics.goodput import Goodput, goodput
from traces.metrics.requests import OUTCOMES, RequestColumns
from traces.metrics.stats import Stats

PROMPT_BOUNDS = (256, 1024, 4096, 16384)
"""Longest prompt of each class but the last, in tokens."""

MAX_GROUPS = 100
"""Most groups that a grouping lists: those with most requests."""


class Group(NamedTuple):
    """Metrics of some of the requests; ``latencies`` and ``goodput`` as in ``RunMetrics``, without the inter-token
    latency, which is kept for all requests together."""

    offered: int
    counts: dict[str, int]
    output_tokens_per_s: float | None
    latencies: dict[str, Stats | None]
    goodput: Goodput | None


class Grouping(NamedTuple):
    """All requests by one attribute. ``left_out`` groups, the smallest ones, are not listed but count in the indices.

    ``jain_tokens`` is Jain's index (R. Jain, D. Chiu, W. Hawe 1984) over the groups' tokens, prompts that got an
    answer and output together: 1 where all got the same, 1 / groups where one got everything.
    ``jain_speed`` is that of the groups' mean speed, a finished request's output tokens over its time from arrival to
    end; it does not depend on who asks for how much.
    """

    jain_tokens: float | None
    jain_speed: float | None
    left_out: int
    groups: dict[str, Group]


def groupings(
    requests: RequestColumns, clients: Sequence[str], limits: Slo | None, duration_s: float
) -> dict[str, Grouping]:
    """Those of ``client``, ``priority`` and ``prompt_tokens`` that have two groups or more."""
    found = {}
    for name, (codes, labels) in _attributes(requests, clients):
        present = np.bincount(codes, minlength=len(labels))
        if np.count_nonzero(present) > 1:
            found[name] = _grouping(requests, codes, labels, present, limits, duration_s)
    return found


def jain(shares: NDArray[np.float64]) -> float | None:
    """Jain's index of the shares; None where there are none, or nothing to share."""
    squares = float(np.sum(shares * shares))
    return float(np.sum(shares)) ** 2 / (len(shares) * squares) if squares > 0.0 else None


def prompt_class_names() -> list[str]:
    """Names of the classes of prompt lengths."""
    lows = [0, *(bound + 1 for bound in PROMPT_BOUNDS)]
    names = [f"{low:,}-{high:,}" for low, high in zip(lows, PROMPT_BOUNDS, strict=False)]
    return [f"up to {PROMPT_BOUNDS[0]:,}", *names[1:], f"over {PROMPT_BOUNDS[-1]:,}"]


def _attributes(
    requests: RequestColumns, clients: Sequence[str]
) -> Iterator[tuple[str, tuple[NDArray[np.int64], list[str]]]]:
    """Attribute, code of each request, and what the codes mean."""
    if len(clients) > 1:
        yield "client", (requests.client.astype(np.int64), [name or "(none)" for name in clients])
    priority = requests.priority
    if len(priority) and priority.min() != priority.max():
        values, codes = np.unique(priority, return_inverse=True)
        yield "priority", (codes.astype(np.int64), [str(value) for value in values.tolist()])
    if len(priority):
        lengths = requests.prompt_tokens
        if np.searchsorted(PROMPT_BOUNDS, lengths.min()) != np.searchsorted(PROMPT_BOUNDS, lengths.max()):
            yield "prompt_tokens", (np.searchsorted(PROMPT_BOUNDS, lengths), prompt_class_names())


def _grouping(
    requests: RequestColumns,
    codes: NDArray[np.int64],
    labels: list[str],
    present: NDArray[np.int64],
    limits: Slo | None,
    duration_s: float,
) -> Grouping:
    there = np.flatnonzero(present)
    # Most requests first, ties in the order of the labels, so that the answer does not depend on the sort.
    kept = set(there[np.argsort(-present[there], kind="stable")][:MAX_GROUPS].tolist())
    groups = {labels[code]: _group(requests.where(codes == code), limits, duration_s) for code in sorted(kept)}
    answered = np.where(np.isnan(requests.first_token_s), 0, requests.prompt_tokens)
    tokens = np.bincount(codes, answered + requests.output_tokens, len(labels))[there]
    finished = requests.is_finished & (requests.finish_s > requests.arrival_s)
    took_s = requests.e2e_s[finished]
    speeds = np.bincount(codes[finished], requests.output_tokens[finished] / took_s, len(labels))[there]
    ended = np.bincount(codes[finished], minlength=len(labels))[there]
    mean = np.divide(speeds, ended, out=np.zeros(len(there)), where=ended > 0)
    return Grouping(jain(tokens.astype(np.float64)), jain(mean), len(there) - len(groups), groups)


def _group(requests: RequestColumns, limits: Slo | None, duration_s: float) -> Group:
    counts = np.bincount(requests.outcome, minlength=len(OUTCOMES)).tolist()
    output = int(requests.output_tokens.sum(dtype=np.int64))
    return Group(
        offered=len(requests.arrival_s),
        counts=dict(zip(OUTCOMES, counts, strict=True)),
        output_tokens_per_s=output / duration_s if duration_s > 0.0 else None,
        latencies=requests.latencies(),
        goodput=goodput(requests, limits, duration_s) if limits else None,
    )
