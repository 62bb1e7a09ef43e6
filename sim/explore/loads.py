"""A server under a load: the same independent samples of requests at any rate, on any number of replicas, judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from policies.core.errors import ConfigError
from sim.config import RunConfig
from sim.costs.floor import bound_output_tokens_per_s
from sim.explore.draws import Draw, Source
from sim.explore.fleet import Trial, run_fleet
from sim.explore.limits import Limit
from sim.explore.measures import Verdict, judge, reading_s

ALONE_GAP_S = 1e5
"""Time between requests of which each is alone."""
_ALONE = 400
"""Requests that are run alone."""


class Probe(NamedTuple):
    """A sample of requests at a rate on so many replicas: the verdict, and what they made of their time."""

    rate_per_s: float
    replicas: int
    verdict: Verdict
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float


class Loads:
    """Runs samples of a workload at rates and judges them against limits. ``samples`` are independent: seeds of a
    generator or profile, or windows of a trace. Every run is made once."""

    def __init__(
        self,
        config: RunConfig,
        limits: Sequence[Limit],
        *,
        samples: int,
        num_requests: int,
        replicas: int = 1,
        router: str = "round_robin",
    ) -> None:
        self.limits, self.num_requests, self.replicas, self.router = limits, num_requests, replicas, router
        self.source = Source(config)
        seed = config.workload.seed
        if self.source.has_seeds:
            self.draws = [self.source.draw(seed + place, num_requests) for place in range(samples)]
        else:
            self.draws = self.source.windows(samples)
        self._probes: dict[tuple[int, int, float], Probe] = {}
        for limit in limits:
            if reading_s(self.alone, limit) is None:
                raise ConfigError(f"--slo {limit.text}: no request of this workload has such a latency; leave it out")

    @property
    def left_out(self) -> int:
        """Rows of all samples that the model's length refuses."""
        return sum(draw.left_out for draw in self.draws)

    @property
    def offered(self) -> int:
        """Rows of all samples, those left out among them."""
        return self.left_out + sum(len(draw.rows) for draw in self.draws)

    def probe(self, place: int, rate_per_s: float, replicas: int | None = None) -> Probe:
        """Sample ``place`` at that rate."""
        replicas = self.replicas if replicas is None else replicas
        key = (place, replicas, rate_per_s)
        if key not in self._probes:
            self._probes[key] = self.run(self.draws[place], rate_per_s, replicas)
        return self._probes[key]

    def run(self, draw: Draw, rate_per_s: float, replicas: int | None = None) -> Probe:
        """Requests at that rate."""
        replicas = self.replicas if replicas is None else replicas
        trial = run_fleet(self.source.setup, draw.at(rate_per_s), replicas=replicas, router=self.router)
        duration_s = trial.duration_s or math.inf
        tokens = trial.output_tokens + trial.prompt_tokens
        made = (trial.output_tokens / duration_s, tokens / duration_s, trial.finished / duration_s)
        return Probe(rate_per_s, replicas, judge(trial, self.limits), *made)

    def more(self, factor: int) -> Draw:
        """A longer sample than each of the others, and another one: a further seed, or the whole trace."""
        if not self.source.has_seeds:
            return self.source.whole()
        seed = self.source.config.workload.seed
        return self.source.draw(seed + 1_000_000, factor * self.num_requests)

    @cached_property
    def alone(self) -> Trial:
        """Some of the requests, each alone on the server."""
        return run_fleet(self.source.setup, self.draws[0].apart(ALONE_GAP_S, _ALONE))

    @cached_property
    def alone_s(self) -> float:
        """Mean time that a request alone takes."""
        requests = self.alone.requests
        took_s = requests.e2e_s[requests.is_finished]
        if not len(took_s):
            raise ConfigError("capacity: no request of this workload can be served; give shorter ones or more memory")
        return float(np.mean(took_s))

    @cached_property
    def most_per_s(self) -> float:
        """Requests a second that the hardware bound allows one replica for these lengths."""
        rows = [row for draw in self.draws for row in draw.rows]
        output = float(np.mean([row.output_tokens for row in rows]))
        prompt = float(np.mean([row.prompt_tokens for row in rows]))
        context = sum(row.output_tokens * (row.prompt_tokens + row.output_tokens / 2.0) for row in rows)
        setup = self.source.setup()
        kv = setup.policy.kv
        tokens_per_s = bound_output_tokens_per_s(
            setup.shape,
            setup.card,
            mean_context_tokens=context / (output * len(rows)),
            prompt_tokens_per_output_token=prompt / output,
            pool_tokens=kv.num_blocks * kv.block_size,
            max_num_seqs=setup.parameters.max_num_seqs,
        )
        return tokens_per_s / output
