"""What a policy is tried in: situations that every engine meets, each in a few requests and a small pool."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from policies.kit.script import Item, Limits

BLOCK_SIZE, MAX_MODEL_LEN = 4, 48
_AMPLE = 200
_ONE_LONGEST = MAX_MODEL_LEN // BLOCK_SIZE + 1  # one more, for engines that leave a block unused
NUM_RANDOM = 20


class Scenario(NamedTuple):
    """A script and the engine that it is for; ``words`` say what happens."""

    name: str
    words: str
    limits: Limits
    items: tuple[Item, ...]


def _plain(step: int, prompt: int, output: int, **more: int) -> Item:
    return Item(step, prompt, output, output, **more)


def _limits(num_gpu_blocks: int = _AMPLE, max_num_seqs: int = 4, *, caches: bool = False) -> Limits:
    return Limits(
        num_gpu_blocks,
        BLOCK_SIZE,
        MAX_MODEL_LEN,
        max_num_seqs,
        max_num_batched_tokens=64,
        enable_prefix_caching=caches,
    )


def _family(count: int) -> tuple[Item, ...]:
    """Requests with two system prompts; every third one goes on with the conversation of an earlier one."""
    items: list[Item] = []
    for number in range(count):
        group = _plain(2 * number, 3 + number % 4, 7, group=number % 2, shared=9 + 4 * (number % 2))
        turn = _plain(2 * number, 3, 5, parent=number - 2) if number % 3 == 2 else group
        items.append(turn)
    return tuple(items)


def _stream(longest: Item, count: int = 70) -> tuple[Item, ...]:
    """One long request, and a short one in every step, more than can be served."""
    shorts = [_plain(step, 3, 6) for step in range(count)]
    return (*shorts[: longest.step], longest, *shorts[longest.step :])


def _table() -> tuple[Scenario, ...]:
    tight, exact = _limits(16), _limits(_ONE_LONGEST)
    thirsty = tuple(_plain(number, 5 + number % 3, 20 + number % 4) for number in range(8))
    return (
        Scenario("alone", "one request", _limits(), (_plain(0, 10, 9),)),
        Scenario("one_token", "requests for one token", _limits(), tuple(_plain(n // 2, 4 + n, 1) for n in range(6))),
        Scenario("gap", "nobody for a while", _limits(), (_plain(0, 6, 5), _plain(40, 6, 5), _plain(41, 3, 2))),
        Scenario("burst", "30 requests at once", _limits(), tuple(_plain(0, 3 + n % 9, 4 + n % 5) for n in range(30))),
        Scenario(
            "closed_loop",
            "three clients that wait for each answer",
            _limits(),
            tuple(_plain(0, 5, 4, **({"after": n - 3} if n > 2 else {})) for n in range(18)),
        ),
        Scenario(
            "late",
            "requests that come while others decode",
            _limits(),
            tuple(_plain(7 * n, 4, 30 - 3 * n) for n in range(6)),
        ),
        Scenario(
            "long_prompt",
            "a prompt of nearly max_model_len among short ones",
            _limits(),
            (*(_plain(0, 4, 12) for _ in range(3)), _plain(1, MAX_MODEL_LEN - 4, 4), _plain(2, 4, 6)),
        ),
        Scenario(
            "too_long",
            "prompts longer than max_model_len",
            _limits(),
            (_plain(0, MAX_MODEL_LEN + 9, 5), _plain(0, 5, 5), _plain(1, MAX_MODEL_LEN + 1, 1), _plain(1, 6, 4)),
        ),
        Scenario(
            "length_limit",
            "requests that would outgrow max_model_len or their own max_tokens",
            _limits(),
            (_plain(0, 30, 60), Item(0, 5, 20, 7), _plain(1, MAX_MODEL_LEN - 1, 9)),
        ),
        Scenario("tight", "eight requests in a pool for two", tight, thirsty),
        Scenario("full", "a pool for one longest request, all of it needed", exact, tuple(
            _plain(n, 8 + 12 * (n % 3), 12 + n % 5) for n in range(7))),
        Scenario("outgrow", "requests that the whole pool cannot hold", _limits(7), (
            _plain(0, 40, 4), _plain(0, 6, 40), _plain(1, 5, 4), _plain(9, 4, 6))),
        Scenario("prefixes", "requests that share prefixes", _limits(caches=True), _family(12)),
        Scenario("prefixes_tight", "requests that share prefixes, in a small pool", _limits(18, caches=True),
                 _family(14)),
        Scenario("impatient", "clients that go away", tight, (
            Item(0, MAX_MODEL_LEN - 4, 4, 4, patience=1),
            *(item._replace(patience=(None, 0, 3, 9, 22, 1, 14, 30)[n]) for n, item in enumerate(thirsty)))),
        Scenario("one_seq", "max_num_seqs = 1", _limits(max_num_seqs=1), tuple(_plain(n, 4, 5) for n in range(5))),
    )  # fmt: skip


LONG_AMONG_SHORT = (
    Scenario(
        "stream", "a long request among an endless stream of short ones", _limits(),
        _stream(_plain(5, MAX_MODEL_LEN - 8, 6)),
    ),
    Scenario(
        "stream_tight", "a request that needs most of the pool, among an endless stream of short ones",
        _limits(_ONE_LONGEST, 8), _stream(_plain(5, MAX_MODEL_LEN - 8, 6)),
    ),
)  # fmt: skip
"""Whoever is overtaken must run in the end: the long request before the stream ends."""

ABORTED = Scenario(
    "aborted",
    "one client goes away, at every possible step",
    _limits(16),
    tuple(_plain(n, 5 + 8 * n, 11 - n) for n in range(5)),
)
"""Tried with each request aborted after each number of steps."""


def random_scenario(seed: int, *, caches: bool | None = None) -> Scenario:
    """Requests and an engine drawn at random: pools from hardly one request to ample, prefixes, turns, aborts."""
    random = Random(seed)
    caching = random.random() < 0.4 if caches is None else caches
    num_blocks = random.choice((_ONE_LONGEST, 16, 24, _AMPLE))
    limits = _limits(num_blocks, random.choice((1, 2, 3, 5, 8)), caches=caching)
    items: list[Item] = []
    step = 0
    for number in range(random.randint(1, 12)):
        step += random.choice((0, 0, 0, 1, 2, 5, 20))
        items.append(_random_item(random, step, number))
    return Scenario(f"random_{seed}", f"requests drawn at random (seed {seed})", limits, tuple(items))


def _random_item(random: Random, step: int, number: int) -> Item:
    output = random.randint(1, 24)
    kind = random.choice(("plain", "plain", "group", "turn"))
    return Item(
        step=step,
        prompt_tokens=random.choice((random.randint(1, 20), random.randint(1, MAX_MODEL_LEN + 2))),
        output_tokens=output,
        max_tokens=random.choice((output, output, max(1, output // 2), output + 7)),
        patience=random.choice((None, None, random.randint(1, 30))),
        group=random.randint(0, 1) if kind == "group" else None,
        shared=random.randint(1, 17) if kind == "group" else 0,
        parent=random.randrange(number) if kind == "turn" and number else None,
        guess=random.choice((None, random.randint(1, 30))),
    )


SCENARIOS = (*_table(), *(random_scenario(seed) for seed in range(NUM_RANDOM)))
"""What the rules are held against."""
