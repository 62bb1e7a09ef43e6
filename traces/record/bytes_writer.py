"""Numbers written one after the other, in plain Python, where ``librt`` is not installed: on a machine that only
executes, say."""

from __future__ import annotations

import struct

_I64, _F64 = struct.Struct("<q").pack, struct.Struct("<d").pack


class BytesWriter:
    """Bytes that grow at their end, as ``librt.strings.BytesWriter``."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def getvalue(self) -> bytes:
        """What was written."""
        return bytes(self.bytes)


def write_i64_le(to: BytesWriter, number: int, /) -> None:
    """Append 8 bytes, little-endian."""
    to.bytes += _I64(number)


def write_f64_le(to: BytesWriter, number: float, /) -> None:
    """Append 8 bytes, little-endian."""
    to.bytes += _F64(number)
