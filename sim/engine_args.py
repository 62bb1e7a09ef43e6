"""A vLLM command line, as one would paste it: ``vllm serve MODEL --max-num-seqs 128 ...`` or its arguments alone."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.errors import ConfigError, closest
from sim.engine_flags import ALIASES, HARMLESS, SWITCHES, UNTIMED, Value, known_names


def parse_command(text: str) -> Iterator[tuple[str, Value]]:
    """Name and value of each argument, in order; ``--no-x`` is x with False, a model without a name is ``model``.

    Raises ConfigError for what is no argument.
    """
    tokens = _without_program(_split(text))
    if tokens and not _is_flag(tokens[0]):
        yield "model", tokens.pop(0)
    while tokens:
        token = tokens.pop(0)
        if not _is_flag(token):
            raise ConfigError(f"vllm_args: '{token}' follows no argument that takes it; quote values with spaces")
        name, given, value = token.lstrip("-").partition("=")
        if token[:2] == "-O" and token[2:].isdigit():  # written in one, as in -O3
            name, given, value = "O", "=", token[2:]
        name = _named(token, name)
        values = [value] if given else _following(name, tokens)
        yield _read(name, values)


def _split(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"vllm_args: {str(error).lower()}; close the quotes") from None


def _without_program(tokens: list[str]) -> list[str]:
    """Without ``vllm serve`` or ``python -m vllm....api_server``, and what stands before it."""
    for place, token in enumerate(tokens):
        if token.startswith("vllm.entrypoints."):
            return tokens[place + 1 :]
        if token.rpartition("/")[2] == "vllm" and tokens[place + 1 : place + 2] == ["serve"]:
            return tokens[place + 2 :]
    return tokens


def _is_flag(token: str) -> bool:
    """Whether it names an argument; ``-1`` is a value."""
    return token.startswith("-") and not token[1:2].isdigit() and token not in ("-", "--")


def _named(token: str, name: str) -> str:
    """The name with dashes; vLLM takes underscores too, and ``--x.y`` for a part of x."""
    if not token.startswith("--"):
        if name not in ALIASES:
            raise ConfigError(f"-{name}: no argument of vLLM that is known here; write it out with two dashes")
        return ALIASES[name]
    return name.partition(".")[0].rstrip("+").replace("_", "-")


def _following(name: str, tokens: list[str]) -> list[str]:
    """Takes the values that follow; a switch only takes true or false."""
    base = name.removeprefix("no-")
    values: list[str] = []
    while tokens and not _is_flag(tokens[0]):
        if base in _PLAIN_SWITCHES and (values or tokens[0].lower() not in ("true", "false")):
            break
        values.append(tokens.pop(0))
    return values


def _read(name: str, values: list[str]) -> tuple[str, Value]:
    known = known_names()
    if name not in known:
        positive = name.removeprefix("no-")
        if name == positive or positive not in known:
            hint = closest(name, known).replace("mean '", "mean '--")
            raise ConfigError(f"--{name}: no argument of vLLM that is known here{hint}")
        if not values or values == ["true"]:
            return positive, False
        raise ConfigError(f"--{name} {values[0]}: is a switch; leave the value out")
    if not values:
        if name not in SWITCHES and name not in _MAY_STAND_ALONE:
            raise ConfigError(f"--{name}: needs a value")
        return name, True
    if values[0].lower() in ("true", "false") and len(values) == 1:
        return name, values[0].lower() == "true"
    return name, " ".join(values)


_SWITCHES = """
    enable-chunked-prefill enable-prefix-caching scheduler-reserve-full-isl async-scheduling enforce-eager
    enable-lora enable-expert-parallel enable-dbo disable-custom-all-reduce disable-cascade-attn trust-remote-code
    disable-log-requests disable-log-stats use-v2-block-manager
"""
_PLAIN_SWITCHES = frozenset(_SWITCHES.split())
_MAY_STAND_ALONE = (
    HARMLESS
    | UNTIMED
    | {"async-scheduling", "enable-lora", "enable-expert-parallel", "enable-dbo", "multi-step-stream-outputs"}
)
