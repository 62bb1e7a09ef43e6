"""Facts in what a running vLLM has written: its start-up log, or a saved /metrics page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from policies.core.errors import ConfigError
from sim.engine_flags import Value

LOG_EXAMPLE = "GPU KV cache size: 118,288 tokens"
METRIC = "vllm:cache_config_info"


class Found(NamedTuple):
    """Something that a line says: an argument by its name with dashes, or one of ``num-gpu-blocks``,
    ``kv-cache-tokens``, ``version`` and ``engine`` (V0 or V1)."""

    name: str
    value: Value
    where: str


def read_log(path: str) -> list[Found]:
    """Everything that a start-up log of vLLM 0.2 to 0.33 says, in order; raises ConfigError if it says nothing."""
    found = [part for number, line in enumerate(_lines(path), 1) for part in _of_line(line, f"{path}, line {number}")]
    if not found:
        raise ConfigError(
            f"{path}: no line of a vLLM start-up log, such as '{LOG_EXAMPLE}'; give the engine's log from its start"
        )
    return found


def read_metrics(path: str) -> list[Found]:
    """What the page says of the KV cache; raises ConfigError if it says nothing of it."""
    for number, line in enumerate(_lines(path), 1):
        name, brace, labels = line.partition("{")
        if brace and name.strip() == METRIC:
            return [
                Found(_METRIC_NAMES[label], _value(text), f"{path}, line {number}")
                for label, text in _LABEL.findall(labels)
                if label in _METRIC_NAMES
            ]
    raise ConfigError(f"{path}: no {METRIC}; save the page http://HOST:PORT/metrics of a vLLM server")


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_METRIC_NAMES = {
    "block_size": "block-size",
    "num_gpu_blocks": "num-gpu-blocks",
    "kv_cache_size_tokens": "kv-cache-tokens",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "enable_prefix_caching": "enable-prefix-caching",
    "cache_dtype": "kv-cache-dtype",
    "swap_space_bytes": "swap-space-bytes",
}

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PAIR = re.compile(r"""\s*['"]?(\w+)['"]?\s*[=:]\s*(.*)""", re.DOTALL)
_ARGUMENTS = re.compile(r"(?:non-default args: \{?|args: Namespace\()(.*)")
_ENGINE = re.compile(r"Initializing an? (?:(V\d) )?LLM engine(?: \(v([^)]*)\))? with config: (.*)")
_SINGLE = (
    (re.compile(r"vLLM API server version (\S+)"), "version"),
    (re.compile(r"# (?:GPU|gpu|CUDA|cuda) blocks: ([\d,]+)"), "num-gpu-blocks"),
    (re.compile(r"num_gpu_blocks is: ?([\d,]+)"), "num-gpu-blocks"),
    (re.compile(r"GPU KV cache size: ([\d,]+) tokens"), "kv-cache-tokens"),
    (re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"), "max-model-len"),
    (re.compile(r"Using max model len (\d+)"), "max-model-len"),
    (re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"), "max-num-batched-tokens"),
)
_ENGINE_NAMES = {"max_seq_len": "max-model-len", "chunked_prefill_enabled": "enable-chunked-prefill"}
_ENGINE_KEEPS = ("model", "tensor_parallel_size", "pipeline_parallel_size", "quantization", "kv_cache_dtype", "dtype")


def _lines(path: str) -> Iterable[str]:
    from gzip import BadGzipFile
    from gzip import open as open_gzip

    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with (open_gzip if packed else open)(path, "rt", encoding="utf-8", errors="replace") as stream:
            yield from stream
    except (BadGzipFile, EOFError):
        raise ConfigError(f"{path}: the gzip file is cut off or damaged; fetch it again") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); give the path of a file") from None


def _of_line(line: str, where: str) -> Iterator[Found]:
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if arguments := _ARGUMENTS.search(line):
        for name, text in _pairs(arguments[1]):
            yield Found(name.replace("_", "-"), _value(text), where)
    elif engine := _ENGINE.search(line):
        yield from _of_engine(engine[1], engine[2], engine[3], where)
    else:
        for pattern, name in _SINGLE:
            if single := pattern.search(line):
                yield Found(name, single[1].replace(",", ""), where)
        if "Chunked prefill is enabled" in line:
            yield Found("enable-chunked-prefill", True, where)
        if "Asynchronous scheduling is enabled" in line:
            yield Found("async-scheduling", True, where)


def _of_engine(generation: str | None, version: str | None, config: str, where: str) -> Iterator[Found]:
    yield Found("engine", generation or "V0", where)
    if version:
        yield Found("version", version, where)
    for name, text in _pairs(config):
        if name in _ENGINE_NAMES or name in _ENGINE_KEEPS or name == "enable_prefix_caching":
            value = _value(text)
            if name == "dtype" and isinstance(value, str):
                value = value.removeprefix("torch.")
            yield Found(_ENGINE_NAMES.get(name, name.replace("_", "-")), value, where)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of ``a=1, b={...}, ...`` or ``'a': 1, ...``, up to the bracket that closes them."""
    for part in _parts(text):
        if pair := _PAIR.fullmatch(part):
            yield pair[1], pair[2].strip()


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas outside of brackets and quotes."""
    start, depth, quote = 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth < 0:
                yield text[start:place]
                return
        elif letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _value(text: str) -> Value:
    text = text.strip()
    if text and text[0] not in "'\"[{":
        text = text.split()[0]  # one version forgot a comma
    if text in ("None", "null", "''", '""', ""):
        return None
    if text in ("True", "False", "true", "false"):
        return text in ("True", "true")
    return text[1:-1] if text[:1] in "'\"" else text
