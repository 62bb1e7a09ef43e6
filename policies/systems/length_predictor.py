"""How many tokens a request will make, as a scheduler has to guess it: a predictor and the error that it makes."""

from __future__ import annotations

from math import exp
from random import Random
from typing import Literal, get_args

from policies.core.errors import ConfigError, closest
from policies.core.protocols import Services
from policies.core.request import Request

Source = Literal["oracle", "max_tokens"]

_SEEDS = 1 << 64
_MOST = 1 << 40


class LengthPredictor:
    """Predicts output lengths: a pure function of ``seed``, the request's id and what ``source`` says of it.

    ``oracle`` asks ``services.predict_output_len``, which only a driver with known lengths can answer; ``max_tokens``
    takes the limit that the user set. Either is multiplied by exp(``sigma`` x z), z being a standard normal variate of
    the request: the median is right, and the middle two thirds of the predictions lie within a factor of exp(sigma).
    """

    def __init__(self, services: Services | None, *, source: Source = "oracle", sigma: float = 0.0, seed: int = 0):
        if source not in get_args(Source):
            raise ConfigError(
                f"engine.length_predictor = '{source}': give {' or '.join(get_args(Source))}"
                f"{closest(source, get_args(Source))}"
            )
        if source == "oracle" and services is None:
            raise ConfigError("engine.length_predictor = 'oracle': needs a driver that knows lengths; use 'max_tokens'")
        self._services = services if source == "oracle" else None
        self._sigma, self._seed = sigma, seed

    def predict(self, request: Request) -> int:
        """Predicted output tokens, at least 1."""
        base = request.max_tokens if self._services is None else self._services.predict_output_len(request)
        if not self._sigma:
            return max(1, base)
        factor = exp(self._sigma * Random(self._seed * _SEEDS + request.id).gauss(0.0, 1.0))
        return max(1, round(min(base * factor, _MOST)))
