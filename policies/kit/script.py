"""What a scripted run is made of: the limits of an engine, the requests that come, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from policies.core.kv import KvManager
from policies.core.protocols import Services
from policies.core.request import Request, RequestId, Segments, output_segment


class Item(NamedTuple):
    """One request of a script, which comes at ``step``, or after item ``parent`` or ``after`` has ended if that is
    later.

    ``output_tokens`` is what it would make, ``max_tokens`` its limit; ``patience`` steps after it came, its client
    goes away. ``group`` shares a prefix of ``shared`` tokens; a ``parent`` is the turn before, whose whole
    conversation the prompt repeats. ``guess`` is the predicted output, right where None.
    """

    step: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    patience: int | None = None
    group: int | None = None
    shared: int = 0
    parent: int | None = None
    guess: int | None = None
    after: int | None = None

    @property
    def waits_for(self) -> int | None:
        """The item that must have ended before."""
        return self.after if self.parent is None else self.parent


class Guesses:
    """Services of a script: predicted lengths may be wrong; swapping is cheaper for long requests only."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def step_time_s(self, *args: object) -> float:
        """No time."""
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """A large fixed part."""
        return 4.0 + pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """A second a token."""
        return float(num_tokens)

    def predict_output_len(self, request: Request) -> int:
        """The scripted guess."""
        item = self._items[request.id]
        return item.guess or item.output_tokens


class Limits(NamedTuple):
    """Limits of an engine for which a policy is to be built; its pool has ``num_gpu_blocks`` blocks of ``block_size``
    tokens. ``services`` answer what the policy may ask about its world."""

    num_gpu_blocks: int
    block_size: int = 4
    max_model_len: int = 48
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 20
    num_cpu_blocks: int = 16
    enable_prefix_caching: bool = False
    services: Services = Guesses(())

    def kv(self) -> KvManager:
        """Memory of that size, new each time."""
        return KvManager(
            self.num_gpu_blocks,
            self.block_size,
            num_cpu_blocks=self.num_cpu_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def in_words(self) -> str:
        """For a message."""
        return (
            f"{self.num_gpu_blocks} KV blocks of {self.block_size} tokens, max_num_seqs {self.max_num_seqs},"
            f" max_num_batched_tokens {self.max_num_batched_tokens}, max_model_len {self.max_model_len}"
            f"{', prefix caching' if self.enable_prefix_caching else ''}"
        )


def content_of(
    items: Sequence[Item], number: int, before: Mapping[int, Segments], produced: Mapping[RequestId, int]
) -> Segments:
    """What the prompt of an item consists of; ``before`` are the prompts of the items that came, ``produced`` the
    numbers of tokens of those that ended."""
    item = items[number]
    own: Segments = ((f"user:{number}", item.prompt_tokens),)
    if item.parent is not None:
        answer = produced[item.parent]
        said = ((output_segment(item.parent), answer),) if answer else ()
        return (*before[item.parent], *said, *own)
    if item.group is not None:
        return ((f"group:{item.group}", item.shared), *own)
    return own


def in_words(items: Sequence[Item]) -> str:
    """The requests of a script, for a message."""
    return "; ".join(_item_in_words(number, item) for number, item in enumerate(items))


def _item_in_words(number: int, item: Item) -> str:
    words = f"request {number} at step {item.step}: prompt {item.prompt_tokens}"
    if item.group is not None:
        words += f" after {item.shared} tokens that it shares"
    if item.waits_for is not None:
        words += f" once request {item.waits_for} has ended"
    words += f", makes {item.output_tokens} of at most {item.max_tokens}"
    return words if item.patience is None else f"{words}, aborted after {item.patience} steps"
