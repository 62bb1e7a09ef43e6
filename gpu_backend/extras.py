"""What the executor needs beyond the base installation, asked for by name so that a missing extra is one line."""

from __future__ import annotations

from importlib.util import find_spec

from policies.core.errors import ConfigError


def require(*modules: str, extra: str) -> None:
    """ConfigError that names the ``extra`` to install unless all top-level ``modules`` can be imported; loads none."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not installed; pip install 'batchscope[{extra}]'")
