"""Policies by address: ``module:class`` of the built-in ones, ``FILE.py:CLASS`` of a user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.core.errors import ConfigError, closest
from policies.core.protocols import Policy

if TYPE_CHECKING:
    from types import ModuleType

_TAKES_ANY_KEYWORD = 0x08


def load_builtin(address: str) -> type[Policy]:
    """The class at ``module:class``."""
    from importlib import import_module

    module, _, name = address.partition(":")
    found: type[Policy] = getattr(import_module(module), name)
    return found


def load_custom(address: str) -> type[Policy]:
    """The policy class at ``FILE.py:CLASS``; ConfigError if file or class is missing, or it is no policy."""
    where = f"engine.policy = '{address}'"
    file, _, name = address.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{where}: write FILE.py:CLASS")
    module = _import_file(file, where)
    found = getattr(module, name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{where}: {file} has no class '{name}'{closest(name, classes)}")
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f"{where}: {name} is no policy; derive it from policies.core.protocols.Policy")
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise ConfigError(f"{where}: {name} does not define {', '.join(missing)}")
    return found


def _import_file(file: str, where: str) -> ModuleType:
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {file}")
    name = f"custom_policy_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}: {file} cannot be loaded as Python")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = _line_of(error, str(path))
        raise ConfigError(f"{where}: {file}{line} fails with {type(error).__name__}: {error}") from error
    return module


def _line_of(error: Exception, file: str) -> str:
    """``", line N"``: the last line of the file itself that led to the error."""
    import traceback
    from pathlib import Path

    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    home = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == home]
    return f", line {lines[-1]}" if lines else ""


def construct(cls: type[Policy], first: object, offered: dict[str, object], where: str) -> Policy:
    """``cls(first, ...)`` with those of the ``offered`` keyword arguments that its ``__init__`` names.

    ConfigError if it wants an argument that nothing offers.
    """
    init: Any = cls.__init__
    code = getattr(init, "__code__", None)
    if code is None or code.co_argcount < 2:
        raise ConfigError(f"{where}: {cls.__name__} needs __init__(self, kv, *, ...), kv being its KvManager")
    if not code.co_flags & _TAKES_ANY_KEYWORD:
        names = code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount]
        positional = names[: code.co_argcount - 2]
        first_default = max(0, len(positional) - len(init.__defaults__ or ()))
        optional = {*positional[first_default:], *(init.__kwdefaults__ or ())}
        for name in names:
            if name not in offered and name not in optional:
                raise ConfigError(
                    f"{where}: __init__ of {cls.__name__} wants '{name}', which this preset does not offer;"
                    " give it a default"
                )
        offered = {name: offered[name] for name in names if name in offered}
    make: Any = cls
    policy: Policy = make(first, **offered)
    return policy
