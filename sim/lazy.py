"""Packages whose ``__init__`` costs more than what is needed of them."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType


class _Package(ModuleType):
    """A package that runs its ``__init__`` when more than its submodules is asked of it."""

    def __getattr__(self, name: str) -> object:
        self.__class__ = ModuleType  # type: ignore[assignment]
        if self.__spec__ is not None and self.__spec__.loader is not None:
            self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def lazy_package(name: str) -> None:
    """Let ``from name.module import x`` leave the package's own ``__init__`` alone; whoever then imports the package
    itself finds it whole. Does nothing if it is imported already, or is not there."""
    spec = None if name in sys.modules else PathFinder.find_spec(name)
    if spec is not None:
        package = module_from_spec(spec)
        package.__class__ = _Package
        sys.modules[name] = package
