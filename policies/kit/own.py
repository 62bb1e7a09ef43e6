"""The kit for a class of a user's own, named as a run names it."""

from __future__ import annotations

from collections.abc import Mapping

from policies.core.errors import ConfigError
from policies.core.protocols import Policy
from policies.custom import construct_custom, load_custom
from policies.kit.play import Kit
from policies.kit.script import Limits
from policies.presets import Preset, choose, resolve


def own_kit(
    name: str,
    preset_name: str,
    engine: Mapping[str, object],
    own: Mapping[str, object],
    *,
    chunked: bool = False,
    deliver_at_batch_end: bool = False,
) -> Kit:
    """The kit for ``FILE.py:CLASS`` or an entry point.

    As in a run, the class gets those parameters of the preset that its ``__init__`` names, with the keys of [engine]
    over them, and its ``own`` keyword arguments; sizes and memory are those of the scenarios. ConfigError, CatalogError
    in one line for what cannot be.
    """
    chosen, address = choose(preset_name, name)
    if address is None:
        raise ConfigError(f"policies check {name}: it is a preset; name FILE.py:CLASS or an entry point to check")
    cls, place = load_custom(address), address

    def build(limits: Limits) -> Policy:
        parameters = resolve(
            chosen, {**_sizes(chosen, limits), **engine}, max_model_len=limits.max_model_len, custom=place
        )
        offered: dict[str, object] = {
            **parameters.values,
            **chosen.fixed,
            "services": limits.services,
            "block_bytes": limits.block_size,
            "pieces_per_block": 1,
        }
        return construct_custom(cls, limits.kv(), offered, place, own)

    return Kit(build, deliver_at_batch_end=deliver_at_batch_end, chunked=chunked)


def _sizes(chosen: Preset, limits: Limits) -> dict[str, object]:
    """Those parameters of a preset that a scenario decides."""
    sizes: dict[str, object] = {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_size": limits.block_size,
        "enable_prefix_caching": limits.enable_prefix_caching,
    }
    return {key: value for key, value in sizes.items() if key in chosen.defaults}
