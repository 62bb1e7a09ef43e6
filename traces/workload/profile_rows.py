"""Requests drawn from a profile: as endless as those of a generator, each part from a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator

from traces.workload.arrivals import shaped_arrivals
from traces.workload.prefixes import PrefixDrawer
from traces.workload.profile import ArrivalProfile, Profile
from traces.workload.quantiles import QuantileTable
from traces.workload.rows import TraceRow
from traces.workload.streams import stream


def profile_rows(
    profile: Profile, arrivals: Iterator[float], seed: int, patience_s: float | None
) -> Iterator[TraceRow]:
    """Endless rows with lengths and prefixes of the profile, whose limit is the true length."""
    prompt_at = profile.prompt.at
    output_at = [table.at for table in profile.output_by_prompt]
    draw_prompt, draw_output = stream(seed, "prompt_lengths").random, stream(seed, "output_lengths").random
    prefixes = profile.sharing and PrefixDrawer(profile.sharing, stream(seed, "prefixes"))
    new = tuple.__new__
    for arrival in arrivals:
        share = draw_prompt()
        prompt, length_class = round(prompt_at(share)), profile.length_class(share)
        output = round(output_at[length_class](draw_output()))
        segments = prefixes.segments(prompt, length_class) if prefixes else ()
        yield new(TraceRow, (arrival, prompt, output, output, 0, "", "", None, segments, patience_s, None, None))


def profile_arrivals(arrivals: ArrivalProfile, rate_per_s: float, seed: int) -> Iterator[float]:
    """Arrivals as the profile has them, at another mean rate: all times are scaled alike."""
    gaps = QuantileTable(arrivals.gaps.values).scaled(1.0 / arrivals.gaps.mean())
    mean = sum(arrivals.relative_rate) / len(arrivals.relative_rate)
    relative = [rate / mean for rate in arrivals.relative_rate]
    slot_requests = arrivals.rate_per_s * arrivals.span_s / len(relative)
    return shaped_arrivals(rate_per_s, gaps, relative, slot_requests, stream(seed, "arrivals"))
