"""Whole simulated runs with everything they leave behind kept in memory, and the first difference of two.

    python -m tests.worlds [REQUESTS]

prints for every preset how long its quiet runs are under the performance workload P8.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

from policies.catalog import card, model
from policies.core.engine import Engine
from policies.core.plan import Chunk
from policies.core.protocols import Policy, StepObserver
from policies.core.request import Request
from policies.presets import presets
from sim.api import prepare
from sim.config import load_config
from sim.costs.load import load_cost_model
from sim.record import Tee
from sim.world.replica import Counts, StepCosts, SwapLink
from sim.world.services import SimServices, TimeCosts
from sim.world.world import Outcome, World
from tests.variants import Size, Variant
from traces.record.columns import StepTable
from traces.record.expand import Expanded, expand
from traces.record.recorder import Recorder
from traces.record.schema import RequestRow, Stall, StepRow
from traces.workload.rows import TraceRow
from traces.workload.source import Workload

SHIPPED = load_cost_model(model("llama-2-7b"), card("a100-80gb"))

def p8(num_requests: int, rate_per_s: float = 8.0) -> list[str]:
    """The performance workload P8 as settings of a configuration."""
    return [
        "workload.generator=poisson",
        f"workload.rate_per_s={rate_per_s}",
        f"workload.num_requests={num_requests}",
        "workload.prompt={dist='uniform', low=50, high=200}",
        "workload.output={dist='uniform', low=100, high=500}",
    ]


class Costs(TimeCosts, StepCosts, Protocol):
    """What a world asks a cost model."""


class KnottyCosts:
    """Costs whose quiet runs end at a knot every few steps, and differ with every argument."""

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """One to seven steps."""
        base_s = 0.011 + 0.0007 * num_seqs + 1e-5 * (max_context % 13)
        return base_s, 1e-6 * (1 + sum_context % 3), 1 + (7 * sum_context + num_seqs) % 7

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Grows with the tokens and with where the chunks start."""
        starts = sum(chunk.start for chunk in chunks)
        return 0.012 + 1e-4 * num_tokens + 3e-4 * num_seqs + 1e-6 * (sum_context + starts)

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """By the piece, with a fixed part that makes short requests cheaper to compute again."""
        return 0.004 + 1e-4 * pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """By the token."""
        return 3e-4 * num_tokens


