"""Request by request, the simulated replica ends when a dozen plain lines say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.laws.cases import CASES, Case
from tests.laws.reference import batch_finish_s
from tests.laws.replica import run


@pytest.mark.parametrize("case", [case for case in CASES if not case.scripted], ids=lambda case: case.name)
def test_every_request_ends_when_stepping_by_hand_says(case: Case) -> None:
    given = case.input(1_000)
    result = run(given.arrivals_s, given.sizes, case.costs(given), max_num_seqs=case.max_num_seqs)
    expected_s = batch_finish_s(given.arrivals_s, given.sizes, *case.affine, case.max_num_seqs)
    np.testing.assert_allclose(result.finish_s, expected_s, rtol=1e-11)
