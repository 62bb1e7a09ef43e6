"""Times the event loop of every preset on P8:
``python -m tests.perf.presets [--program PATH] [--runs N] [--json FILE] [NAME...]``.

A run is a whole process of ``batchscope run``, and its rate the ``wall.requests_per_cpu_s`` of its summary. Two rates
are printed: ``raw`` as measured, ``scaled`` to the machine that the targets were set on, by the pure-Python loop of
``tests.perf.run`` that is timed before each run. Targets are for the compiled program and the scaled rate. This only
tells: its exit code does not depend on the targets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from policies.presets import Preset, preset, presets
from sim.runs import write_whole
from tests.perf.run import HERE, Case, Run, measure, run_once

LOOP_S = 0.52
"""What the loop takes on the machine that the targets were set on."""

KEEPS_ORDER_TARGET, RERANKS_TARGET = 20_000, 2_000
"""Requests per CPU second: of presets that keep the order of their queues, and of those that sort it anew."""

ORDER_KEYS = ("order", "scheduling_policy", "scheduling")
"""Parameters that name the order of a queue, by system; ``fcfs`` keeps it."""

RERANKING = frozenset(
    f"policies.systems.{policy}" for policy in ("fair:VirtualTokenCounter", "fastserve:FastServe", "andes:Andes")
)
"""Policies that have one order of their own, and so no parameter that names it."""


def reranks(chosen: Preset) -> bool:
    """True if a preset serves its queue in another order than that of arrival."""
    values = {**chosen.defaults, **chosen.fixed}
    return chosen.policy in RERANKING or any(values.get(key, "fcfs") != "fcfs" for key in ORDER_KEYS)


class Rates(NamedTuple):
    """The median and the extremes, in requests per CPU second."""

    median: float
    lowest: float
    highest: float


def _rates(values: Sequence[float]) -> Rates:
    return Rates(statistics.median(values), min(values), max(values))


class Timed(NamedTuple):
    """What the runs of one preset gave."""

    preset: str
    reranks: bool
    runs: int
    loop_s: float
    raw: Rates
    scaled: Rates

    @property
    def target(self) -> int:
        """Requests per CPU second, at ``LOOP_S``."""
        return RERANKS_TARGET if self.reranks else KEEPS_ORDER_TARGET

    @property
    def is_met(self) -> bool:
        """True if the scaled median reaches the target."""
        return self.scaled.median >= self.target

    def to_dict(self) -> Mapping[str, object]:
        """For ``--json``; every key has its unit."""
        return {
            "preset": self.preset,
            "reranks": self.reranks,
            "runs": self.runs,
            "loop_s": self.loop_s,
            "raw_requests_per_cpu_s": self.raw._asdict(),
            "scaled_requests_per_cpu_s": self.scaled._asdict(),
            "target_requests_per_cpu_s": self.target,
            "is_met": self.is_met,
        }


def timed(chosen: Preset, runs: Sequence[Run]) -> Timed:
    """Figures of the runs of a preset. Each rate is scaled by the loop before it, since a machine's speed drifts."""
    raw = [run.summary["wall"]["requests_per_cpu_s"] for run in runs]
    scaled = [rate * run.loop_s / LOOP_S for rate, run in zip(raw, runs, strict=True)]
    loop_s = statistics.median(run.loop_s for run in runs)
    return Timed(chosen.name, reranks(chosen), len(runs), loop_s, _rates(raw), _rates(scaled))


HEADER = (
    f"{'requests/CPU s':<32}{'raw':>8} {'lowest':>8} {'highest':>8}  {'loop':>7}"
    f"{'scaled':>10} {'lowest':>8} {'highest':>8} {'target':>8}"
)


def line(found: Timed) -> str:
    """A row of the table."""
    raw, scaled = (" ".join(f"{rate:>8,.0f}" for rate in rates) for rates in (found.raw, found.scaled))
    word = "met" if found.is_met else "MISSED"
    return f"{found.preset:<32}{raw}  {found.loop_s:.3f} s  {scaled} {found.target:>8,} {word}"


def case(name: str, runs: int) -> Case:
    """P8 with another preset."""
    return Case(name, (str(HERE / "p8.toml"), "--set", f"engine.preset={name}"), runs=runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [chosen.name for chosen in presets()]
    parser.add_argument("names", nargs="*", metavar="NAME", help="presets, by default all")
    parser.add_argument("--runs", type=int, default=5, help="processes a preset, 5 by default")
    parser.add_argument("--program", help="the batchscope to time, by default the interpreted one of this checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: give at least 1")
    for name in options.names:
        if name not in names:
            parser.error(f"no preset {name}; 'batchscope policies list' has their names")
    options.names = options.names or names
    return options


def main() -> None:
    """Time the presets named on the command line, or all."""
    options = _options()
    program = (options.program,) if options.program else (sys.executable, "-m", "sim.cli.main")
    print(f"{measure((*program, '--version'))[2].strip()}; {options.runs} runs each; scaled to a loop of {LOOP_S} s")
    print(HEADER)
    found = []
    for name in options.names:
        chosen = case(name, options.runs)
        found.append(timed(preset(name), [run_once(program, chosen) for _ in range(chosen.runs)]))
        print(line(found[-1]), flush=True)
    missed = [one.preset for one in found if not one.is_met]
    print(f"{len(found) - len(missed)} of {len(found)} meet their target; missed: {', '.join(missed) or 'none'}")
    if options.json is not None:
        page = {"scaled_to_loop_s": LOOP_S, "presets": [one.to_dict() for one in found]}
        write_whole(options.json, json.dumps(page, indent=2) + "\n")


if __name__ == "__main__":
    main()
