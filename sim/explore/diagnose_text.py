"""A diagnosis in plain words: sentences, tables, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim.explore.diagnose_cause import CAUSES, LEAST_SHARE
from sim.explore.diagnose_effects import STATED, Change
from sim.explore.diagnose_rerun import Tried
from sim.latencies import in_short
from sim.report.figures import Table, relative
from sim.report.words import CAUSES as KEPT_OUT
from sim.report.words import GAP_CAUSES, OUTCOMES
from sim.wording import digits, percent, seconds

if TYPE_CHECKING:
    from sim.explore.diagnose import Diagnosis

SCHEMA = 1

PARTS = {
    "work": "being computed, undisturbed",
    "prefill": "held up by prompts of other requests",
    "host": "while the host (CPU) worked and the card idled",
    "link": "while KV blocks moved between card and host",
    "swapped": "swapped out to CPU memory",
    "wait.max_num_seqs": "in the queue: the batch was full (max_num_seqs)",
    "wait.token_budget": "in the queue: the tokens of the steps were used up",
    "wait.kv_blocks": "in the queue: too little free KV cache",
    "wait.batch": "in the queue: the batch in progress went on first",
    "wait.swapped": "in the queue: swapped-out requests came back first",
    "wait.step": "in the queue until the step under way ended",
}
"""Parts of the requests' time (``Evidence.life``) in words."""


_MISSED = "nothing holds the requests up, yet the steps themselves take too long"


def finding(diagnosis: Diagnosis) -> list[str]:
    """Sentences on what limits the run, what shows it, and what helps."""
    cause = CAUSES[diagnosis.cause]
    if diagnosis.is_healthy:
        lead = f"This run is healthy: {cause.meaning}."
    else:
        share = diagnosis.verdict.shares.get(diagnosis.cause, 0.0)
        took = f" It takes {percent(share)} of the time that requests spend in the system." if share else ""
        meaning = _MISSED if diagnosis.cause == "card" and diagnosis.evidence.keeps_up is not False else cause.meaning
        lead = f"What limits this run is {_the(cause.title)}: {meaning}.{took}"
    others = [_the(CAUSES[name].title) for name in diagnosis.verdict.others]
    more = [f"Behind it: {', '.join(others)}."] if others else []
    return [*_ended(diagnosis), lead, _proof(diagnosis), *more, *_advice(diagnosis)]


def _the(title: str) -> str:
    return title if title.startswith(("the ", "batches", "prefill", "slots")) else f"the {title}"


def _ended(diagnosis: Diagnosis) -> list[str]:
    summary = diagnosis.view.summary
    if summary["status"] != "completed":
        return [f"The run did not complete ({summary['status']}); this is about what ran."]
    counts = summary["requests"]
    missing = [f"{counts[name]:,} {words}" for name, words in OUTCOMES.items() if counts[name]]
    total = counts["offered"] - counts["finished"]
    return [f"{total:,} of {counts['offered']:,} requests got no answer: {', '.join(missing)}."] if missing else []


def _proof(diagnosis: Diagnosis) -> str:
    """The figures that show the cause."""
    of, parameters = diagnosis.evidence, diagnosis.view.summary["config"]["parameters"]
    held = of.limited_by
    seats, budget = parameters.get("max_num_seqs"), parameters.get("max_num_batched_tokens")
    if diagnosis.cause == "slots":
        return f"For {percent(held.get('max_num_seqs', 0.0))} of the busy time the batch had all {seats:,} requests."
    if diagnosis.cause == "token_budget":
        return f"For {percent(held.get('token_budget', 0.0))} of the busy time a step's {budget:,} tokens were used up."
    if diagnosis.cause == "kv_pool":
        text = f"The KV pool was {percent(of.kv_mean)} full on average"
        if of.kv_empty > 0.2:
            text += f", and {percent(of.kv_empty)} of that was reserved but empty"
        if of.preemptions:
            text += f"; {of.preemptions:,} preemptions made it compute {percent(of.recomputed)} more tokens"
        return f"{text}."
    if diagnosis.cause == "prefill":
        beside, plain = of.gaps["prefill"], of.gaps["decode"]
        return (
            f"Half of the plain decode steps take at most {seconds(plain.p50_s)}; with a prompt in between, 1 % of the"
            f" gaps between tokens exceed {seconds(beside.p99_s)}."
        )
    if diagnosis.cause == "swap_link":
        moved = f"{digits(of.moved_bytes / 1e9)} GB"
        return f"Steps spent {percent(of.link)} of their time moving {moved}, for {of.preemptions:,} preemptions."
    if diagnosis.cause == "host":
        return f"{percent(of.host)} of the steps' time is the host's."
    if diagnosis.cause == "batch":
        return f"{percent(of.slot_waste)} of the batches' slots were spent on answers that had already ended."
    return _load(diagnosis)


