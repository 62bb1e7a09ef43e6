"""Random whole runs for a policy, of five kinds; each kind holds what can make a jump differ from steps.

open       Poisson arrivals, clients without patience, follow-up turns
bursts     many arrivals at one instant, a tight pool, shared prefixes
closed     clients that ask again at once, some without patience
thinking   clients that think in between, a time limit
boundaries arrivals, aborts and the time limit exactly at the end of a step
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from random import Random

from policies.core.request import Segments
from tests.variants import Size, Variant
from tests.worlds import SHIPPED, Case, KnottyCosts, run_case, workload_of
from traces.workload.rows import TraceRow

KINDS = ("open", "bursts", "closed", "thinking", "boundaries")
_MAX_MODEL_LEN = 256
_CHILD = 0.2


def random_case(variant: Variant, kind: str, seed: int) -> Case:
    """A run of one kind; the same for the same arguments."""
    return _Draw(variant, Random(f"{kind} {seed}")).case(kind)


@dataclass
class _Draw:
    variant: Variant
    random: Random

    def case(self, kind: str) -> Case:
        random = self.random
        rows = self._rows(gap_s=0.0 if kind in ("closed", "thinking") else random.choice((0.02, 0.06, 0.2)))
        if kind == "bursts":
            rows = [row._replace(arrival_s=row.arrival_s // 0.25 * 0.25) for row in rows]
        concurrency = random.randint(1, 12) if kind in ("closed", "thinking") else None
        think_time_s = random.choice((0.001, 0.05, 0.4)) if kind == "thinking" else 0.0
        if concurrency:
            rows = [row._replace(arrival_s=0.0, parent_id=None) for row in rows]
        case = Case(
            self.variant,
            self._size(tight=kind == "bursts"),
            workload_of(rows, concurrency=concurrency, think_time_s=think_time_s),
            KnottyCosts() if random.random() < 0.5 else SHIPPED,
            max_time_s=random.uniform(0.2, 2.0) if kind == "thinking" and random.random() < 0.5 else None,
            biased=random.random() < 0.5,
        )
        return self._at_boundaries(case, rows) if kind == "boundaries" else case

    def _size(self, *, tight: bool) -> Size:
        random = self.random
        return Size(
            num_gpu_blocks=random.randint(17, 40) if tight else random.choice((24, 60, 200)),
            max_model_len=_MAX_MODEL_LEN,
            max_num_seqs=random.choice((3, 6, 12)),
            max_num_batched_tokens=random.choice((24, 64, 300)),
            num_cpu_blocks=random.choice((0, 20, 100)),
            pieces_per_block=random.choice((1, 64)),
        )

    # -- requests --------------------------------------------------------------------------------------------

    def _rows(self, gap_s: float) -> list[TraceRow]:
        random = self.random
        rows: list[TraceRow] = []
        now_s = 0.0
        for number in range(random.randint(20, 45)):
            if gap_s and number > 2:
                now_s += random.expovariate(1.0 / gap_s)
            rows.append(self._row(rows, now_s))
        return rows

    def _row(self, rows: list[TraceRow], now_s: float) -> TraceRow:
        random = self.random
        output = random.choice((random.randint(1, 12), random.randint(1, 70), random.randint(40, 120)))
        parent = random.randrange(len(rows)) if rows and random.random() < _CHILD else None
        segments = self._segments(rows, parent)
        return TraceRow(
            arrival_s=now_s,
            prompt_tokens=sum(length for _, length in segments),
            output_tokens=output,
            max_tokens=random.choice((None, output, max(1, output // 2), output + 9)),
            parent_id=parent,
            segments=segments if random.random() < 0.7 else (),
            abort_after_s=random.choice((None, None, None, random.uniform(0.001, 1.5))),
        )

    def _segments(self, rows: list[TraceRow], parent: int | None) -> Segments:
        random, number = self.random, len(rows)
        own = (f"user:{number}", random.choice((random.randint(1, 30), random.randint(1, 150))))
        if parent is not None and rows[parent].segments and rows[parent].prompt_tokens < _MAX_MODEL_LEN:
            return (*rows[parent].segments, (f"out:{parent}", rows[parent].output_tokens), own)
        if random.random() < 0.5:
            return ((f"group:{random.randint(0, 2)}", random.choice((16, 40, 64))), own)
        return (own,)

    # -- boundaries ------------------------------------------------------------------------------------------

    def _at_boundaries(self, case: Case, rows: list[TraceRow]) -> Case:
        """Add requests that come, and clients that leave, at the very end of steps, from the first on: what comes
        later does not move the boundaries before it. The run ends at one too."""
        random = self.random
        after_s = 0.0
        for _ in range(6):
            boundaries = run_case(case, skip_ahead=False).kept.boundaries()
            ahead = [end_s for end_s in boundaries if end_s > after_s]
            if not ahead:
                break
            after_s = ahead[min(random.randint(0, 25), len(ahead) - 1)]
            rows = self._with_event(rows, after_s)
            case = case._replace(workload=workload_of(rows))
        boundaries = run_case(case, skip_ahead=False).kept.boundaries()
        return case._replace(max_time_s=random.choice(boundaries))

    def _with_event(self, rows: list[TraceRow], time_s: float) -> list[TraceRow]:
        random = self.random
        earlier = [number for number, row in enumerate(rows) if row.arrival_s < time_s and not row.parent_id]
        if earlier and random.random() < 0.5:
            number = random.choice(earlier)
            patience_s = _patience_s(rows[number].arrival_s, time_s)
            return [*rows[:number], rows[number]._replace(abort_after_s=patience_s), *rows[number + 1 :]]
        place = sum(row.arrival_s <= time_s for row in rows)
        new = TraceRow(time_s, random.randint(1, 60), random.randint(1, 40))
        moved = [
            row._replace(parent_id=row.parent_id + 1)
            if row.parent_id is not None and row.parent_id >= place
            else row
            for row in rows[place:]
        ]
        return [*rows[:place], new, *moved]


def _patience_s(start_s: float, end_s: float) -> float:
    """The patience that runs out exactly at ``end_s``, if floating point has one; else one within an ulp."""
    patience_s = end_s - start_s
    for candidate_s in (patience_s, nextafter(patience_s, inf), nextafter(patience_s, 0.0)):
        if start_s + candidate_s == end_s:
            return candidate_s
    return patience_s
