"""What an audited claim is: its set-up, the figures of its runs, the bound, and the verdict by a stated rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from policies.core.errors import RunError
from sim.report.charts import Figure
from sim.report.figures import Table

VERDICTS = {
    "reproduced": "the runs show it",
    "baseline-dependent": "true against a slow baseline; scheduling and memory alone give less",
    "false": "the runs contradict it",
    "impossible": "no hardware of that kind can do it",
    "undecidable": "what was measured is not stated, so that no run can tell",
}
"""Verdicts and what they mean."""

Tables = Mapping[str, Mapping[str, object]]
"""The tables of a RUN.toml."""

Runner = Callable[[Tables], dict[str, Any]]
"""Runs a configuration and gives its ``summary.json``: the simulator, or an executor of the same RUN.toml."""


class Ruling(NamedTuple):
    """A verdict, in a sentence why, and by how much where it is a matter of figures; ``missing`` is what an undecidable
    claim does not say."""

    verdict: str
    why: str
    missing: str = ""


class Drawing(NamedTuple):
    """A figure of a claim, with what it says in words."""

    title: str
    caption: str
    figure: Figure


class Audited(NamedTuple):
    """What came of a claim. ``figures`` are the numbers that the ruling rests on, by name with their unit; ``bound``
    says what the hardware allows, in a sentence; ``setup`` takes the place of the claim's where runs differ from it."""

    ruling: Ruling
    figures: Mapping[str, float]
    bound: str
    tables: Sequence[Table]
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    setup: Sequence[tuple[str, str]] = ()


class Claim(NamedTuple):
    """A claim to audit: ``says`` what is claimed, ``setup`` what is run, as (what, how), ``rule`` how figures become a
    verdict. ``audit`` runs it; ``execute`` does, too, in fewer runs, by an executor on whatever model and device it has
    (None: the claim is about a model or a card)."""

    id: str
    says: str
    setup: Sequence[tuple[str, str]]
    rule: str
    audit: Callable[[Runner], Audited]
    execute: Callable[[Runner], Audited] | None = None


def executed(tables: Tables) -> dict[str, Any]:
    """Run a configuration on the real executor, with the smallest model. Needs torch."""
    from importlib import import_module

    # The executor's front end stands above the simulator, which loads it by name as its command line does.
    summary: dict[str, Any] = import_module("calibrate.execute_claims").executed(tables)
    return summary


def simulated(tables: Tables) -> dict[str, Any]:
    """Run a configuration in the simulator. Raises a RunError where it does not complete."""
    from sim.api import prepare, run_setup
    from sim.config import config_from_tables

    result = run_setup(prepare(config_from_tables(tables)))
    if result.exit_code:
        raise RunError(f"a run of the audit did not complete ({result.status}): {result.message}")
    return result.summary


@contextmanager
def trace_of(rows: Sequence[tuple[int, int]]) -> Iterator[str]:
    """A trace of requests that all come at once, by (prompt tokens, output tokens); the path of its file."""
    with TemporaryDirectory(prefix="batchscope-") as folder:
        path = Path(folder) / "requests.csv"
        lines = [f"0,{prompt},{output}" for prompt, output in rows]
        path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines, ""]), encoding="utf-8")
        yield str(path)


def at_once(num_requests: int, prompt: Mapping[str, object], output: Mapping[str, object]) -> dict[str, object]:
    """[workload] of requests that all come within a moment."""
    return {
        **{"generator": "constant", "rate_per_s": 1e6, "num_requests": num_requests},
        **{"prompt": dict(prompt), "output": dict(output)},
    }


def fixed(tokens: int) -> dict[str, object]:
    """Every length the same."""
    return {"dist": "fixed", "value": tokens}


def times(ratio: float) -> str:
    """``13.6x``."""
    return f"{ratio:.3g}x"
