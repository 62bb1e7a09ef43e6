"""What the optional compiler (mypyc) is told about classes; without it, and at run time, this does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**facts: bool):
        """Decorator of a class; ``allow_interpreted_subclasses``: people derive from it; ``native_class=False``: it
        derives from a class that is not compiled."""
        return lambda cls: cls
