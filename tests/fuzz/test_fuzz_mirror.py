"""Many new scripts for the mirror, drawn anew each time."""

from tests.test_mirror import test_plans_alone_are_enough_to_run_every_request

__all__ = ["test_plans_alone_are_enough_to_run_every_request"]
