"""Sums and extremes in a bounded number of equal bins of time that double in width as time goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Which = Literal["least", "most"]
_NOTHING: dict[Which, float] = {"least": np.inf, "most": -np.inf}


class Bins:
    """At most ``max_bins`` bins from ``start_s`` (the first time that is booked) on, each ``width_s`` wide."""

    def __init__(self, max_bins: int, width_s: float, levels: Sequence[str] = ()) -> None:
        self._max_bins, self._levels = max_bins, levels
        self.width_s = width_s
        self.start_s = 0.0
        self.count = 0
        self._begun = False
        self._sums: dict[str, Floats] = {}
        self._extremes: dict[tuple[str, Which], Floats] = {}

    def add_levels(self, start_s: Floats, end_s: Floats, levels: Floats) -> None:
        """Book ``levels`` (levels, intervals), each held from ``start_s`` to ``end_s``."""
        if not len(start_s):
            return
        row, place, piece_s = self._pieces(start_s, end_s)
        for name, values in zip(self._levels, levels, strict=True):
            self._add(name, place, piece_s * values[row])
            self._extend(name, place, values[row])

    def add_time(self, name: str, start_s: Floats, end_s: Floats, of: NDArray[np.bool_]) -> None:
        """Book the length of those intervals that ``of`` picks."""
        if of.any():
            _, place, piece_s = self._pieces(start_s[of], end_s[of])
            self._add(name, place, piece_s)

    def add_sums(self, time_s: Floats, sums: Mapping[str, NDArray[Any]]) -> None:
        """Book values at moments."""
        place = self._place(time_s)
        for name, values in sums.items():
            self._add(name, place, values)

    def add_extremes(self, name: str, time_s: Floats, values: Floats) -> None:
        """Book the least and the most of values at moments."""
        self._extend(name, self._place(time_s), values)

    def sums(self, name: str) -> Floats:
        """One entry a bin; 0 where nothing was booked."""
        return self._sums.get(name, np.zeros(self._max_bins))[: self.count]

    def extreme(self, name: str, which: Which) -> Floats:
        """One entry a bin; NaN where nothing was booked."""
        nothing = np.full(self._max_bins, _NOTHING[which])
        values: Floats = self._extremes.get((name, which), nothing)[: self.count]
        return np.where(np.isinf(values), np.nan, values)

    def names(self) -> list[str]:
        """Names of the sums."""
        return list(self._sums)

    def merged_to(self, max_bins: int) -> Bins:
        """The same in at most ``max_bins`` bins."""
        while self.count > max_bins:
            self._double()
        return self

    def to_dict(self) -> dict[str, Any]:
        """In JSON types, six significant digits, null where there is no extreme."""
        extremes = {f"{which} {name}": self.extreme(name, which) for name, which in self._extremes}
        return {
            "start_s": self.start_s,
            "width_s": self.width_s,
            "count": self.count,
            "sums": {name: _rounded(self.sums(name)) for name in self._sums},
            "extremes": {name: _rounded(values) for name, values in extremes.items()},
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave."""
        bins = cls(content["count"], content["width_s"])
        bins.start_s, bins.count, bins._begun = content["start_s"], content["count"], True
        bins._sums = {name: np.array(values, np.float64) for name, values in content["sums"].items()}
        for name, values in content["extremes"].items():
            word, _, level = name.partition(" ")
            which: Which = "least" if word == "least" else "most"
            known = np.array([np.nan if value is None else value for value in values], np.float64)
            bins._extremes[level, which] = np.where(np.isnan(known), _NOTHING[which], known)
        return bins

    def _pieces(self, start_s: Floats, end_s: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Intervals cut at the edges of the bins: interval, bin and length of each piece."""
        self._begin(start_s)
        last = self._place(end_s)  # first of all: the bins may double
        first = np.minimum(((start_s - self.start_s) / self.width_s).astype(np.int64).clip(0), last)
        counts = last - first + 1
        row = np.repeat(np.arange(len(start_s)), counts)
        place = first[row] + (np.arange(len(row)) - (np.cumsum(counts) - counts)[row])
        low_s = self.start_s + place * self.width_s
        piece_s = np.minimum(end_s[row], low_s + self.width_s) - np.maximum(start_s[row], low_s)
        return row, place, np.maximum(piece_s, 0.0)

    def _place(self, time_s: Floats) -> NDArray[np.int64]:
        """Bin of each moment, after the bins have grown to reach the last one."""
        self._begin(time_s)
        latest_s = float(time_s.max()) - self.start_s
        while latest_s >= self.width_s * self._max_bins:
            self._double()
        place: NDArray[np.int64] = ((time_s - self.start_s) / self.width_s).astype(np.int64).clip(0)
        self.count = max(self.count, int(place.max()) + 1)
        return place

    def _begin(self, time_s: Floats) -> None:
        """The first time that is booked is where the bins begin."""
        if not self._begun:
            self.start_s, self._begun = float(time_s.min()), True

    def _add(self, name: str, place: NDArray[np.int64], values: NDArray[Any]) -> None:
        known = self._sums.setdefault(name, np.zeros(self._max_bins))
        known += np.bincount(place, values, self._max_bins)

    def _extend(self, name: str, place: NDArray[np.int64], values: Floats) -> None:
        updates: tuple[tuple[Which, np.ufunc], ...] = (("least", np.minimum), ("most", np.maximum))
        for which, update in updates:
            known = self._extremes.setdefault((name, which), np.full(self._max_bins, _NOTHING[which]))
            update.at(known, place, values)

    def _double(self) -> None:
        """Merge neighbours."""
        self._sums = {name: _paired(values, np.add, 0.0) for name, values in self._sums.items()}
        for (name, which), values in self._extremes.items():
            merge = np.minimum if which == "least" else np.maximum
            self._extremes[name, which] = _paired(values, merge, _NOTHING[which])
        self.width_s *= 2.0
        self.count = (self.count + 1) // 2


def _paired(values: Floats, merge: np.ufunc, nothing: float) -> Floats:
    padded = np.append(values, nothing) if len(values) % 2 else values
    merged: Floats = merge(padded[0::2], padded[1::2])
    return np.concatenate((merged, np.full(len(values) - len(merged), nothing)))


def _rounded(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
