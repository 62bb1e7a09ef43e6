"""Prints the laws as a table when ``tests/laws`` is what was asked for (``make laws``)."""

from __future__ import annotations

import pytest

_HEAD = f"{'case':36}{'law':10}{'exact':>9}{'simulated':>11}{'+- s.e.':>9}{'deviation':>11}{'tolerance':>11}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a case and law, also of those that failed; the standard error comes from 20 windows."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for report in reports for name, value in report.user_properties if name == "law"]
    if not rows:
        return
    terminalreporter.section("exact laws")
    terminalreporter.line(_HEAD)
    for case, law, exact_s, mean_s, error_s, deviation, allowed in rows:
        terminalreporter.line(
            f"{case:36}{law:10}{exact_s:9.4f}{mean_s:11.4f}{error_s:9.4f}{deviation:+11.2%}{allowed:11.2%}"
        )
