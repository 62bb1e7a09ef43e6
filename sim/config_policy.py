"""The table [policy] of RUN.toml: parameters of a user's own policy, of which only its class knows the names."""

from __future__ import annotations

from math import isfinite
from typing import Any

from policies.core.errors import ConfigError
from sim.config_keys import Section, impossible


class PolicyConfig(Section):
    """Keyword arguments of the class in ``engine.policy = "FILE.py:CLASS"``: numbers, texts, booleans."""

    _table = "policy"
    _free_keys = "number | text | true | false"

    def __init__(self, /, **values: Any) -> None:
        for name, value in values.items():
            if not name.isidentifier():
                raise ConfigError(f"policy.{name}: no name of a keyword argument")
            if hasattr(type(self), name):
                raise ConfigError(f"policy.{name}: a name that this table uses itself; name the argument otherwise")
            if not isinstance(value, bool | int | float | str):
                raise impossible(f"policy.{name}", value, "give a number, a text, true or false")
            if isinstance(value, float) and not isfinite(value):
                raise impossible(f"policy.{name}", value, "give a finite number")
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"PolicyConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
