"""Independent random streams of one seed, so that two policies or rates see the same requests.

A stream is a Mersenne Twister of the standard library, seeded by one child of numpy's ``SeedSequence(seed)``.
The seeding is redone here in plain integers because importing numpy takes longer than simulating thousands of
requests; a test holds it equal to numpy's.
"""

from __future__ import annotations

from random import Random

STREAMS = ("arrivals", "prompt_lengths", "output_lengths", "clients", "disturbances", "prefixes")
"""One stream each; the place in this tuple is the child's number, so names are only ever added at the end."""

_MASK = 0xFFFFFFFF
_POOL_WORDS = 4
_WORD_BITS = 32


def stream(seed: int, name: str) -> Random:
    """The random stream ``name`` (one of ``STREAMS``) of ``seed`` >= 0; the same on every machine."""
    words = seed_words(seed, STREAMS.index(name), 8)
    return Random(sum(word << _WORD_BITS * place for place, word in enumerate(words)))


def seed_words(seed: int, child: int, num_words: int) -> list[int]:
    """``SeedSequence(seed).spawn(child + 1)[child].generate_state(num_words)`` of numpy, as plain integers.

    The algorithm is M. E. O'Neill's ``seed_seq_fe`` with the constants of numpy.random.SeedSequence.
    """
    pool = _mixed_pool(_entropy_words(seed, child))
    constant, words = 0x8B51F9DD, []
    for place in range(num_words):
        value = pool[place % _POOL_WORDS] ^ constant
        constant = constant * 0x58F38DED & _MASK
        value = value * constant & _MASK
        words.append(value ^ value >> 16)
    return words


def _entropy_words(seed: int, child: int) -> list[int]:
    """The seed in 32-bit words, filled up to the pool, so that no long seed equals a seed with a child."""
    words = [seed >> shift & _MASK for shift in range(0, max(seed.bit_length(), 1), _WORD_BITS)]
    return words + [0] * (_POOL_WORDS - len(words)) + [child]


def _mixed_pool(entropy: list[int]) -> list[int]:
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _MASK
        value = value * constant & _MASK
        return value ^ value >> 16

    def mixed(x: int, y: int) -> int:
        value = (x * 0xCA01F9DD - y * 0x4973F715) & _MASK
        return value ^ value >> 16

    pool = [hashed(word) for word in entropy[:_POOL_WORDS]]
    for source in range(_POOL_WORDS):
        for target in range(_POOL_WORDS):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in entropy[_POOL_WORDS:]:
        pool = [mixed(old, hashed(word)) for old in pool]
    return pool
