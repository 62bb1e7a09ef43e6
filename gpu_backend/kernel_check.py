"""Every operation against float64 on the device at hand, with a pool whose addresses pass 2^31 elements.

    python -m gpu_backend.kernel_check [--ops torch|triton] [--device auto|cpu|cuda] [--elements N] [--seed N]

prints one line a check and exits 1 where one fails. On a card, compiled kernels show here that they do what their
interpreted selves did in the tests.
"""

from __future__ import annotations

import argparse
import sys

from gpu_backend.extras import require
from policies.core.errors import BatchscopeError

PAST_32_BITS = (1 << 31) + (1 << 20)
"""Elements of a pool that no 32-bit address reaches the end of: 4.3 GB of bfloat16, all of it on a card, the pages in
use alone on a CPU."""


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 0 where all is well, 1 where a result is off, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m gpu_backend.kernel_check", description="Kernels against float64.")
    parser.add_argument("--ops", default="auto", help="torch or triton (default: triton on a card)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:N (default: the first card)")
    parser.add_argument("--elements", type=int, default=PAST_32_BITS, help="of the pool in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    try:
        require("torch", extra="gpu")
        from gpu_backend.device import placement
        from gpu_backend.kernel_comparison import check_kernels

        where = placement(chosen.device, "auto", chosen.ops)
    except BatchscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    failed = 0
    for done in check_kernels(where.ops, where.device, min_elements=chosen.elements, seed=chosen.seed):
        failed += not done.passed
        verdict = "ok" if done.passed else "FAILED"
        print(f"{done.operation:<20}{done.case:<48}{done.error:>9.1e}  <= {done.limit:.0e}  {verdict}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