class Biased(SimServices):
    """Predicts output lengths that are wrong by up to a half, either way."""

    def predict_output_len(self, request: Request) -> int:
        """A pure function of the request."""
        return max(1, super().predict_output_len(request) * (2 + request.id % 5) // 4)


class Kept:
    """A record sink that keeps every row."""

    def __init__(self) -> None:
        self.step_rows: list[StepRow] = []
        self.request_rows: list[RequestRow] = []
        self.stall_rows: list[Stall] = []

    def steps(self, rows: Collection[StepRow]) -> None:
        """Rows of steps."""
        self.step_rows += [StepRow(*row) for row in rows]

    def requests(self, rows: Collection[RequestRow]) -> None:
        """Requests."""
        self.request_rows += [RequestRow(*row) for row in rows]

    def stalls(self, rows: Sequence[Stall]) -> None:
        """Irregular gaps."""
        self.stall_rows += [Stall(*row) for row in rows]

    def close(self) -> None:
        """Nothing is held open."""

    def expanded(self) -> tuple[StepTable, Expanded]:
        """The steps one by one."""
        table = StepTable.of(self.step_rows)
        return table, expand(table.numbers)

    def boundaries(self) -> list[float]:
        """The end of every step in order."""
        return [float(end_s) for end_s in self.expanded()[1].end_s]


class Run(NamedTuple):
    """A finished run: its outcome, its record, and the memory it left."""

    outcome: Outcome
    kept: Kept
    policy: Policy
    memory: dict[str, object]


class Case(NamedTuple):
    """All that decides a run but the skipping."""

    variant: Variant
    size: Size
    workload: Workload
    costs: Costs
    max_time_s: float | None = None
    biased: bool = False


def workload_of(
    rows: Sequence[TraceRow], *, concurrency: int | None = None, think_time_s: float = 0.0
) -> Workload:
    """A workload of given rows."""
    return Workload(
        lambda: iter(rows), len(rows), (), concurrency, think_time_s, "given rows", "trace", "cut"
    )


class Watch(StepObserver, Protocol):
    """An observer that looks at the policy too."""

    policy: Policy | None


def run_case(case: Case, *, skip_ahead: bool, watch: Watch | None = None) -> Run:
    """Run it, with another observer beside the recorder if one is given."""
    size = case.size
    services = (Biased if case.biased else SimServices)(case.costs)
    policy = case.variant.build(size, services)
    kept = Kept()
    at_batch_end = case.variant.deliver_at_batch_end
    block_bytes = size.kv_bytes_per_token * policy.kv.block_size
    recorder = Recorder(
        policy, [kept], block_bytes=block_bytes, keep_segments=True, deliver_at_batch_end=at_batch_end
    )
    observer: StepObserver = recorder
    if watch is not None:
        watch.policy = policy
        observer = Tee(recorder, watch)
    world = World(
        Engine(policy, observer=observer, deliver_at_batch_end=at_batch_end),
        case.costs,
        max_model_len=size.max_model_len,
        link=SwapLink(block_bytes, size.pieces_per_block),
        skip_ahead=skip_ahead,
    )
    services.lengths = world.clients.unanswered
    outcome = world.run(case.workload, recorder, case.max_time_s)
    return Run(outcome, kept, policy, memory_of(policy))


def memory_of(policy: Policy) -> dict[str, object]:
    """Who holds which blocks, and the free ones in order."""
    kv = policy.kv
    return {
        "queues": policy.queues(),
        "tables": dict(kv.tables),
        "cpu tables": dict(kv.cpu_tables),
        "free": kv.pool.free_blocks(),
        "free on the CPU": kv.cpu_pool.free_blocks(),
    }


def first_difference(stepped: Run, jumped: Run) -> str | None:
    """Says where two runs part, bit for bit; None if they do not."""
    for name in ("step_rows", "request_rows", "stall_rows"):
        rows = zip_longest(getattr(stepped.kept, name), getattr(jumped.kept, name))
        for number, (old, new) in enumerate(rows):
            if repr(old) != repr(new):
                return f"{name}[{number}]\n  stepped {old}\n  jumped  {new}"
    facts = [_facts(run) for run in (stepped, jumped)]
    for name, old_fact in facts[0].items():
        if repr(old_fact) != repr(facts[1][name]):
            return f"{name}\n  stepped {old_fact}\n  jumped  {facts[1][name]}"
    return None


def _facts(run: Run) -> Mapping[str, object]:
    outcome = run.outcome._asdict()
    counts: Counts = outcome.pop("counts")
    return {
        **outcome,
        **run.memory,
        "quiet steps": counts.quiet_steps,
        "swapped out": counts.swapped_out_bytes,
        "swapped in": counts.swapped_in_bytes,
    }


# -- quiet runs ----------------------------------------------------------------------------------------------


def quiet_run(preset_name: str, num_requests: int) -> tuple[Counts, float]:
    """How a preset with all its defaults spends its steps at P8: the counts, and decode-only steps a plan. Host time,
    which is known for few presets, is left out."""
    config = load_config(None, [*p8(num_requests), f"engine.preset={preset_name}", "hardware.host_term=false"])
    setup = prepare(config)
    recorder = Recorder(setup.policy, [], deliver_at_batch_end=setup.options.deliver_at_batch_end)
    engine = Engine(
        setup.policy, observer=recorder, deliver_at_batch_end=setup.options.deliver_at_batch_end
    )
    world = World(engine, setup.costs, max_model_len=setup.parameters.max_model_len)
    setup.services.lengths = world.clients.unanswered
    counts = world.run(setup.workload, recorder).counts
    return counts, counts.quiet_steps / counts.quiet_plans


def main() -> None:
    """The table."""
    num_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    print(f"P8 with {num_requests:,} requests\n{'preset':24}{'plans':>10}{'quiet':>10}{'steps':>10}{'mean':>8}")
    for preset in presets():
        counts, mean = quiet_run(preset.name, num_requests)
        print(f"{preset.name:24}{counts.plans:10,}{counts.quiet_plans:10,}{counts.quiet_steps:10,}{mean:8.1f}")


if __name__ == "__main__":
    main()
