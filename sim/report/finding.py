"""The finding of a page, in plain sentences made from the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from policies.core.errors import UserError
from policies.presets import preset
from sim.report.mechanism import how_it_works
from sim.report.view import RunView
from sim.report.words import CAUSES, OUTCOMES
from sim.wording import digits, percent, seconds

Summary = dict[str, Any]


def finding(view: RunView) -> list[str]:
    """Two to four sentences on one run."""
    summary = view.summary
    sentences = (_speed(view), _unserved(summary), _limit(summary), _memory(summary), _bound(summary))
    return [text for text in sentences if text]


class Finding(NamedTuple):
    """Sentences on all runs together, and name and sentences of each one where there are several."""

    lead: list[str]
    runs: list[tuple[str, str]]


def find(views: Sequence[RunView]) -> Finding:
    """The finding of a page on one run or several."""
    if len(views) == 1:
        return Finding(finding(views[0]), [])
    first = views[0].summary
    same = {(view.summary["model"], view.summary["hardware"]) for view in views} == {_where(first)}
    on = f"the model {first['model']} on {first['hardware']} answers the" if same else "the"
    one = len({view.name for view in views}) == 1
    kinds = f"{len(views)} {'configurations' if one else 'scheduling policies'}"
    how = "Simulated: " if all(view.summary["side"] == "server-simulated" for view in views) else ""
    names = _listed([view.label for view in views])
    rates = {_rate(view) for view in views}
    rate = f", {rates.pop()} a second," if len(rates) == 1 and None not in rates else ""
    text = f"{how}{on} same {first['requests']['offered']:,} requests{rate} under {kinds}: {names}."
    lead = [f"{text[0].upper()}{text[1:]}"]
    best = _most_output(views)
    if best is not None:
        lead.append(best)
    return Finding(lead, [(_named(view), " ".join(_of_one(view))) for view in views])


def _where(summary: Summary) -> tuple[str, str]:
    return summary["model"], summary["hardware"]


def _named(view: RunView) -> str:
    """The label, and the name of its policy where that is another."""
    return view.label if view.label.startswith(view.name) else f"{view.label} ({view.name})"


def shared_facts(views: Sequence[RunView]) -> list[tuple[str, list[str]]]:
    """The facts of all runs: once where they are the same, else with the labels of those that they hold for."""
    of_views = [facts(view) for view in views]
    if len(views) == 1 and (mechanism := how_it_works(views[0].summary)):
        of_views[0].insert(1, ("How it works", mechanism))
    shared: dict[str, list[str]] = {}
    for name, value in dict.fromkeys(fact for of_view in of_views for fact in of_view):
        holders = [view.label for view, of_view in zip(views, of_views, strict=True) if (name, value) in of_view]
        everywhere = len(holders) == len(views)
        shared.setdefault(name, []).append(value if everywhere else f"{', '.join(holders)}: {value}")
    return list(shared.items())


def facts(view: RunView) -> list[tuple[str, str]]:
    """What a reader must know to trust the figures: what is modelled, on which costs, and who is missing."""
    summary = view.summary
    counts = summary["requests"]
    missing = [f"{counts[name]:,} {words}" for name, words in OUTCOMES.items() if counts[name]]
    served = f"{counts['finished']:,} of {counts['offered']:,} finished"
    return [
        ("Engine modelled", _engine(summary)),
        ("Model and GPU", f"{summary['model']} on {summary['hardware']}"),
        ("Workload", _workload(view)),
        ("How", _side(summary)),
        ("Step times", _costs(summary)),
        *([] if summary["status"] == "completed" else [("Status", f"{summary['status']}: the run did not complete")]),
        ("Requests", "; ".join([served, *missing]) + ("" if missing else "; none refused, aborted or cut off")),
        ("Keeps up", _keeps_up(view)),
        *(("Note", note) for note in summary.get("notes", ())),
    ]


def _speed(view: RunView) -> str:
    summary = view.summary
    if "ttft_s" not in summary:
        return f"No request of {view.label} got an answer."
    ttft = summary["ttft_s"]
    lead = f"{_load(view)}, {view.name} {_verdict(view)}: half of the requests"
    if view.at_batch_end:
        return f"{lead} have their whole answer within {seconds(ttft['p50'])}, 99 % within {seconds(ttft['p99'])}."
    gap = f", and then a token every {seconds(summary['itl_s']['mean'])} on average" if "itl_s" in summary else ""
    return f"{lead} see their first token within {seconds(ttft['p50'])}, 99 % within {seconds(ttft['p99'])}{gap}."


def _unserved(summary: Summary) -> str:
    """Who got no whole answer, if that is more than 1 % of the requests: the latencies are those of the others."""
    counts = summary["requests"]
    missing = {words: counts[name] for name, words in OUTCOMES.items() if counts[name]}
    total = sum(missing.values())
    if total <= 0.01 * counts["offered"]:
        return ""
    parts = ", ".join(f"{count:,} {words}" for words, count in missing.items())
    return f"{total:,} of {counts['offered']:,} requests got no whole answer ({parts})."


def _verdict(view: RunView) -> str:
    growth = view.summary.get("stability", {}).get("queue_slope_per_s", 0.0)
    counts = view.summary["requests"]
    return {
        None: "serves them",
        True: "keeps up" if counts["finished"] >= 0.99 * counts["offered"] else "has a queue that does not grow",
        False: f"does not keep up (its queue grows by {_a_second(digits(growth))})",
    }[view.keeps_up]


def _load(view: RunView) -> str:
    workload, rate = view.summary["config"]["workload"], _rate(view)
    if workload.get("concurrency"):
        return f"With {workload['concurrency']:,} clients, each waiting for its answer before it asks again"
    return "For this workload" if rate is None else f"At {_a_second(rate)}"


def _rate(view: RunView) -> str | None:
    """Requests a second, from the first arrival to the last; None where that says nothing."""
    table = view.requests
    span_s = float(table["arrival_s"].max() - table["arrival_s"].min()) if len(table) > 1 else 0.0
    closed = view.summary["config"]["workload"].get("concurrency") is not None
    return digits((len(table) - 1) / span_s) if span_s > 0 and not closed else None


def _a_second(rate: str) -> str:
    return f"{rate} {'request' if rate == '1' else 'requests'} a second"


def _workload(view: RunView) -> str:
    """Where the requests come from, and their rate and lengths as they were in this run."""
    workload, table, rate = view.summary["config"]["workload"], view.requests, _rate(view)
    origin = next((f"{kind} {workload[kind]}" for kind in ("trace", "profile") if workload.get(kind)), "generated")
    arrivals = {None: "", "closed-loop": ""}.get(workload.get("generator"), f", {workload.get('generator')} arrivals")
    load = f"{workload['concurrency']:,} clients, each with one request" if workload.get("concurrency") else ""
    parts = [f"{origin}{arrivals}", load or (_a_second(rate) if rate else "")]
    for column, words in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        lengths = table[column] if column == "prompt_tokens" else table[column][table["outcome"] == "finished"]
        if len(lengths):
            parts.append(f"{words} of {digits(float(lengths.mean()))} tokens on average, at most {lengths.max():,}")
    return "; ".join(part for part in parts if part)


def _limit(summary: Summary) -> str:
    causes = sorted(summary["limited_by"].items(), key=lambda item: -item[1])
    if not causes:
        return ""
    held = [(cause, share) for cause, share in causes if cause != "arrivals" and share >= 0.01]
    if not held:
        return "A new request could get into the batch at nearly every step."
    cause, share = held[0]
    rest = [f"for another {percent(other)}, {CAUSES.get(name, name)}" for name, other in held[1:2]]
    more = f"; {rest[0]}" if rest else ""
    return f"For {percent(share)} of the time no further request was let in: {CAUSES.get(cause, cause)}{more}."


def _memory(summary: Summary) -> str:
    """What batches and reservations waste, and what preemption costs."""
    parts = []
    kv, steps, counts = summary["kv"], summary["steps"], summary["preemptions"]
    if steps.get("slot_waste", 0.0) > 0.05:
        parts.append(
            f"{percent(steps['slot_waste'])} of the batch's slots were spent on answers that had already ended"
        )
    if kv.get("fragmentation_mean", 0.0) > 0.2:
        parts.append(
            f"{percent(kv['fragmentation_mean'])} of the reserved KV cache (GPU memory that running requests hold) was"
            " empty, set aside for longer answers"
        )
    events = counts["recompute"] + counts["swap"]
    if events:
        total = summary["throughput"].get("total_tokens_per_s", 0.0) * summary["duration_s"]
        again = f", which computed {percent(counts['recomputed_tokens'] / total)} of all tokens again" if total else ""
        moved = counts["swapped_out_bytes"] + counts["swapped_in_bytes"]
        price = f", which moved {digits(moved / 1e9)} GB" if counts["swap"] else again
        parts.append(f"running requests were pushed out {events:,} times{price}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _reserved(summary: Summary) -> str:
    """What a run without waste takes of the memory, beside runs that waste it."""
    kv = summary["kv"]
    if "utilization_mean" not in kv or kv.get("fragmentation_mean", 1.0) > 0.2:
        return ""
    used, empty = percent(kv["utilization_mean"]), percent(kv["fragmentation_mean"])
    return f"It reserved {used} of the KV cache on average; {empty} of that was empty."


def _bound(summary: Summary) -> str:
    rates = summary["throughput"]
    got, bound = rates.get("output_tokens_per_s"), rates.get("bound_output_tokens_per_s")
    if not got:
        return ""
    against = f", {percent(got / bound)} of what the hardware could do for this mix of lengths" if bound else ""
    return f"It made {digits(got)} output tokens a second{against}."


def _of_one(view: RunView) -> list[str]:
    """A run among others: how its policy works, how fast it was, and the one reason that says most."""
    summary = view.summary
    if "ttft_s" not in summary:
        return ["No request got an answer."]
    what = "answer, which comes as a whole," if view.at_batch_end else "first token"
    up = {
        None: "",
        True: "; it keeps up with the load",
        False: "; it does not keep up, its queue grows as long as requests come",
    }[view.keeps_up]
    speed = f"Half of the requests wait at most {seconds(summary['ttft_s']['p50'])} for their {what}"
    speed += f" and 99 % at most {seconds(summary['ttft_s']['p99'])}{up}."
    known = (how_it_works(summary), speed, _unserved(summary), _limit(summary), _memory(summary), _reserved(summary))
    return [text for text in known if text]


def _most_output(views: Sequence[RunView]) -> str | None:
    rates = [(view.summary["throughput"].get("output_tokens_per_s"), view.label) for view in views]
    known = sorted((rate, label) for rate, label in rates if rate)
    if len(known) < 2:
        return None
    (least, slowest), (most, fastest) = known[0], known[-1]
    if most < 1.01 * least:
        return f"Each time it makes about {digits(most)} output tokens a second."
    return (
        f"With {fastest} it makes {digits(most)} output tokens a second, {digits(most / least)} times as many as with"
        f" {slowest} ({digits(least)})."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _engine(summary: Summary) -> str:
    name, policy = summary["preset"], summary["policy"]
    try:
        found = preset(name)
    except UserError:
        return f"{name}, policy {policy}"
    what = f"{found.system} {found.version}: {found.summary} (preset {name})"
    return f"{policy}, with parameters and memory of {what}" if ":" in policy else what


def _side(summary: Summary) -> str:
    side: str = summary["side"]
    return {
        "server-simulated": "simulated, seen from the server: no network, no client",
        "server-measured": "measured on the server",
        "client-measured": "measured by the client, network included",
    }.get(side, side)


def _costs(summary: Summary) -> str:
    costs = summary["cost_model"]
    if costs.get("kind") == "measured":
        return "measured, one by one"
    text = f"cost model {costs['name']}, version {costs['version']}"
    error, band = costs.get("error"), costs.get("band")
    if band is not None:
        text += (
            f" (from the card's data sheet); its times were {band['p5']:.2f} to {band['p95']:.2f} of measured ones in"
            f" 90 % of {band['runs']:,.0f} published runs"
        )
    elif isinstance(error, dict) and "median" in error:
        text += (
            f"; error against measurements that it was not fitted to: half at most {percent(error['median'])}, 95 % at"
            f" most {percent(error['p95'])}"
        )
    elif error is None:
        text += "; not validated against measurements"
    else:
        text += f"; error {percent(error)}" if isinstance(error, float) else f"; {error}"
    outside = costs.get("extrapolated_steps", 0)
    steps = max(summary["steps"]["count"], 1)
    return text + (f"; {percent(outside / steps)} of the steps lie outside its measured range" if outside else "")


def _keeps_up(view: RunView) -> str:
    verdict = view.summary.get("stability")
    if verdict is None:
        closed = view.summary["config"]["workload"].get("concurrency") is not None
        return "a closed loop has no rate to keep up with" if closed else "not enough data for a verdict"
    if verdict["stable"]:
        return "yes: the queue does not grow over the second half of the run"
    return (
        f"no: its queue grows by {_a_second(digits(verdict['queue_slope_per_s']))}, so that the latencies below"
        " grow with the length of the run"
    )
