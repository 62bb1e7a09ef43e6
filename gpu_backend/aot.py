"""The ahead-of-time gate: every kernel compiled for A100 and H100-class cards without a GPU, and its code looked at.

    python -m gpu_backend.aot [--quick] [--jobs N] [--arch sm_80|sm_90] [--kernel NAME]

prints one line a variant and exits 1 where a kernel spills registers, needs more shared memory than there is, misses
the tensor cores, reads memory in narrow pieces, or makes an address of the cache in 32 bits (Llama-2-7B passes 2^31
elements at block 512). What is compiled is what ``TritonOps`` launches: both take their constants from tiles.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple

from gpu_backend import tiles
from gpu_backend.aot_checks import Code, narrow_products, read_cubin
from gpu_backend.aot_variants import Variant, variants
from gpu_backend.extras import require
from policies.core.errors import BatchscopeError

SHARED_BYTES = {"sm_80": 164 * 1024 - 1024, "sm_90": 228 * 1024 - 1024}
"""Shared memory that one program can get: a multiprocessor's less the 1 KiB that the system keeps for each program."""
MAX_NARROW_LOADS = 4
"""Of a streaming kernel: ids, a position, a slot and the angles of a position, but nothing that grows with the row."""
MODULES = {
    "rms_norm": "norm",
    "silu_mul": "mlp",
    "rope_cache": "rope_cache",
    "copy_blocks": "copy",
    "decode": "decode",
    "merge": "decode",
    "prefill": "prefill",
    "linear": "linear",
    "sample": "sample",
}
"""Kernel and the module of ``gpu_backend.kernels`` that holds it."""


class Outcome(NamedTuple):
    """A compiled variant: its code, dynamic shared memory, and what is wrong with it."""

    variant: Variant
    code: Code
    shared_bytes: int
    faults: tuple[str, ...]


def check(variant: Variant) -> Outcome:
    """Compile one variant for its architecture and judge it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(import_module(f"gpu_backend.kernels.{MODULES[variant.kernel]}"), f"{variant.kernel}_kernel")
    signature = {name: variant.types.get(name, "constexpr") for name in function.arg_names}
    # Tensors start at multiples of 16 bytes, and a launch tells the compiler so.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(function.arg_names)
        if signature[name].startswith("*")
    }
    source = ASTSource(function, signature, variant.launch.constants, aligned)
    target = GPUTarget("cuda", int(variant.arch.removeprefix("sm_")), 32)
    compiled = triton.compile(source, target=target, options=variant.launch.compiler_options)
    code = read_cubin(compiled.asm["cubin"], triton.knobs.nvidia.cuobjdump.path)
    shared_bytes = int(compiled.metadata.shared)
    faults = tuple(judge(variant, code, shared_bytes, compiled.asm["ttir"]))
    return Outcome(variant, code, shared_bytes, faults)


def judge(variant: Variant, code: Code, shared_bytes: int, ttir: str) -> Iterator[str]:
    """What is wrong with a compiled variant, one phrase each."""
    if code.spills or code.stack_bytes:
        yield f"spills: {code.spills} local loads and stores, {code.stack_bytes} B of stack"
    if shared_bytes > SHARED_BYTES[variant.arch]:
        yield f"shared memory {shared_bytes} B > {SHARED_BYTES[variant.arch]} B"
    if variant.warpgroups and variant.arch == "sm_90" and not code.hgmma:
        yield "no HGMMA"
    elif variant.products and not code.hmma + code.hgmma:
        yield "no tensor cores"
    if (variant.streams or variant.products) and not code.wide_loads:
        yield "no 128-bit loads"
    if variant.streams and code.narrow_loads > MAX_NARROW_LOADS:
        yield f"{code.narrow_loads} loads narrower than 128 bits"
    for line in narrow_products(ttir, variant.cache):
        yield f"32-bit product in a cache address: {line}"


def run(chosen: Iterable[Variant], jobs: int) -> Iterator[Outcome]:
    """Check the variants in ``jobs`` processes, in order."""
    if jobs == 1:
        yield from map(check, chosen)
        return
    # Compilers are not safe to fork: each process starts fresh.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(check, chosen)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 0 where every variant passes, 1 where one does not, 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_backend.aot", description="Compile every kernel without a GPU."
    )
    parser.add_argument("--quick", action="store_true", help="leave out fp16 and the block sizes 32 and 64")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes (default: the cores)")
    parser.add_argument("--arch", choices=tiles.ARCHS, action="append", help="only this one")
    parser.add_argument("--kernel", choices=sorted(MODULES), action="append", help="only this one")
    chosen = parser.parse_args(arguments)
    try:
        require("triton", extra="gpu")
    except BatchscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    # The interpreter, where it is on, would replace what is to be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    found = variants(tuple(chosen.arch or tiles.ARCHS), quick=chosen.quick)
    return _print_table(run([v for v in found if not chosen.kernel or v.kernel in chosen.kernel], max(1, chosen.jobs)))


def _print_table(outcomes: Iterable[Outcome]) -> int:
    columns = "{:<12}{:<37}{:<7}{:>5}{:>7}{:>9}{:>6}{:>7}{:>6}{:>8}  {}"
    head = ("kernel", "case", "arch", "regs", "spills", "shared", "HMMA", "HGMMA", "wide", "narrow", "verdict")
    print(columns.format(*head))
    total = failed = 0
    for variant, code, shared_bytes, faults in outcomes:
        row: tuple[Any, ...] = (
            variant.kernel, variant.case, variant.arch, code.registers, code.spills, shared_bytes, code.hmma,
            code.hgmma, code.wide_loads, code.narrow_loads, "; ".join(faults) or "ok",
        )  # fmt: skip
        print(columns.format(*row), flush=True)
        total, failed = total + 1, failed + bool(faults)
    print(f"{total} variants, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
