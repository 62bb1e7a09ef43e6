"""``capacity``: the highest rate, the fewest replicas or the cheapest card within stated limits, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from policies.core.errors import ConfigError, UserError, closest
from sim.config import RunConfig, load_config, merged_tables
from sim.explore.capacity_result import CapacityResult, CardResult, CurvePoint
from sim.explore.fleet import ROUTERS
from sim.explore.levers import changed, chunk_settings, pull
from sim.explore.limits import Limit, parse_limit
from sim.explore.loads import Loads
from sim.explore.measures import Reading
from sim.explore.rates import LONGER, find_rate
from sim.explore.replicas import MOST as MOST_REPLICAS
from sim.explore.replicas import find_replicas, least_replicas

Find = Literal["rate", "replicas", "card"]
FINDS: tuple[Find, ...] = ("rate", "replicas", "card")
SAMPLES, REQUESTS = 5, 2_000
LEAST_REQUESTS = 100
MOST_RATE_PER_S = 1e6
DEFAULT_PROFILE = "chat"
CURVE = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)
"""Rates of the curve, over the highest one."""
_CURVE_SAMPLES = 3
_MOST_REQUESTS = 20_000
"""Of a sample for many replicas."""

Step = Callable[[str], None]
"""Told what is done next."""


def capacity(
    config: RunConfig | str | Mapping[str, object] | None = None,
    *,
    slo: Sequence[str],
    find: Find = "rate",
    rate_per_s: float | None = None,
    replicas: int = 1,
    router: str = "round_robin",
    samples: int = SAMPLES,
    num_requests: int | None = None,
    levers: Sequence[str] | None = None,
    curve: bool = True,
    overrides: Sequence[str] = (),
    progress: Step | None = None,
    **flags: Any,
) -> CapacityResult:
    """The most load that meets every limit in ``slo`` (``"ttft_p99_s=0.5"``, see docs/capacity.md).

    ``config``, ``overrides`` and ``flags`` are those of ``simulate``; without a workload the profile chat is sent. The
    same requests come at every rate, closer together; those that the model's length refuses are left out first.

    ``find``: ``"rate"``, the highest rate of ``replicas`` behind ``router``; ``"replicas"``, the fewest of them for
    ``rate_per_s`` (or the rate of the workload); ``"card"``, of the cards of [price] the one on which that costs least.
    ``samples`` of ``num_requests`` each (None: 2,000, and four times as many where longer runs do not confirm the
    answer) are independent and give the interval. ``levers`` are settings
    (``"engine.max_num_batched_tokens=512"``) whose rates are found as well; None: smaller chunks where latencies of
    tokens stop a higher rate. ``curve``: latency, throughput and cost along the rate.

    Raises a UserError; limits that cannot be met are a result, which says by how much.
    """
    limits = _limits(slo)
    if find not in FINDS:
        raise ConfigError(f"find = {find!r}: use one of {', '.join(FINDS)}{closest(str(find), FINDS)}")
    if router not in ROUTERS:
        raise ConfigError(f"router = {router!r}: use one of {', '.join(ROUTERS)}{closest(router, ROUTERS)}")
    _check_effort(samples, num_requests, replicas, rate_per_s)
    if find == "rate" and rate_per_s is not None:
        raise ConfigError(
            f"rate = {rate_per_s:g}: the rate is what is found; add find = replicas or card, or leave it out"
        )
    if find != "rate" and (replicas != 1 or levers):
        what = "replicas" if replicas != 1 else "try"
        raise ConfigError(f"{what}: belongs to find = rate; leave it out")
    loaded = config if isinstance(config, RunConfig) else _loaded(config, overrides, flags)
    for setting in levers or ():
        changed(loaded, setting)
    wanted = num_requests or REQUESTS
    say = progress or (lambda text: None)
    sizes = {"samples": samples, "num_requests": wanted}
    if find == "rate":
        longer = num_requests is None
        return _rate(loaded, limits, replicas, router, levers, curve, say, may_lengthen=longer, **sizes)
    rate = _rate_of(loaded) if rate_per_s is None else rate_per_s
    if find == "replicas":
        return _replicas(loaded, limits, rate, router, say, **sizes)
    return _cards(loaded, limits, rate, router, say, **sizes)


def _check_effort(samples: int, num_requests: int | None, replicas: int, rate_per_s: float | None) -> None:
    """Raise ConfigError for numbers that no search can be made with."""
    if samples < 2:
        raise ConfigError(f"samples = {samples}: give at least 2, whose differences make the interval")
    if num_requests is not None and num_requests < LEAST_REQUESTS:
        raise ConfigError(f"requests = {num_requests}: give at least {LEAST_REQUESTS} a sample, as a p99 needs")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"replicas = {replicas}: give a whole number of at least 1 and of at most {MOST_REPLICAS}")
    if rate_per_s is not None and not 0.0 < rate_per_s <= MOST_RATE_PER_S:
        raise ConfigError(
            f"rate = {rate_per_s:g}: give requests a second, a number above 0 and of at most {MOST_RATE_PER_S:g}"
        )


def _limits(texts: Sequence[str]) -> list[Limit]:
    if isinstance(texts, str):
        texts = [texts]
    if not texts:
        raise ConfigError("--slo is missing: state at least one limit, as in --slo ttft_p99_s=0.5")
    limits = [parse_limit(text) for text in texts]
    for place, limit in enumerate(limits):
        if any(limit.name == other.name for other in limits[:place]):
            raise ConfigError(f"--slo {limit.text}: {limit.name} is limited twice; leave one out")
    return limits


def _loaded(config: str | Mapping[str, object] | None, overrides: Sequence[str], flags: Mapping[str, Any]) -> RunConfig:
    """With the profile chat where no workload is given, and any rate where a generator lacks one."""
    workload = merged_tables(config, overrides, **flags).get("workload", {})
    more = dict(flags)
    if not {"trace", "profile", "generator"} & workload.keys():
        more["profile"] = DEFAULT_PROFILE
    elif workload.get("generator") in ("poisson", "gamma", "constant") and "rate_per_s" not in workload:
        overrides = [*overrides, "workload.rate_per_s=1"]
    if "generator" in workload and "num_requests" not in workload:
        overrides = [*overrides, f"workload.num_requests={REQUESTS}"]
    return load_config(config, overrides, **more)


def _rate_of(config: RunConfig) -> float:
    """The rate that the workload asks for."""
    if config.workload.rate_per_s is None:
        raise ConfigError("say for which rate: --rate REQUESTS_PER_S, or workload.rate_per_s")
    return config.workload.rate_per_s * config.workload.rate_scale


def _rate(
    config: RunConfig,
    limits: Sequence[Limit],
    replicas: int,
    router: str,
    levers: Sequence[str] | None,
    curve: bool,
    say: Step,
    *,
    may_lengthen: bool,
    samples: int,
    num_requests: int,
) -> CapacityResult:
    while True:
        loads = Loads(config, limits, samples=samples, num_requests=num_requests, replicas=replicas, router=router)
        say(f"the highest rate, in {samples} samples of {num_requests:,} requests")
        result = find_rate(loads)
        # Samples that are too short end before the server has filled up: longer runs then tell another story.
        too_short = bool(result.confirmed) and not result.is_confirmed and loads.source.has_seeds
        if not (too_short and may_lengthen and num_requests * LONGER <= _MOST_REQUESTS):
            break
        num_requests *= LONGER
    found = CapacityResult("rate", loads, rate=result)
    settings = chunk_settings(loads, result) if levers is None else levers
    for setting in settings:
        say(f"the highest rate with {setting}")
        more = {"num_requests": num_requests, "replicas": replicas, "router": router}
        found.levers.append(pull(config, setting, limits, start=result.rate_per_s, **more))  # type: ignore[arg-type]
    if curve and result.feasible:
        say("latency and throughput along the rate")
        found.curve += [_curve_point(loads, factor * result.rate_per_s) for factor in CURVE]
    return found


def _curve_point(loads: Loads, rate_per_s: float) -> CurvePoint:
    """Means over some samples at that rate."""
    probes = [loads.probe(place, rate_per_s) for place in range(min(_CURVE_SAMPLES, len(loads.draws)))]
    readings = []
    for number, limit in enumerate(loads.limits):
        values = [probe.verdict.readings[number].value_s for probe in probes]
        known = [value for value in values if value is not None]
        readings.append(Reading(limit, fmean(known) if known else None))
    made = (fmean([getattr(probe, name) for probe in probes]) for name in ("output_tokens_per_s", "total_tokens_per_s"))
    unstable = sum(probe.verdict.unstable for probe in probes) > len(probes) / 2
    output, total = made
    served = fmean([probe.requests_per_s for probe in probes])
    return CurvePoint(rate_per_s, tuple(readings), unstable, output, total, served)


def _replicas(
    config: RunConfig, limits: Sequence[Limit], rate: float, router: str, say: Step, *, samples: int, num_requests: int
) -> CapacityResult:
    loads = Loads(config, limits, samples=samples, num_requests=num_requests, router=router)
    say("the highest rate of one replica")
    # As many requests a replica as one alone would get, so that each has its time to fill up.
    single = find_rate(Loads(config, limits, samples=2, num_requests=num_requests), tolerance=0.1, confirm=False)
    if single.feasible and loads.source.has_seeds:
        guess = max(least_replicas(loads, rate), round(rate / single.rate_per_s), 1)
        wanted = min(num_requests * guess, max(_MOST_REQUESTS, num_requests))
        loads = Loads(config, limits, samples=samples, num_requests=wanted, router=router)
    say(f"the fewest replicas, in {samples} samples of {loads.num_requests:,} requests")
    found = CapacityResult("replicas", loads, replicas=find_replicas(loads, rate), for_rate_per_s=rate)
    found.asked_requests = num_requests  # those of one replica; the sample has as many times more
    return found


def _cards(
    config: RunConfig, limits: Sequence[Limit], rate: float, router: str, say: Step, *, samples: int, num_requests: int
) -> CapacityResult:
    names = list(vars(config.price))
    if not names:
        raise ConfigError("no card has a price: give each its USD an hour, as in --price a100-80gb=1.5")
    cards = []
    for name in names:
        say(f"the fewest {name}")
        of_card = config._replace(hardware=config.hardware.replace(name=name))
        usd = float(of_card.price.usd_per_hour(name, of_card.hardware.tp) or 0.0)
        try:
            one = _replicas(
                of_card, limits, rate, router, lambda text: None, samples=samples, num_requests=num_requests
            )
            cards.append(CardResult(name, usd, one))
        except UserError as error:
            cards.append(CardResult(name, usd, None, str(error)))
    best = min((card for card in cards if card.usd_per_hour is not None), key=lambda card: card.sort_key, default=None)
    shown = best or next((card for card in cards if card.result is not None), None)
    if shown is None or shown.result is None:
        raise ConfigError(f"no card of [price] can be simulated; the first one: {cards[0].message}")
    found = CapacityResult(
        "card", shown.result.loads, replicas=shown.result.replicas, for_rate_per_s=rate, cards=cards, card=best
    )
    found.asked_requests = num_requests
    return found
