"""Figures in words, for people: three significant digits with a unit."""

from __future__ import annotations


def seconds(value_s: float) -> str:
    """A duration in milliseconds below one second."""
    return f"{digits(value_s)} s" if abs(value_s) >= 0.9995 else f"{digits(value_s * 1e3)} ms"


def digits(value: float) -> str:
    """Three significant digits, whole numbers from a thousand on, thousands grouped: everywhere the same figure."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 999.5 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share in percent; neither 0 % nor 100 % unless it is just that."""
    value = 100.0 * share
    if 0.0 < value < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if 99.95 <= value < 100.0 - 1e-9 else f"{digits(value)} %"
