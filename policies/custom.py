"""Policies by address: ``module:class`` of the built-in ones, ``FILE.py:CLASS`` of a user's own,
``DISTRIBUTION:NAME`` of one that another distribution brings along."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from policies.core.errors import ConfigError, UserError, closest
from policies.core.protocols import OWED, Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import ModuleType


def load_builtin(address: str) -> type[Policy]:
    """The class at ``module:class``."""
    from importlib import import_module

    module, _, name = address.partition(":")
    found: type[Policy] = getattr(import_module(module), name)
    return found


def load_custom(address: str) -> type[Policy]:
    """The policy class at ``FILE.py:CLASS`` or ``DISTRIBUTION:NAME``; ConfigError if there is none, or it is no
    policy."""
    where = f"engine.policy = '{address}'"
    file, _, name = address.rpartition(":")
    if not name:
        raise ConfigError(f"{where}: write FILE.py:CLASS")
    if file.endswith(".py"):
        found = _in_file(file, name, where)
    else:
        from policies.plugins import load_plugin

        found = load_plugin(address, where)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"{where}: {name} is no policy; derive it from policies.systems.base.BatchingPolicy"
            " (or policies.core.protocols.Policy)"
        )
    missing = [method for method in OWED if getattr(found, method) is getattr(Policy, method)]
    if missing:
        raise ConfigError(f"{where}: {name} does not define {', '.join(missing)}")
    return found


def _in_file(file: str, name: str, where: str) -> object:
    module = _import_file(file, where)
    found: object = getattr(module, name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{where}: {file} has no class '{name}'{closest(name, classes)}")
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
        # No bytecode: a file that is edited twice in a second would be run as it was before, and folders stay clean.
        exec(compile(path.read_bytes(), file, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        said = f"{where}: {line_of(error, file)} fails with {type(error).__name__}: {error}"
        raise ConfigError(said) from error
    return module


def file_of(cls: type, address: str = "") -> str:
    """The file that a class comes from, for ``line_of``, as the address names it if it does."""
    import sys

    file = address.rpartition(":")[0]
    if file.endswith(".py"):
        return file
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__


def line_of(error: BaseException, file: str) -> str:
    """``"FILE, line N"``: the last line of that file which led to the error; if none did, the line that raised it."""
    import traceback
    from pathlib import Path

    if isinstance(error, SyntaxError) and error.filename in (None, file):
        return f"{file}, line {error.lineno}" if error.lineno else file
    home = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == home]
    if lines or not frames:
        return f"{file}, line {lines[-1]}" if lines else file
    last = frames[-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])}, line {last.lineno}"


def construct(
    cls: type[Policy], first: object, offered: dict[str, object], where: str, own: Mapping[str, object] | None = None
) -> Policy:
    """``cls(first, ...)`` with those of the ``offered`` keyword arguments that its ``__init__`` names, and with all of
    its ``own``.

    ConfigError if it wants an argument that nothing offers, or does not know one of its own.
    """
    # Of the class, not of its __init__: a compiled class describes its arguments there alone.
    arguments = list(signature(cls).parameters.values())
    if not arguments or arguments[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        raise ConfigError(f"{where}: {cls.__name__} needs __init__(self, kv, *, ...), kv being its KvManager")
    own = own or {}
    for name in own.keys() & offered.keys():
        raise ConfigError(f"policy.{name}: the preset gives this one; set engine.{name}")
    if all(argument.kind is not Parameter.VAR_KEYWORD for argument in arguments):
        named = {argument.name: argument for argument in arguments[1:] if argument.kind is not Parameter.VAR_POSITIONAL}
        _check_own(list(named), offered, own, f"__init__ of {cls.__name__}")
        for name, argument in named.items():
            if name not in offered and name not in own and argument.default is Parameter.empty:
                raise ConfigError(
                    f"{where}: __init__ of {cls.__name__} wants '{name}', which this preset does not offer;"
                    f" give it a default, or set policy.{name}"
                )
        offered = {name: offered[name] for name in named if name in offered}
    make: Any = cls
    policy: Policy = make(first, **offered, **own)
    return policy


def construct_custom(
    cls: type[Policy], first: object, offered: dict[str, object], address: str, own: Mapping[str, object]
) -> Policy:
    """As ``construct``, of the class at ``address``; what its ``__init__`` raises becomes a ConfigError in one line."""
    where = f"engine.policy = '{address}'"
    try:
        policy = construct(cls, first, offered, where, own)
        _check_built(policy, first, f"{where}: {cls.__name__}")
        return policy
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        place = line_of(error, file_of(cls, address))
        said = f"{where}: __init__ fails at {place} with {type(error).__name__}: {error}"
        raise ConfigError(said) from error


def _check_built(policy: object, kv: object, who: str) -> None:
    """What whoever drives a policy reads off it once; ConfigError if that cannot be driven."""
    if not isinstance(policy, Policy):
        raise ConfigError(f"{who}(...) gives a {type(policy).__name__}; leave __new__ to Policy")
    if getattr(policy, "kv", None) is not kv:
        raise ConfigError(
            f"{who}.kv is not the KvManager that __init__ is given, which is the memory of the run; call"
            " super().__init__(kv, ...) and leave it as it is"
        )
    for name, least in (("max_in_flight", 1), ("num_scheduler_steps", 1), ("tokens_past_length", 0)):
        value: object = getattr(policy, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{who}.{name} = {value!r}: give a whole number of at least {least}")


def _check_own(names: Sequence[str], offered: Collection[str], own: Mapping[str, object], taker: str) -> None:
    free = [name for name in names if name not in offered]
    for name in own:
        if name not in free:
            known = f"it takes {', '.join(free)}" if free else "it has none of its own"
            raise ConfigError(f"policy.{name}: {taker} takes no such argument; {known}{closest(name, free)}")
