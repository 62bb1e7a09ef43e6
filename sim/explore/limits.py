"""Latency limits at stated percentiles, as text: ``ttft_p99_s=0.5``, for some prompts alone
``ttft_p99_s=0.5@prompt<=1000``, or growing with the prompt ``ttft_p99_s=0.2+0.0005*prompt``."""

from __future__ import annotations

import re
from typing import NamedTuple

from policies.core.errors import ConfigError, closest
from sim.explore.metrics import LATENCY_METRICS
from sim.latencies import in_short
from sim.wording import digits, seconds

OF_TOKENS = ("itl",)
"""Latencies that are kept for all requests together, so that they know no prompt lengths."""

_EXAMPLE = "write METRIC=SECONDS, as in ttft_p99_s=0.5, ttft_p99_s=0.5@prompt<=1000 or ttft_p99_s=0.2+0.0005*prompt"
_NUMBER = r"(\d+\.?\d*(?:e-?\d+)?|\.\d+)"
_LIMIT = re.compile(rf"{_NUMBER}(?:\+{_NUMBER}\*prompt)?")
_CLASS = re.compile(r"(?:(\d+)<)?prompt(?:(<=|<|>|>=)(\d+))?")


class Limit(NamedTuple):
    """``statistic`` of ``latency`` is to be at most ``limit_s`` + ``per_prompt_token_s`` x prompt tokens, over requests
    with more than ``above`` and at most ``at_most`` prompt tokens. ``text`` is how it was written."""

    text: str
    latency: str
    statistic: str
    limit_s: float
    per_prompt_token_s: float = 0.0
    above: int = 0
    at_most: int | None = None

    @property
    def metric(self) -> str:
        """The metric it limits."""
        return f"{self.latency}_{self.statistic}_s"

    @property
    def of_all(self) -> bool:
        """Whether it is one number for all requests."""
        return not self.per_prompt_token_s and not self.above and self.at_most is None

    @property
    def name(self) -> str:
        """The metric with its prompts, for a column of a table."""
        return f"{self.metric}{self._prompts('@')}"

    def _prompts(self, sign: str) -> str:
        if self.above and self.at_most is not None:
            return f"{sign}{self.above}<prompt<={self.at_most}"
        if self.at_most is not None:
            return f"{sign}prompt<={self.at_most}"
        return f"{sign}prompt>{self.above}" if self.above else ""

    def in_words(self) -> str:
        """The limit for a person: ``TTFT p99 <= 500 ms of prompts of at most 1,000 tokens``."""
        of = ""
        if self.above and self.at_most is not None:
            of = f" of prompts of {self.above + 1:,} to {self.at_most:,} tokens"
        elif self.at_most is not None:
            of = f" of prompts of at most {self.at_most:,} tokens"
        elif self.above:
            of = f" of prompts of more than {self.above:,} tokens"
        return f"{self.title} <= {seconds(self.limit_s)}{self.slope_words()}{of}"

    @property
    def title(self) -> str:
        """The statistic for a person: ``TTFT p99``."""
        return in_short(f"{self.latency}_s", self.statistic)

    def slope_words(self) -> str:
        """What the limit grows by with the prompt; else ""."""
        return f" + {digits(1e3 * self.per_prompt_token_s)} ms a prompt token" if self.per_prompt_token_s else ""


def parse_limit(text: str, where: str = "--slo") -> Limit:
    """The limit that a text states; raises ConfigError."""
    stated, at, prompts = text.replace(" ", "").partition("@")
    name, equals, value = stated.replace("<=", "=", 1).partition("=")
    if not equals or not value:
        raise ConfigError(f"{where} {text}: {_EXAMPLE}")
    if name not in LATENCY_METRICS:
        close = closest(name, LATENCY_METRICS)
        raise ConfigError(f"{where} {text}: '{name}' is no latency with a statistic; {_EXAMPLE}{close}")
    matched = _LIMIT.fullmatch(value)
    if matched is None or (float(matched[1]) <= 0 and not matched[2]):
        raise ConfigError(f"{where} {text}: '{value}' is no limit in seconds; {_EXAMPLE}")
    above, at_most = _prompt_class(prompts, f"{where} {text}") if at else (0, None)
    latency, statistic = name.removesuffix("_s").rsplit("_", 1)
    limit = Limit(text, latency, statistic, float(matched[1]), float(matched[2] or 0.0), above, at_most)
    if latency in OF_TOKENS and not limit.of_all:
        raise ConfigError(
            f"{where} {text}: gaps between tokens are kept for all requests together; limit tpot_{statistic}_s for "
            "some of them"
        )
    return limit


def _prompt_class(text: str, where: str) -> tuple[int, int | None]:
    """Tokens above which and up to which prompts count."""
    matched = _CLASS.fullmatch(text)
    if matched is None or (matched[1] is None and matched[2] is None):
        raise ConfigError(f"{where}: '@{text}': write @prompt<=1000, @prompt>1000 or @1000<prompt<=4000")
    above, sign, bound = int(matched[1] or 0), matched[2], int(matched[3] or 0)
    at_most: int | None = None
    if sign in ("<=", "<"):
        at_most = bound if sign == "<=" else bound - 1
    elif sign is not None:
        above = max(above, bound if sign == ">" else bound - 1)
    if at_most is not None and at_most <= above:
        raise ConfigError(f"{where}: '@{text}': no prompt is that long")
    return above, at_most
