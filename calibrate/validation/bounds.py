"""What no card can beat: bytes over bandwidth and FLOPs over peak of a whole case, and the cases that claim to."""

from __future__ import annotations

from calibrate.validation.cases import Case
from calibrate.validation.setups import Target
from sim.costs.floor import Floor, bound_output_tokens_per_s, floor_of

_SLACK = 0.01
"""Nominal figures of a card are rounded so."""
_USABLE = 0.95
_MOST_SEQS = 4_096


def batch_bound_s(case: Case, target: Target) -> float | None:
    """Least seconds of a batch that arrives at once and is computed together, with perfect overlap and memory for all
    of it; None where its size is not known."""
    prompt, output, batch = case.prompt.mean, case.output.mean, case.num_requests
    if case.kind != "offline_batch" or prompt is None or output is None or batch is None:
        return None
    floor = floor_of(target.shape, target.card)
    tokens, steps = round(prompt), round(output)
    prefill_s = floor.step_s(batch * tokens, batch, 0, batch * tokens * (tokens + 1) // 2)
    return prefill_s + sum(_decode_s(floor, batch, tokens + step) for step in range(steps - 1))


def _decode_s(floor: Floor, batch: int, context: int) -> float:
    return floor.decode_s(batch, batch * context)


def tokens_bound_per_s(case: Case, target: Target) -> float | None:
    """Output tokens a second that no schedule exceeds, with all of the memory for weights and KV."""
    prompt, output = case.prompt.mean, case.output.mean
    if prompt is None or output is None:
        return None
    shape, card = target.shape, target.card
    pool = (_USABLE * card.memory_bytes - shape.weight_bytes) / shape.kv_bytes_per_token
    clients = case.concurrency if case.kind in ("closed_loop", "offline_batch") else None
    return bound_output_tokens_per_s(
        shape,
        card,
        mean_context_tokens=prompt + output / 2,
        prompt_tokens_per_output_token=prompt / output,
        pool_tokens=max(1, round(pool)),
        max_num_seqs=clients or _MOST_SEQS,
    )


def impossible(case: Case, target: Target) -> str | None:
    """How a measurement beats its card, in words; None for one that does not."""
    bound_s = batch_bound_s(case, target)
    measured_s = case.measured.get("e2e_batch_s")
    if bound_s is not None and measured_s is not None and measured_s < (1 - _SLACK) * bound_s:
        return f"impossible: {measured_s:.3g} s, but the card's bytes or FLOPs take {bound_s:.3g} s"
    bound, measured = tokens_bound_per_s(case, target), case.measured.get("output_tok_s")
    if bound is not None and measured is not None and measured > (1 + _SLACK) * bound:
        return f"impossible: {measured:.5g} output tokens/s, but the card's bytes or FLOPs allow {bound:.5g}"
    return None
