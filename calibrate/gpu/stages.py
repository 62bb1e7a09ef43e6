"""The stages of a check in order of worth, and how they share the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.core.errors import ConfigError, closest


class Stage(NamedTuple):
    """A stage: ``share`` of the time of all, where its function is, and whether it needs the device at all."""

    name: str
    title: str
    share: float
    address: str
    on_device: bool = True


STAGES = (
    Stage("environment", "card, versions, ceilings", 35, "calibrate.gpu.environment:run"),
    Stage("kernels", "every kernel compiled, and against float64", 60, "calibrate.gpu.kernels:run"),
    Stage("tokens", "tokens of transformers, random plans, graphs, bfloat16", 45, "calibrate.gpu.tokens:run"),
    Stage("model", "weights made on the device, decode graphs captured", 20, "calibrate.gpu.grids:run_model"),
    Stage("grids", "decode, prefill, mixed steps and swaps beside their bounds", 60, "calibrate.gpu.grids:run"),
    Stage("fit", "cost model on 70 % of the points, error on the rest", 8, "calibrate.gpu.fitted:run", False),
    Stage(
        "replay", "the c32 workload under paged, static, Orca; swap against recompute", 67, "calibrate.gpu.replay:run"
    ),
    Stage("simulate", "the same runs simulated with the fitted costs", 20, "calibrate.gpu.simulated:run", False),
    Stage("attention", "attention kernels alone, with every tile", 15, "calibrate.gpu.attention:run"),
)


def chosen(names: str | None) -> list[Stage]:
    """The stages of a comma-separated list, in order of worth; all without one. ConfigError for an unknown name."""
    if names is None:
        return list(STAGES)
    known = {stage.name: stage for stage in STAGES}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--stages {name}: choose from {', '.join(known)}{closest(name, known)}")
    return [stage for stage in STAGES if stage.name in wanted]


def ends_s(stages: Sequence[Stage], began_s: float, deadline_s: float) -> list[float]:
    """When each stage must be over, on the clock of ``began_s``: what one leaves of its time is the next one's."""
    total, passed, ends = sum(stage.share for stage in stages), 0.0, []
    for stage in stages:
        passed += stage.share
        ends.append(began_s + deadline_s * passed / total)
    return ends
