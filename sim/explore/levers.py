"""What a setting would change: the highest rate again, with one key of RUN.toml at other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.core.errors import ConfigError, UserError
from sim.config import RunConfig, config_from_tables, merged_tables
from sim.explore.limits import Limit
from sim.explore.loads import Loads
from sim.explore.rates import RateResult, find_rate

SAMPLES = 2
_TOLERANCE = 0.03
_LEAST_CHUNK = 64
CHUNK = "max_num_batched_tokens"


class Lever(NamedTuple):
    """``setting`` (``engine.max_num_batched_tokens=512``) and what it gives; ``message`` where it cannot be run."""

    setting: str
    result: RateResult | None
    message: str = ""

    @property
    def title(self) -> str:
        """The setting for a person, without its section: ``max_num_batched_tokens = 512``."""
        key, _, value = self.setting.partition("=")
        return f"{key.rpartition('.')[2]} = {value}"


def changed(config: RunConfig, setting: str) -> RunConfig:
    """The configuration with that setting; raises ConfigError for what no key or value of RUN.toml is."""
    if "=" not in setting:
        raise ConfigError(f"--try {setting}: write KEY=VALUE, for example engine.max_num_seqs=64")
    return config_from_tables(merged_tables(config.to_dict(), [setting]))


def pull(
    config: RunConfig,
    setting: str,
    limits: Sequence[Limit],
    *,
    num_requests: int,
    replicas: int,
    router: str,
    start: float,
) -> Lever:
    """The highest rate with that setting, from a few samples."""
    try:
        loads = Loads(
            changed(config, setting),
            limits,
            samples=SAMPLES,
            num_requests=num_requests,
            replicas=replicas,
            router=router,
        )
        return Lever(setting, find_rate(loads, start=start or None, tolerance=_TOLERANCE, confirm=False))
    except UserError as error:
        return Lever(setting, None, str(error))


def chunk_settings(loads: Loads, result: RateResult) -> list[str]:
    """Smaller chunks, worth a try where a latency of tokens stops a higher rate; none where the policy has no such
    parameter."""
    largest = loads.source.setup().parameters.values.get(CHUNK)
    stopped = any(cause.limit is not None for cause in result.causes)
    if not stopped or isinstance(largest, bool) or not isinstance(largest, int):
        return []
    return [f"engine.{CHUNK}={largest // part}" for part in (2, 4, 8) if largest // part >= _LEAST_CHUNK]


def chunk_step_s(loads: Loads) -> tuple[int, float] | None:
    """The tokens of a whole chunk, and the time of a step that computes it; None where the policy has no such
    parameter."""
    setup = loads.source.setup()
    largest = setup.parameters.values.get(CHUNK)
    if isinstance(largest, bool) or not isinstance(largest, int):
        return None
    tokens = min(largest, setup.parameters.max_model_len)
    return tokens, setup.costs.recompute_time_s(tokens, 0)
