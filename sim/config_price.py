"""The table [price] of RUN.toml: what an hour of each card costs its user."""

from __future__ import annotations

from typing import Any, ClassVar

from policies.core.errors import ConfigError
from sim.config_keys import Key, Section, number

_price = number(above=0, at_most=1e6, unit="USD")


def _check_card(name: str) -> None:
    from policies.catalog import card  # only a price needs the catalog
    from policies.core.errors import CatalogError

    try:
        card(name)
    except CatalogError as error:
        raise ConfigError(f"price.{name}: {error}") from None


class PriceConfig(Section):
    """USD that an hour of one card costs, by the card's name of the catalog, as in ``a100-80gb = 1.5``: yours, since
    this project knows no prices."""

    _table = "price"
    _free_keys = "USD > 0"
    _keys: ClassVar[dict[str, Key]] = {}

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            _check_card(name)
            object.__setattr__(self, name, _price.check(value, f"price.{name}"))

    def usd_per_hour(self, card: str, cards: int = 1) -> float | None:
        """Of so many cards of that name; None where no price is given."""
        value = vars(self).get(card)
        return None if value is None else float(value) * cards

    def __repr__(self) -> str:
        return f"PriceConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
