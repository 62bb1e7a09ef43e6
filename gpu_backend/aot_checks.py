"""Reads what a compiled kernel will do from its code: registers, spills, instructions, and how addresses are made."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)((?:\.[A-Z0-9_]+)*)", re.MULTILINE)
_VALUE = re.compile(r"%[A-Za-z0-9_]+")
_ARGUMENT = re.compile(r"(%[A-Za-z0-9_]+): ")
_DEFINED = re.compile(r"(%[A-Za-z0-9_]+)(?::\d+)? = ")
_CARRIED = re.compile(r"(%[A-Za-z0-9_]+) = (%[A-Za-z0-9_]+)")
_MEMORY = re.compile(r"tt\.(?:load|store|atomic_\w+) (%[A-Za-z0-9_]+)")
_BOUNDARY = re.compile(r"= (?:tt\.load|arith\.rem[su]i) ")
_NARROW_PRODUCT = re.compile(r"arith\.(?:muli|shli) .*: (?:tensor<[0-9x]*xi32>|i32)\b")


class Code(NamedTuple):
    """What a cubin holds."""

    registers: int
    stack_bytes: int
    spills: int
    """Loads from and stores to local memory."""
    hmma: int
    hgmma: int
    wide_loads: int
    """Loads of 128 bits a thread from global memory, asynchronous ones included."""
    narrow_loads: int
    """All the others."""


def read_cubin(cubin: bytes, cuobjdump: str) -> Code:
    """Registers, stack and instruction counts of the one kernel in ``cubin``."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [cuobjdump, "--dump-sass", "--dump-resource-usage", str(file)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return read_sass(text)


def read_sass(text: str) -> Code:
    """The same from what ``cuobjdump --dump-sass --dump-resource-usage`` prints."""
    usage = _USAGE.search(text)
    if usage is None:
        raise ValueError("cuobjdump prints no resource usage")
    counts: dict[str, int] = defaultdict(int)
    for name, suffixes in _INSTRUCTION.findall(text):
        counts[name] += 1
        if name in ("LDG", "LDGSTS"):
            counts["wide" if ".128" in suffixes else "narrow"] += 1
    return Code(
        registers=int(usage[1]),
        stack_bytes=int(usage[2]),
        spills=counts["LDL"] + counts["STL"],
        hmma=counts["HMMA"],
        hgmma=counts["HGMMA"],
        wide_loads=counts["wide"],
        narrow_loads=counts["narrow"],
    )


def narrow_products(ttir: str, pointers: tuple[str, ...]) -> list[str]:
    """Lines of Triton's IR that multiply in 32 bits on the way to an address below one of these arguments.

    What is loaded from memory (a block id out of a table) is a new value: its own address is another question. So is a
    remainder, which is smaller than its divisor.
    """
    values = _Values(ttir)
    found: set[str] = set()
    for address in values.addresses:
        reached = values.reached(address)
        if any(values.text.get(value) == f"%{pointer}" for pointer in pointers for value in reached):
            found |= {line for line in map(values.text.__getitem__, reached) if _NARROW_PRODUCT.search(line)}
    return sorted(found)


class _Values:
    """Each value of a kernel by a number, with what it is made of, and the line that makes it.

    Names are unique within a region only. A value that a loop carries is made of its start and of what is yielded.
    """

    def __init__(self, ttir: str) -> None:
        self.text: dict[int, str] = {}
        self.operands: dict[int, set[int]] = defaultdict(set)
        self.addresses: list[int] = []
        self._scopes: list[dict[str, int]] = [{}]
        self._carried: list[set[int]] = [set()]
        for line in ttir.splitlines():
            self._read(line.split(" loc(")[0].strip() if "tt.func" not in line else line)

    def reached(self, value: int) -> set[int]:
        """``value`` and all it is made of, up to what is loaded or a remainder."""
        reached: set[int] = set()
        waiting = [value]
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                if not _BOUNDARY.search(self.text[number]):
                    waiting += self.operands[number]
        return reached

    def _read(self, line: str) -> None:
        if "tt.func" in line:
            for name in _ARGUMENT.findall(line):
                self._define(name, name)
        if line.startswith("}") and len(self._scopes) > 1:
            self._scopes.pop()
            self._carried.pop()
        defined = _DEFINED.match(line)
        results = {self._define(defined[1], line)} if defined else set()
        named = _VALUE.findall(line.partition(" = ")[2] if defined else line)
        used = {number for number in map(self._find, named) if number is not None}
        for number in results:
            self.operands[number] |= used
        memory = _MEMORY.search(line)
        if memory and (address := self._find(memory[1])) is not None:
            self.addresses.append(address)
        if line.startswith("scf.yield"):
            for number in self._carried[-1]:
                self.operands[number] |= used
        if line.endswith("{"):
            self._open(line, results)

    def _open(self, line: str, results: set[int]) -> None:
        """A region begins; a loop's variables get what they start from."""
        starts = [(inner, self._find(outer)) for inner, outer in _CARRIED.findall(line.partition("scf.for")[2])]
        self._scopes.append({})
        self._carried.append(set(results))
        for inner, outer in starts:
            number = self._define(inner, inner)
            self._carried[-1].add(number)
            if outer is not None:
                self.operands[number].add(outer)

    def _define(self, name: str, line: str) -> int:
        number = len(self.text)
        self.text[number] = line
        self._scopes[-1][name] = number
        return number

    def _find(self, name: str) -> int | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)
