"""Whether runs can be compared request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from policies.core.errors import UserError
from sim.report.view import RunView

if TYPE_CHECKING:
    import pandas as pd


def check_pairing(views: Sequence[RunView]) -> list[str]:
    """What a reader of a paired comparison must know. Raises a UserError where requests of one number are not the same
    request in all runs, so that pairs mean nothing."""
    base, *others = views
    first = base.requests.set_index("id")
    notices = []
    for view in others:
        table = view.requests.set_index("id")
        common = first.index.intersection(table.index)
        if not len(common):
            both = f"{_where(base)} and {_where(view)}"
            raise UserError(f"{both} have no request in common; compare runs of one workload")
        mine, theirs = table.loc[common], first.loc[common]
        _check_same("prompt", mine["prompt_tokens"], theirs["prompt_tokens"], view, base)
        whole = (mine["reason"].astype(str) == "stop") & (theirs["reason"].astype(str) == "stop")
        _check_same("whole answer", mine["output_tokens"][whole], theirs["output_tokens"][whole], view, base)
        notices += _differences(view, base, len(common), len(first), len(table))
        if not np.allclose(mine["arrival_s"], theirs["arrival_s"]):
            notices.append(
                f"{view.label} and {base.label}: the same requests arrive at different times (another rate, or a closed"
                " loop); they are paired by their number"
            )
    return notices


def _check_same(what: str, mine: pd.Series, theirs: pd.Series, view: RunView, base: RunView) -> None:
    """Raises a UserError that names the first request whose lengths differ."""
    other = np.flatnonzero((mine != theirs).to_numpy())
    if len(other):
        number = mine.index[other[0]]
        raise UserError(
            f"the workloads differ: the {what} of request {number} has {theirs.at[number]:,} tokens in {_where(base)}"
            f" and {mine.at[number]:,} in {_where(view)}; compare runs with the same [workload] and seed, or add"
            " --unpaired"
        )


def _differences(view: RunView, base: RunView, common: int, first: int, second: int) -> list[str]:
    notices = []
    if common < max(first, second):
        notices.append(
            f"{view.label} has {second:,} requests, {base.label} {first:,}; differences are over the {common:,} of both"
        )
    unstable = [of.label for of in (base, view) if of.keeps_up is False]
    if unstable:
        keeps = "does not keep up: its latencies grow" if len(unstable) == 1 else "do not keep up: their latencies grow"
        notices.append(f"{' and '.join(unstable)} {keeps} with the length of the run, so that no interval is given")
    for name in ("model", "hardware", "side"):
        if view.summary[name] != base.summary[name]:
            notices.append(f"{name} differs: {base.summary[name]} ({base.label}), {view.summary[name]} ({view.label})")
    return notices


def _where(view: RunView) -> str:
    return view.label if view.folder is None else str(view.folder)
