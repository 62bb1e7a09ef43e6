"""Mean times of the simulated replica against exact laws, and the identities that every run must keep."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.laws.cases import CASES, FULL_SIZE, NUM_REQUESTS, NUM_WINDOWS, Case, Input
from tests.laws.draws import Floats
from tests.laws.identities import busy_s, idle_with_work_s, littles_law_error
from tests.laws.replica import Run, run

Report = Callable[[str, object], None]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_law(case: Case, record_property: Report) -> None:
    given = case.input()
    result = run(given.arrivals_s, case.output_tokens(given), case.costs(given), max_num_seqs=case.max_num_seqs)
    assert_identities(result)
    if case.scripted:
        assert_first_come_first_served(given, result)
    else:
        assert_steps_are_paid(case, given, result)
    assert_mean(case, given, result, record_property)


def assert_identities(result: Run) -> None:
    """Little's law, work conservation, and the metrics' own view of the same record."""
    for error in (littles_law_error(result.tape), result.metrics.littles_law_error):
        assert error is not None
        assert error < 1e-9
    assert idle_with_work_s(result.tape) == 0.0
    assert result.metrics.steps.busy_s == pytest.approx(busy_s(result.tape), rel=1e-9)
    e2e = result.metrics.latencies["e2e_s"]
    assert e2e is not None
    assert e2e.mean == pytest.approx(np.mean(result.finish_s - result.arrival_s), rel=1e-9)


def assert_first_come_first_served(given: Input, result: Run) -> None:
    """Each wait follows from the one before (Lindley 1952), and the server works for the sum of the service times:
    on the run's own rate and mean, utilisation = rate * E S."""
    np.testing.assert_allclose(result.first_scheduled_s - result.arrival_s, lindley_waits_s(given), atol=1e-6)
    assert busy_s(result.tape) == pytest.approx(np.sum(given.sizes), rel=1e-9)


def lindley_waits_s(given: Input) -> Floats:
    """W(k+1) = max(0, W(k) + S(k) - (a(k+1) - a(k)))."""
    wait_s, waits_s = 0.0, [0.0]
    for change_s in (given.sizes[:-1] - np.diff(given.arrivals_s)).tolist():
        wait_s = max(0.0, wait_s + change_s)
        waits_s.append(wait_s)
    return np.array(waits_s)


def assert_steps_are_paid(case: Case, given: Input, result: Run) -> None:
    """The server works for its steps and for every row of each: busy time = a * steps + b * tokens."""
    base_s, per_row_s = case.affine
    work_s = base_s * result.metrics.steps.count + per_row_s * float(np.sum(given.sizes))
    assert busy_s(result.tape) == pytest.approx(work_s, rel=1e-9)


def assert_mean(case: Case, given: Input, result: Run, record_property: Report) -> None:
    """The mean over the measured requests is that of each law, within its tolerance."""
    ends_s = result.finish_s if case.measure == "e2e_s" else result.first_scheduled_s
    times_s = (ends_s - result.arrival_s)[given.measured]
    windows = [np.mean(part) for part in np.array_split(times_s, NUM_WINDOWS)]
    error_s = float(np.std(windows, ddof=1)) / NUM_WINDOWS**0.5
    mean_s, missed = float(np.mean(times_s)), []
    for law, (exact_s, tolerance) in case.exact.items():
        allowed = tolerance if NUM_REQUESTS >= FULL_SIZE else 2.0 * tolerance
        deviation = mean_s / exact_s - 1.0
        record_property("law", [case.name, law, exact_s, mean_s, error_s, deviation, allowed])
        if abs(deviation) > allowed:
            missed.append(f"{law} {exact_s:.4f} s, simulated {mean_s:.4f} s: {deviation:+.2%}")
    assert not missed, "; ".join(missed)
