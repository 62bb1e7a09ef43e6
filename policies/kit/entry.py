"""What the ledger of a supervised policy knows of one request."""

from __future__ import annotations

from policies.core.plan import Chunk
from policies.core.request import Request
from policies.kit.rules import Rule, RuleBroken


class Entry:
    """One request: ``known`` tokens, of which ``computed`` have KV. ``held`` blocks are those that plans told of while
    it is in the batch, None outside of it. It ``decodes`` after its first token. Only one that ``may_share`` content
    finds a cached prefix."""

    def __init__(self, request: Request, *, may_share: bool) -> None:
        self.may_share = may_share
        self.prompt_tokens = self.known = request.prompt_tokens
        self.computed = 0
        self.decodes = False
        self.held: int | None = None

    def check_chunk(self, chunk: Chunk) -> None:
        """RuleBroken unless the chunk follows what is computed and emits at the end of what is known."""
        request_id, start, num_tokens, emits = chunk
        end = start + num_tokens
        if start != self.computed:
            raise RuleBroken(
                Rule.CHUNKS,
                f"a chunk of request {request_id} starts at token {start} and {self.computed} are computed;"
                " start at row.num_computed_tokens and raise that by each chunk",
            )
        if num_tokens < 1 or end > self.known:
            raise RuleBroken(
                Rule.CHUNKS,
                f"a chunk of request {request_id} goes to token {end} and {self.known} are known;"
                " end it at row.num_tokens",
            )
        if emits != (end == self.known):
            raise RuleBroken(
                Rule.CHUNKS,
                f"a chunk of request {request_id} ends at token {end} of {self.known} and says emits={emits};"
                " it emits if and only if it ends at row.num_tokens",
            )
