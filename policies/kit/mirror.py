"""A backend that knows nothing but plans: it keeps its own block tables and its own memory, slot by slot.

Every token it computes is written to the slot that its tables name, and every step reads back all the context
it attends to: a block freed, reused, swapped or shared at the wrong moment shows up as wrong content. RuleBroken
names the request and the token.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.core.plan import Decode, Finish, Grant, Idle, StepPlan, StepResult, Transfer
from policies.core.request import Request, RequestId, output_segment
from policies.core.stops import Stop
from policies.kit.rules import Rule, RuleBroken

Memory = dict[tuple[int, int], int]
"""What lies in the slots (block, offset) of one tier: names of tokens."""


class MirrorRow:
    """One request: ``known`` tokens, of which ``computed`` have KV; ``token_steps`` numbers the steps that
    made its output. A token's name says all tokens up to it."""

    def __init__(self, request: Request, stop: Stop) -> None:
        self.stop = stop
        self.prompt_tokens = self.known = request.prompt_tokens
        self.computed = 0
        self.ended = False
        self.token_steps: list[int] = []
        segments = request.segments or ((f"in:{request.id}", request.prompt_tokens),)
        self._prompt = [(key, place) for key, length in segments for place in range(length)]
        self._output_key = output_segment(request.id)
        self._names: list[int] = []

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return self.known - self.prompt_tokens

    def name(self, position: int) -> int:
        """Identity of the token at a position."""
        for place in range(len(self._names), position + 1):
            output = (self._output_key, place - self.prompt_tokens)
            token = self._prompt[place] if place < self.prompt_tokens else output
            self._names.append(hash((self._names[-1] if place else 0, token)))
        return self._names[position]


