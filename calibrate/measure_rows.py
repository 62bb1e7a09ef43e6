"""From the times of whole steps to rows of a profile: attention is what a step takes beyond the same one without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from calibrate.measure_points import Step
from calibrate.profile import Measurement

SOURCE = "executor"
"""Name of the rows' source."""


_LEAST_S = 1e-9
"""What is shorter than the clock tells is still above zero."""

_LOST = 0.02
"""Attention over even contexts that is a smaller part of its step does not tell how much dearer uneven ones are."""


class Timed(NamedTuple):
    """Seconds of steps, of the head by rows, of transfers by blocks, and of the host in steps by decoding sequences
    and chunks."""

    steps: Mapping[Step, float]
    heads: Mapping[int, float]
    swaps: Mapping[int, float]
    hosts: Mapping[tuple[int, int], float]


def rows_of(timed: Timed, layers: int, block_bytes: int) -> Iterator[Measurement]:
    """The rows of a profile: ``layers`` of the model, ``block_bytes`` of a block as the simulator counts them."""
    steps, heads = timed.steps, _heads(timed)
    most = max(heads)
    for rows, seconds in heads.items():
        yield Measurement("head", SOURCE, seconds, sequences=rows)
    for step, seconds in steps.items():
        batch = len(step.contexts)
        if step.silent:
            continue
        if step.bare and step.chunks == 1 and (batch or step.chunk_tokens > most):
            layer_s = max(seconds - heads[batch or 1], _LEAST_S) / layers
            yield Measurement("linear", SOURCE, layer_s, tokens=step.num_tokens)
        elif not step.bare:
            yield from _attention(step, seconds, steps, layers)
    for blocks, seconds in timed.swaps.items():
        yield Measurement("swap", SOURCE, seconds, bytes=blocks * block_bytes, pieces=1)
    for (batch, chunks), seconds in timed.hosts.items():
        operator = "host_prefill" if chunks else "host"
        yield Measurement(operator, SOURCE, seconds, sequences=batch + chunks, chunks=chunks)


def _heads(timed: Timed) -> Mapping[int, float]:
    """Seconds of the head by rows: within steps, where one was timed that samples nothing, else alone.

    Within steps it comes after all layers, with its weights out of the processor's caches, and what the last layer
    computes of sampled rows alone is part of it.
    """
    steps = timed.steps
    silent = next((step for step in steps if step.silent), None)
    if silent is None:
        return timed.heads
    one_s = max(steps[silent._replace(silent=False)] - steps[silent], _LEAST_S)
    more_s = {
        len(step.contexts): seconds - steps[Step(chunk_tokens=len(step.contexts), bare=True)]
        for step, seconds in steps.items()
        if step.bare and step.contexts
    }
    return {rows: max(one_s + seconds, _LEAST_S) for rows, seconds in more_s.items()}


def _attention(step: Step, seconds: float, steps: Mapping[Step, float], layers: int) -> Iterator[Measurement]:
    """One row of a step with attention: of both kinds as a whole, else what attention adds to the step without."""
    batch = len(step.contexts)
    if batch and step.chunk_tokens:
        yield Measurement(
            "step",
            SOURCE,
            seconds,
            sequences=batch,
            context=step.contexts[0] - 1,
            chunks=1,
            chunk_tokens=step.chunk_tokens,
        )
        return
    bare_s = next(
        other_s
        for other, other_s in steps.items()
        if other.bare
        and not other.silent
        and (len(other.contexts), other.chunk_tokens, other.chunks) == (batch, step.chunk_tokens, step.chunks)
    )
    attention_s = max(seconds - bare_s, _LEAST_S) / layers
    if not batch:
        yield Measurement(
            "prefill",
            SOURCE,
            attention_s,
            chunks=step.chunks,
            chunk_tokens=step.chunk_tokens,
            chunk_context=step.chunk_context,
        )
        return
    mean, longest = sum(step.contexts) // batch, max(step.contexts)
    if longest == mean:
        yield Measurement("decode", SOURCE, attention_s, sequences=batch, context=mean - 1)
        return
    even = steps.get(Step((mean,) * batch))
    if even is not None and even - bare_s > _LOST * bare_s:
        even_s = max(even - bare_s, _LEAST_S) / layers
        yield Measurement(
            "uneven",
            SOURCE,
            attention_s,
            sequences=batch,
            context=mean - 1,
            longest_context=longest - 1,
            even_seconds=even_s,
            longest_seconds=even_s * longest / mean,
        )
