"""``batchscope calibrate measure``: times the executor's steps on this machine's card or CPU, as a profile.

Points are visited in rounds, each round in another order, so that what else the machine does hits all alike; medians of
the rounds are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calibrate.dates import today
from calibrate.execute import Machine, Options, open_machine, prepare_on, run_on, with_weights
from calibrate.measure_hosts import HostTimes
from calibrate.measure_points import Sizes, points
from calibrate.measure_rounds import LEAST_ROUNDS, SWAPPED_BLOCKS, Rounds
from calibrate.measure_rows import SOURCE, rows_of
from calibrate.profile import Origin, Profile
from policies.core.errors import ConfigError
from sim.config import RunConfig, load_config

_SHARE_OF_HOST = 0.15
"""Of the time budget, for runs of the whole loop, which say what the host takes."""

_HOST_BATCHES = (1, 4, 16, 64)
_HOST_WORKLOAD = {
    "generator": "closed-loop",
    "prompt": {"dist": "fixed", "value": 8},
    "output": {"dist": "uniform", "low": 12, "high": 36},
}
"""Clients in a closed loop: each has a request of few tokens under way all the time, and they end one by one."""


class Session(Rounds):
    """A model on a device and the steps to time on it, with what every round found.

    ``measure`` plays the rounds one after the other; whoever compares with runs of the executor may play one between
    two of these. Raises a UserError for what cannot be run.
    """

    def __init__(self, machine: Machine, config: RunConfig, options: Options) -> None:
        from calibrate.measure_steps import StepTimer, SwapTimer
        from gpu_backend.executor import make_cache

        self.machine, self._config, self._options = machine, config, options
        setup = prepare_on(machine, config)
        self._parameters = parameters = setup.parameters
        cache = make_cache(machine.model, setup.policy)
        cache.blocks_NL2KSD.normal_(std=0.02)
        self._block_bytes = setup.shape.block_bytes(setup.policy.kv.block_size)
        timer = StepTimer(machine.model, cache, parameters.max_num_seqs, graphs=options.graphs)
        cache_tokens = cache.num_blocks * cache.block_size
        sizes = Sizes(
            parameters.max_model_len,
            parameters.max_num_seqs,
            parameters.max_num_batched_tokens,
            cache_tokens,
            eager=not timer.has_graphs,
        )
        swaps = [blocks for blocks in SWAPPED_BLOCKS if blocks <= cache.num_blocks]
        super().__init__(timer, SwapTimer(cache, swaps[-1]), points(sizes), swaps)

    def host_round(self) -> None:
        """What the host takes of a step in whole runs of the executor's loop, for a few numbers of sequences."""
        for batch in _HOST_BATCHES:
            if batch <= self._parameters.max_num_seqs:
                tables = self._config.to_dict()
                tables["workload"] = {**_HOST_WORKLOAD, "concurrency": batch, "num_requests": 2 * batch}
                setup = prepare_on(self.machine, load_config(tables, ()))
                run_on(self.machine, setup, self._options, observer=HostTimes(self.hosts))

    def profile(self, card: str) -> Profile:
        """The profile of what was found so far; ``card`` is the device's name in the catalog."""
        shape, machine = self.machine.model.shape, self.machine
        date = today()
        numbers = f"{str(machine.where.dtype).removeprefix('torch.')}, {machine.where.ops.name} operations"
        origin = Origin(
            f"batchscope calibrate measure on {machine.name}, {numbers}",
            "your own measurement",
            date,
            method=(
                f"medians of {self.rounds} interleaved rounds over {len(self.steps)} of {len(self.candidates)} steps,"
                " each over how slow its neighbours in time were; attention is the difference to a step without it"
            ),
        )
        rows = tuple(rows_of(self.timed(), shape.layers, self._block_bytes))
        return Profile(shape.name, card, 1, date, {SOURCE: origin}, rows)


def measure(
    config: RunConfig | None = None,
    *,
    options: Options | None = None,
    card: str | None = None,
    seconds: float = 120.0,
    overrides: Sequence[str] = (),
    tell: Callable[[str], object] = lambda text: None,
    model: str | None = None,
    policy: str | None = None,
) -> Profile:
    """Measure the model, device and sizes of a configuration within about ``seconds``.

    ``card`` is its name in the catalog; on a CPU ``cpu``. UserError for what cannot be run.
    """
    options = options or Options()
    if config is None:
        tables = {"workload": {**_HOST_WORKLOAD, "concurrency": 1, "num_requests": 1}}
        config = load_config(tables, with_weights(overrides, options), model=model, policy=policy)
    machine = open_machine(config, options)
    card = card or card_of(machine)
    began = time.perf_counter()
    session = Session(machine, config, options)
    _play(session.host_round, 1, began + seconds * _SHARE_OF_HOST)
    session.choose(began + seconds - time.perf_counter())  # what the host's runs took is known by now
    chosen, all_of_them = len(session.steps), len(session.candidates)
    tell(f"measuring {chosen} of {all_of_them} steps of {machine.model.shape.name} on {machine.name}")
    too_long_s = time.perf_counter() + session.least_s - began - seconds
    if too_long_s > 0.0:
        tell(
            f"the coarsest points take {session.least_s:.0f} s on this machine, {too_long_s:.0f} s more than --seconds"
            " leaves; lower limits need fewer (--set engine.max_num_seqs=32 --set engine.max_num_batched_tokens=1024)"
        )
    _play(session.round, LEAST_ROUNDS, began + seconds)
    return session.profile(card)


def _play(play: Callable[[], object], least: int, until_s: float) -> None:
    """Rounds until the time is over, at least some."""
    last_s, played = 0.0, 0
    while played < least or time.perf_counter() + last_s < until_s:
        began = time.perf_counter()
        play()
        played, last_s = played + 1, time.perf_counter() - began


def card_of(machine: Machine) -> str:
    """The catalog's name of a CPU; ConfigError for a card, whose name must be given."""
    if machine.where.device.type == "cpu":
        return "cpu"
    raise ConfigError(
        f"calibrate measure: name the catalog's entry of {machine.name} (--hardware CARD; `batchscope hardware list`)"
    )


def run_measure(
    config: str | None,
    out: str,
    seconds: float,
    card: str | None,
    *,
    overrides: Sequence[str],
    tell: Callable[[str], object],
    model: str | None = None,
    policy: str | None = None,
    **how: Any,
) -> str:
    """What the command does: measure, write, and say what was written. ``how`` are fields of ``Options``."""
    options = Options(**how)
    given = None
    if config is not None:
        given = load_config(config, with_weights(overrides, options), model=model, policy=policy)
    profile = measure(
        given,
        options=options,
        card=card,
        seconds=seconds,
        overrides=overrides,
        tell=tell,
        model=model,
        policy=policy,
    )
    return write(profile, Path(out))


def write(profile: Profile, out: Path) -> str:
    """Write the profile; what it holds, for people."""
    from calibrate.profile import ranges
    from calibrate.profile_file import write_profile

    write_profile(profile, out)
    lines = [profile.sources[SOURCE].origin, f"  {profile.sources[SOURCE].method}"]
    lines += [f"  {name}: {least:,} to {most:,}" for name, least, most in ranges(profile.rows)]
    return "\n".join([*lines, f"written: {out}", f"next: batchscope calibrate fit --profile {out} --out costs.json"])