class MirrorBackend:
    """``submit`` applies a plan's deltas; ``collect`` runs it. ``decoding`` are the rows whose prompt is complete."""

    max_in_flight = 1

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.rows: dict[RequestId, MirrorRow] = {}
        self.tables: dict[RequestId, list[int]] = {}
        self.cpu_tables: dict[RequestId, list[int]] = {}
        self.decoding: dict[RequestId, None] = {}
        self._arrived: set[RequestId] = set()
        self._gpu: Memory = {}
        self._cpu: Memory = {}
        self._plan: StepPlan | None = None
        self._time = 0

    def add(self, request: Request, stop: Stop) -> None:
        """A request that plans may name from now on."""
        self.rows[request.id] = MirrorRow(request, stop)

    def end(self, request_id: RequestId) -> int:
        """A request ended without finishing here; returns the tokens it had produced."""
        self.cpu_tables.pop(request_id, None)
        if request_id in self._arrived:  # moved back and not in the batch yet, so that no plan says that it leaves
            self._arrived.remove(request_id)
            del self.tables[request_id]
        self.rows[request_id].ended = True
        return self.rows[request_id].produced

    # -- deltas ----------------------------------------------------------------------------------------------

    def submit(self, plan: StepPlan | Idle) -> int:
        """Book what left, moved, joined and grew."""
        for request_id in plan.leaves:
            del self.tables[request_id]
            self.decoding.pop(request_id, None)
        if isinstance(plan, Idle):
            return -1
        for request_id, mode in plan.preempted:
            if mode == "recompute":
                self.rows[request_id].computed = 0
        for transfer in plan.transfers:
            self._move(transfer)
        starts = {chunk.id: chunk.start for chunk in plan.chunks}
        for request_id, blocks in plan.joins:
            self.tables[request_id] = list(blocks)
            self._arrived.discard(request_id)
            row = self.rows[request_id]
            if request_id not in starts:
                if row.computed != row.known - 1:
                    raise RuleBroken(
                        Rule.CHUNKS,
                        f"request {request_id} joins the decodes with {row.computed} of {row.known} tokens computed;"
                        " give it a chunk",
                    )
                self.decoding[request_id] = None
            elif not row.computed:
                row.computed = starts[request_id]
        self.extend(plan.grants)
        for request_id, start, blocks in plan.remaps:
            self.tables[request_id][start : start + len(blocks)] = blocks
        self._plan = plan
        return plan.step

    def extend(self, grants: Sequence[Grant]) -> None:
        """Append granted blocks."""
        for request_id, blocks in grants:
            self.tables[request_id] += blocks

    def _move(self, transfer: Transfer) -> None:
        if transfer.kind == "out":
            self.cpu_tables[transfer.id] = list(transfer.dst)
        else:
            if self.cpu_tables.pop(transfer.id, None) != list(transfer.src):
                raise RuleBroken(Rule.TOLD, f"request {transfer.id} is swapped in from blocks that it was not moved to")
            self.tables[transfer.id] = list(transfer.dst)
            self._arrived.add(transfer.id)
        if transfer.blocking:
            self.copy(transfer)

    def copy(self, transfer: Transfer) -> None:
        """Move the content, at the end of the transfer."""
        tiers = (self._gpu, self._cpu) if transfer.kind == "out" else (self._cpu, self._gpu)
        for old, new in zip(transfer.src, transfer.dst, strict=True):
            for offset in range(self.block_size):
                if (old, offset) in tiers[0]:
                    tiers[1][new, offset] = tiers[0][old, offset]

    # -- steps -----------------------------------------------------------------------------------------------

    def decodes(self) -> list[RequestId]:
        """The decoding rows that the last plan advances."""
        assert self._plan is not None
        mode = self._plan.decode
        if mode is Decode.ALL:
            return list(self.decoding)
        return [] if mode is Decode.NONE else list(mode)

    def collect(self, ticket: int, steps: int = 1) -> StepResult:
        """Run ``steps`` steps of the plan and say who is done."""
        plan, start = self._plan, self._time
        assert plan is not None
        finished: list[Finish] = []
        for _ in range(steps):
            assert not finished, "a quiet run goes on past a row's last token"
            finished += self._step(plan)
            self._time += 1
        return StepResult(ticket, float(start), float(self._time), steps=steps, finished=tuple(finished))

    def _step(self, plan: StepPlan) -> list[Finish]:
        emits = []
        for request_id in self.decodes():
            row = self.rows[request_id]
            if row.ended:  # holds its slot and costs as if it decoded
                row.computed += 1
                continue
            self._write(request_id, 1)
            emits.append(request_id)
        for chunk in plan.chunks:
            row = self.rows[chunk.id]
            if chunk.start != row.computed:
                raise RuleBroken(Rule.CHUNKS, f"{chunk} does not follow the {row.computed} tokens computed")
            self._write(chunk.id, chunk.num_tokens)
            if chunk.emits != (row.computed == row.known):
                raise RuleBroken(Rule.CHUNKS, f"{chunk} of {row.known} known tokens")
            if chunk.emits:
                emits.append(chunk.id)
                self.decoding[chunk.id] = None
        for request_id in {*emits, *(chunk.id for chunk in plan.chunks)}:
            self._read(request_id)
        return [finish for request_id in emits for finish in self._emit(request_id)]

    def _write(self, request_id: RequestId, count: int) -> None:
        row, table = self.rows[request_id], self.tables[request_id]
        if row.computed + count > len(table) * self.block_size:
            raise RuleBroken(
                Rule.ROOM, f"request {request_id} has {len(table)} blocks for {row.computed + count} tokens"
            )
        for position in range(row.computed, row.computed + count):
            block, offset = divmod(position, self.block_size)
            self._gpu[table[block], offset] = row.name(position)
        row.computed += count
        if row.computed > row.known:
            raise RuleBroken(Rule.TOKENS, f"request {request_id} computes a token that nobody has sampled")

    def _read(self, request_id: RequestId) -> None:
        row, table, size = self.rows[request_id], self.tables[request_id], self.block_size
        for position in range(row.computed):
            found = self._gpu.get((table[position // size], position % size))
            if found != row.name(position):
                block = table[position // size]
                raise RuleBroken(
                    Rule.CONTENT,
                    f"request {request_id} reads block {block} for its token {position}, and other content lies there;"
                    " its blocks were given away or shared too early",
                )

    def _emit(self, request_id: RequestId) -> list[Finish]:
        row = self.rows[request_id]
        row.known += 1
        row.token_steps.append(self._time)
        if row.produced < row.stop.num_output_tokens:
            return []
        row.ended = True
        return [Finish(request_id, row.stop.reason, row.produced)]
