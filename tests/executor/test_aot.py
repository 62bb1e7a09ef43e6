"""The ahead-of-time gate: green for every kernel, and red for what it is there to catch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from gpu_backend.aot import SHARED_BYTES, judge
from gpu_backend.aot_checks import Code, narrow_products, read_sass
from gpu_backend.aot_variants import Variant, variants

ROOT = Path(__file__).resolve().parent.parent.parent
GOOD = Code(registers=64, stack_bytes=0, spills=0, hmma=32, hgmma=16, wide_loads=8, narrow_loads=2)
SASS = """
 Function decode_kernel:
  REG:80 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:608 TEXTURE:0 SURFACE:0 SAMPLER:0
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;       /* 0x00000a00ff017b82 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R5], [R6.64] ;    /* 0x00000a00ff017b82 */
        /*0030*/              @P1  LDG.E R4, desc[UR4][R2.64] ;           /* 0x00000a00ff017b82 */
        /*0040*/                   STL [R1+0x4], R7 ;                     /* 0x0000040701007387 */
        /*0050*/             @!UP0 LDL R53, [R1+0x4] ;                    /* 0x0000040001357983 */
        /*0060*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ;   /* 0x0000040001357983 */
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8] ; /* 0x0000040001357983 */
        /*0080*/                   LDGDEPBAR ;                            /* 0x0000040001357983 */
"""


def test_every_kernel_passes() -> None:
    """In processes of their own, where nothing is interpreted; all but fp16 and the block sizes between."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "gpu_backend.aot", "--quick", "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if not line.endswith("ok")]
    assert done.returncode == 0, "\n".join(failed) + done.stderr
    assert failed[-1].endswith(" variants, 0 failed")


def test_every_constant_and_pointer_of_a_kernel_is_given() -> None:
    """Both architectures get the same cases, but for the tiles that each could have instead."""
    found = variants()
    assert len(found) == len({(v.kernel, v.case, v.arch) for v in found})
    by_arch = [{(v.kernel, v.case) for v in found if v.arch == arch and "w" not in v.case} for arch in SHARED_BYTES]
    assert by_arch[0] == by_arch[1]


def attention() -> Variant:
    return next(v for v in variants(("sm_90",)) if v.kernel == "prefill")


@pytest.mark.parametrize(
    ("code", "shared_bytes", "fault"),
    [
        (GOOD._replace(spills=4, stack_bytes=8), 0, "spills: 4 local loads and stores, 8 B of stack"),
        (GOOD, 228 * 1024, "shared memory 233472 B > 232448 B"),
        (GOOD._replace(hgmma=0), 0, "no HGMMA"),
        (GOOD._replace(wide_loads=0), 0, "no 128-bit loads"),
    ],
)
def test_each_fault_is_named(code: Code, shared_bytes: int, fault: str) -> None:
    assert list(judge(attention(), code, shared_bytes, "")) == [fault]
    assert not list(judge(attention(), GOOD, 0, ""))


def test_a_streaming_kernel_reads_wide_pieces_alone() -> None:
    norm = next(v for v in variants(("sm_80",)) if v.kernel == "rms_norm")
    assert list(judge(norm, GOOD._replace(narrow_loads=16), 0, "")) == ["16 loads narrower than 128 bits"]


def test_sass_is_counted() -> None:
    assert read_sass(SASS) == Code(80, 8, 2, 1, 1, 2, 1)


def narrow_kernel(cache_ptr: tl.tensor, table_ptr: tl.tensor, out_ptr: tl.tensor, S: tl.constexpr) -> None:
    """A block number times a stride in 32 bits, carried round a loop."""
    lanes = tl.arange(0, 64)
    numbers = tl.full([64], 0.0, tl.float32)
    places = lanes
    for step in range(tl.load(table_ptr)):
        numbers += tl.load(cache_ptr + places)
        places = tl.load(table_ptr + step) * S + lanes
    tl.store(out_ptr + lanes, numbers)


def wide_kernel(cache_ptr: tl.tensor, table_ptr: tl.tensor, out_ptr: tl.tensor, S: tl.constexpr) -> None:
    """The same in 64 bits; a remainder, and the address of the table, may be narrow."""
    lanes = tl.arange(0, 64)
    numbers = tl.full([64], 0.0, tl.float32)
    start = tl.program_id(0) * S
    for step in range(tl.load(table_ptr)):
        block = tl.load(table_ptr + step * S).to(tl.int64)
        numbers += tl.load(cache_ptr + block * S + (start + lanes) % 64)
    tl.store(out_ptr + lanes, numbers)


def test_a_product_in_32_bits_is_found_on_the_way_to_the_cache_alone() -> None:
    """With the interpreter on, what is no more than a function here can still be compiled."""
    for function, arguments, expected in (
        (narrow_kernel, ("cache_ptr",), 1),
        (narrow_kernel, ("out_ptr",), 0),
        (wide_kernel, ("cache_ptr",), 0),
        (wide_kernel, ("table_ptr",), 1),
    ):
        kernel = JITFunction(function)
        signature = {"cache_ptr": "*fp32", "table_ptr": "*i32", "out_ptr": "*fp32", "S": "constexpr"}
        source = ASTSource(kernel, signature, {"S": 100})
        compiled = triton.compile(source, GPUTarget("cuda", 80, 32), {"enable_fp_fusion": True})
        found = narrow_products(compiled.asm["ttir"], arguments)
        assert len(found) == expected, (function.__name__, arguments, found)
        assert all("arith.muli" in line for line in found)