def _load(diagnosis: Diagnosis) -> str:
    """How busy the card was, for runs that nothing but load and card limit."""
    of = diagnosis.evidence
    text = f"Steps ran for {percent(of.busy)} of the time"
    if of.of_bound is not None:
        text += f", and made {percent(of.of_bound)} of the output tokens that the hardware could"
    waited = f"; requests spent {percent(of.waiting)} of their time in the queue"
    return f"{text}{waited}."


def _advice(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.is_healthy:
        return []
    metric = diagnosis.metric
    helpful = diagnosis.helpful()
    if not helpful:
        return [f"Nothing that was tried makes {in_short(*metric)} better."]
    first = helpful[0]
    change = first.change(*metric)
    assert change is not None
    return [f"What helps first: {first.advice.text}. {in_short(*metric)} goes {_from_to(change)}."]


def _from_to(change: Change) -> str:
    return f"from {seconds(change.before)} to {seconds(change.after)} ({difference(change)})"


def difference(change: Change) -> str:
    """The paired difference with its interval, or that there is none."""
    value = change.difference.value
    text = f"{'+' if value > 0 else ''}{seconds(value)}"
    half = change.difference.half
    return f"{text} ± {seconds(half)}" if half is not None else f"{text}, no interval"


def life_table(diagnosis: Diagnosis) -> Table:
    """Where the requests' time went."""
    rows = [(PARTS.get(name, name), percent(share)) for name, share in diagnosis.evidence.life.items()]
    caption = "Where the time of the requests went, from arrival to end"
    return Table(caption, ("a request spends its time", "share"), rows)


def evidence_table(diagnosis: Diagnosis) -> Table:
    """The other figures, with what they are."""
    of, counts = diagnosis.evidence, diagnosis.view.summary["preemptions"]
    grows = digits(of.queue_slope_per_s)
    verdict = {None: "no verdict", True: "yes", False: f"no: queue grows by {grows}/s"}[of.keeps_up]
    rows = [
        ("Keeps up", verdict, "the queue does not grow over the second half of the run"),
        ("Steps run", percent(of.busy), "of the time"),
        ("Batch filled", percent(of.occupancy), "running requests, of max_num_seqs, mean over time"),
        ("KV pool used", f"{percent(of.kv_mean)}, at most {percent(of.kv_max)}", "mean over time, and the most"),
        ("... of it empty", percent(of.kv_empty), "reserved but not filled"),
        ("Preemptions", _preemptions(counts), "running requests pushed out for lack of KV cache"),
        ("... computed again", percent(of.recomputed), "tokens, of those asked for and made"),
        ("... moved", f"{digits(of.moved_bytes / 1e9)} GB", "over the swap link, both ways"),
        ("Swap link", percent(of.link), "of the steps' time"),
        ("Host", percent(of.host), "of the steps' time"),
        ("Steps with prompts", percent(of.prompts), "of the steps' time"),
        ("Slots wasted", percent(of.slot_waste), "of the batches' slots, on answers that had ended"),
    ]
    if of.attainment is not None:
        rows.append(("Within all limits", percent(of.attainment), "of the requests, as [slo] states them"))
    if of.of_bound is not None:
        rows.append(("Of the hardware bound", percent(of.of_bound), "output tokens a second, for this mix of lengths"))
    return Table("The evidence", ("", "value", "what it is"), rows)


def _preemptions(counts: dict[str, int]) -> str:
    parts = [f"{counts[kind]:,} by {kind}" for kind in ("recompute", "swap") if counts[kind]]
    return ", ".join(parts) or "none"


def limits_table(diagnosis: Diagnosis) -> Table:
    """What kept further requests out of the batch."""
    held = sorted(diagnosis.evidence.limited_by.items(), key=lambda item: -item[1])
    rows = [(KEPT_OUT.get(name, name), percent(share)) for name, share in held]
    return Table("What kept further requests out of the batch", ("", "of the busy time"), rows)


def gaps_table(diagnosis: Diagnosis) -> Table:
    """Why answers stall."""
    rows = [
        (GAP_CAUSES.get(cause, cause), f"{gap.num_gaps:,}", percent(gap.share), seconds(gap.p50_s), seconds(gap.p99_s))
        for cause, gap in diagnosis.evidence.gaps.items()
    ]
    header = ("cause", "gaps", "of all time between tokens", "half are at most", "99 % are at most")
    return Table("Gaps between tokens by cause", header, rows)


def shares_table(diagnosis: Diagnosis) -> Table:
    """Every cause with its share and its threshold."""
    shares = diagnosis.verdict.shares
    rows = [
        (CAUSES[name].title, percent(share), percent(LEAST_SHARE[name]), _found(diagnosis, name))
        for name, share in shares.items()
    ]
    return Table("Every cause", ("", "of the requests' time", "limits from", "verdict"), rows)


def _found(diagnosis: Diagnosis, name: str) -> str:
    if name == diagnosis.cause:
        return "this limits the run"
    return "behind it" if name in diagnosis.verdict.others else "no"


def advice_table(diagnosis: Diagnosis) -> Table:
    """All advice that was tried, with its effect."""
    metric = diagnosis.metric
    others = [of for of in STATED if of != metric]
    header = ("what was tried", "effect", in_short(*metric), *(in_short(*of) for of in others), "output tokens/s")
    rows = [_advice_row(tried, metric, others) for tried in diagnosis.tried]
    caption = f"Advice, tried on the same {diagnosis.requests:,} requests: after minus before, ± half a 95 % interval"
    return Table(caption, header, rows)


def _advice_row(tried: Tried, metric: tuple[str, str], others: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    text = tried.advice.text
    if tried.why:
        return (text, f"cannot be simulated: {tried.why}", "-", *("-" for _ in others), "-")
    cells = [_cell(tried.change(*of)) for of in (metric, *others)]
    return (text, effect_of(tried, metric), *cells, rate_change(tried))


def effect_of(tried: Tried, metric: tuple[str, str]) -> str:
    """Whether it helps, in words."""
    if tried.why:
        return "not simulated"
    if tried.served[1] < 0.99 * tried.served[0]:
        return f"loses answers: {tried.served[1]:,} in place of {tried.served[0]:,}"
    effect = tried.effect(metric)
    words = {"better": "helps", "none": "does not help", "worse": "makes it worse", "unknown": "cannot be told"}[effect]
    costs = [in_short(of.metric, of.statistic) for of in tried.changes if of.effect == "worse"]
    return f"{words}, at the price of {' and '.join(costs)}" if effect == "better" and costs else words


def _cell(change: Change | None) -> str:
    return "-" if change is None else f"{difference(change)} ({relative(change.difference.value, change.before)})"


def rate_change(tried: Tried) -> str:
    """Output tokens a second, before and after."""
    before, after = tried.rates
    return f"{digits(before)} to {digits(after)}"


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis in JSON types."""
    summary = diagnosis.view.summary
    figures = diagnosis.evidence
    return {
        "schema": SCHEMA,
        **{name: summary[name] for name in ("preset", "policy", "model", "hardware", "status")},
        "cause": diagnosis.cause,
        "healthy": diagnosis.is_healthy,
        "others": list(diagnosis.verdict.others),
        "finding": finding(diagnosis),
        "shares": diagnosis.verdict.shares,
        "evidence": {
            **figures._asdict(),
            "gaps": {cause: gap._asdict() for cause, gap in figures.gaps.items()},
        },
        "memory": {**diagnosis.memory.to_dict(), "sentences": diagnosis.memory.sentences()},
        "metric": {"name": diagnosis.metric[0], "statistic": diagnosis.metric[1]},
        "requests": diagnosis.requests,
        "advice": [_tried_dict(tried, diagnosis.metric) for tried in diagnosis.tried],
        "notes": list(diagnosis.notes),
    }


def _tried_dict(tried: Tried, metric: tuple[str, str]) -> dict[str, Any]:
    advice = tried.advice
    found: dict[str, Any] = {
        **{"lever": advice.lever, "text": advice.text, "kind": advice.kind, "changes": dict(advice.changes)},
        **{"replicas": advice.replicas, "times": "roofline" if advice.roofline else "as the run"},
        "effect": effect_of(tried, metric),
    }
    if tried.why:
        return found | {"why": tried.why}
    return found | {
        "metrics": [
            {
                **{"name": of.metric, "statistic": of.statistic, "before": of.before, "after": of.after},
                **{"difference": of.difference.value, "half": of.difference.half, "effect": of.effect},
            }
            for of in tried.changes
        ],
        "output_tokens_per_s": {"before": tried.rates[0], "after": tried.rates[1]},
        "finished": {"before": tried.served[0], "after": tried.served[1]},
    }
