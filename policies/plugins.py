"""Policies that other distributions bring along, as entry points of the group ``batchscope.policies``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policies.core.errors import ConfigError, closest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "batchscope.policies"


class Plugin(NamedTuple):
    """A policy of another distribution: ``value`` is ``module:class``."""

    name: str
    distribution: str
    version: str
    value: str

    @property
    def address(self) -> str:
        """``DISTRIBUTION:NAME``, which names it even where two distributions use the same name."""
        return f"{self.distribution}:{self.name}"


def plugins() -> tuple[Plugin, ...]:
    """All that are installed, by name. Nothing of theirs is imported."""
    return tuple(sorted({plugin for plugin, _ in _entry_points()}))


def find_plugin(name: str) -> str | None:
    """The address of the one that is called NAME or ``DISTRIBUTION:NAME``, None if there is none; ConfigError if more
    than one distribution has that name."""
    found = [plugin.address for plugin in plugins() if name in (plugin.name, plugin.address)]
    if len(found) > 1:
        raise ConfigError(f"engine.policy = '{name}': more than one distribution has it; write {' or '.join(found)}")
    return found[0] if found else None


def load_plugin(address: str, where: str) -> object:
    """What stands at ``DISTRIBUTION:NAME``; ConfigError in one line if it cannot be imported."""
    for plugin, entry in _entry_points():
        if plugin.address == address:
            try:
                return entry.load()
            except (Exception, SystemExit) as error:
                said = f"{where}: {plugin.value} of {plugin.distribution} {plugin.version} cannot be imported"
                raise ConfigError(f"{said}: {type(error).__name__}: {error}") from error
    names = [plugin.address for plugin in plugins()]
    raise ConfigError(f"{where}: no installed distribution brings it{closest(address, names)}")


def describe_plugins() -> str:
    """One line each, for ``policies list``; nothing if there are none."""
    rows = [(plugin.name, f"{plugin.distribution} {plugin.version}", plugin.value) for plugin in plugins()]
    if not rows:
        return ""
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    lines = [f"  {name:<{widths[0]}}  {whose:<{widths[1]}}  {value}" for name, whose, value in rows]
    return "\n".join(["", "", f"Installed by other distributions (entry points {GROUP}), for --policy NAME:", *lines])


def _entry_points() -> list[tuple[Plugin, EntryPoint]]:
    from importlib.metadata import entry_points  # only who lists or names one pays for it

    found = []
    for entry in entry_points(group=GROUP):
        dist = entry.dist
        name, version = (dist.metadata["Name"], dist.version) if dist is not None else ("unknown", "")
        found.append((Plugin(entry.name, name, version, entry.value), entry))
    return found
