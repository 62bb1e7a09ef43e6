"""The scheduler of the vLLM (engine V1) that is installed here, with a fake executor on the CPU and no model.

Written against 0.11.2 and 0.33.0; vLLM is imported by name, only when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from policies.conformance.decisions import Line, line_writer
from policies.conformance.log import read_log
from policies.conformance.recording import MISUSE, ScriptedRequest, random_requests, record, requests_of
from policies.core.errors import ConfigError, closest

OLDEST = (0, 11)
"""The first minor version that this module knows."""

SIZES: Mapping[str, int] = {
    "block_size": 16,
    "num_blocks": 101,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 2048,
}
"""Settings that every log states, with the values they have unless given."""

_SCHEDULER_NAMES = {
    "policy": "policy",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "watermark": "watermark",
    "reserve_full_isl": "scheduler_reserve_full_isl",
    "async_scheduling": "async_scheduling",
}
"""Settings of a log by the name of vLLM's SchedulerConfig."""

SETTINGS = (*SIZES, "enable_prefix_caching", *_SCHEDULER_NAMES)

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
"""A model's shape for vLLM's configuration; nothing of it is ever loaded."""


def installed_version() -> tuple[str, str]:
    """Version and commit of the installed vLLM; ConfigError in one line if there is none or it is too old."""
    try:
        vllm = import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise _unusable(error) from error
        raise ConfigError(
            "policies record: there is no vllm in this environment; install it here, pip install vllm (several GB)"
        ) from None
    except Exception as error:
        raise _unusable(error) from error
    version = str(getattr(vllm, "__version__", "unknown")).partition("+")[0]
    parts = version.split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdecimal())
    if len(numbers) < 2 or numbers < OLDEST:
        known = ".".join(map(str, OLDEST))
        raise ConfigError(f"policies record: vllm {version} is installed; engine V1 of {known} or newer is needed")
    commit = getattr(getattr(vllm, "_version", None), "commit_id", None) or ""
    return version, str(commit)


def _unusable(error: Exception) -> ConfigError:
    return ConfigError(
        f"policies record: this vllm cannot be used here ({type(error).__name__}: {error}); it may be newer than this"
        " recorder, which knows 0.11.2 and 0.33.0"
    )


def record_installed(
    path: Path,
    *,
    like: Path | None = None,
    settings: Mapping[str, object],
    seed: int = 0,
    num_requests: int = 60,
    abort_share: float = 0.0,
) -> str:
    """Record the installed vLLM into a new file: the requests and settings of the log ``like``, or random requests;
    ``settings`` come on top. Returns what was recorded, in words. ConfigError, LogError in one line."""
    if path.exists():
        raise ConfigError(f"policies record: {path} exists; give the path of a new file")
    version, commit = installed_version()
    for name in settings:
        if name not in SETTINGS:
            raise ConfigError(f"policies record: unknown setting '{name}'{closest(name, SETTINGS)}")
    log = None if like is None else read_log(like)
    old = {} if log is None else {key: value for key, value in log.config.items() if key in SETTINGS}
    config: dict[str, object] = {
        "scenario": path.name.partition(".")[0],
        "system": "vllm",
        "engine": "v1",
        "version": version,
        "commit": commit,
        **SIZES,
        **old,
        **settings,
    }
    scripted = random_requests(seed, num_requests, config, abort_share) if log is None else requests_of(log)
    scheduler = InstalledVllm(config)
    try:
        with path.open("x", encoding="utf-8") as stream:
            record(scheduler, scripted, config, line_writer(stream))
    except MISUSE as error:
        path.unlink()
        raise _unusable(error) from error
    return f"{path}: vllm {version}, {len(scripted)} requests; batchscope policies conform {path}"


class InstalledVllm:
    """``RealScheduler`` of the installed vLLM for the settings of a log's config line.

    ConfigError in one line for settings that this version does not have, and for a vLLM that has changed too much.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self.max_in_flight = 2 if config.get("async_scheduling") else 1
        self._in_flight: deque[tuple[Any, list[str]]] = deque()
        self._requests: dict[str, Any] = {}
        self._names: list[str] = []
        self._scheduled: set[str] = set()
        self._blocks: dict[str, list[int]] = {}
        self._tokens: dict[tuple[str, int], int] = {}
        self._preempted: list[str] = []
        try:
            self._scheduler = _scheduler(config)
            self._hasher = self._new_hasher(config)
            self._kv = self._scheduler.kv_cache_manager
            self._free, self._kv.free = self._kv.free, self._note_free
        except ConfigError:
            raise
        except Exception as error:
            raise _unusable(error) from error

    # -- requests ----------------------------------------------------------------------------------------------------

    def add(self, request: ScriptedRequest) -> None:
        """Hand a request to the scheduler."""
        params = import_module("vllm.sampling_params").SamplingParams
        kind = import_module("vllm.v1.request").Request
        tokens = [self._token(name, offset) for name, length in request.segments for offset in range(length)]
        arguments: dict[str, Any] = {
            "request_id": request.name,
            "prompt_token_ids": tokens,
            "sampling_params": params(max_tokens=request.output_tokens, ignore_eos=True),
            "pooling_params": None,
            "eos_token_id": None,
            "arrival_time": float(len(self._names)),
            "priority": request.priority,
            "block_hasher": self._hasher,
        }
        known = kind.__init__.__code__.co_varnames[: kind.__init__.__code__.co_argcount]
        made = kind(**{name: value for name, value in arguments.items() if name in known})
        self._requests[request.name] = made
        self._names.append(request.name)
        self._scheduler.add_request(made)

    def abort(self, name: str) -> bool:
        """Take a request away."""
        if self._requests[name].is_finished():
            return False
        status = import_module("vllm.v1.request").RequestStatus
        self._scheduler.finish_requests(name, status.FINISHED_ABORTED)
        return True

    def _token(self, segment: str, offset: int) -> int:
        """The token at an offset of a segment: another one for each, none of them special."""
        return self._tokens.setdefault((segment, offset), len(self._tokens) + 3)

    # -- steps -------------------------------------------------------------------------------------------------------

    def plan(self) -> Line:
        """One call of ``schedule``. Requests that it frees were preempted."""
        known = {name: _known_tokens(request) for name, request in self._requests.items()}
        self._preempted = []
        output = self._scheduler.schedule()
        preempted, self._preempted = self._preempted, []
        rows = []
        for name, count in output.num_scheduled_tokens.items():
            done = self._requests[name].num_computed_tokens
            rows.append([name, count, done - count, int(done >= known[name])])
        names = [row[0] for row in rows]
        entering = [name for name in names if name not in self._blocks or name in preempted]
        if names:
            self._in_flight.append((output, [row[0] for row in rows if row[3]]))
        line: Line = {
            "preempted": preempted,
            "sched": rows,
            "tokens": sum(row[1] for row in rows),
            "new": [name for name in entering if name not in self._scheduled],
            "resumed": [name for name in entering if name in self._scheduled],
            "hits": {row[0]: row[2] for row in rows if row[0] in entering and row[2]},
            "new_blocks": self._new_blocks(names),
            "free_after_schedule": self._kv.block_pool.get_num_free_blocks(),
        }
        self._scheduled.update(names)
        return line

    def _new_blocks(self, names: Sequence[str]) -> dict[str, list[int]]:
        added = {}
        for name in names:
            blocks = list(self._kv.get_block_ids(name)[0])
            new = blocks[len(self._blocks.get(name, ())) :]
            self._blocks[name] = blocks
            if new:
                added[name] = new
        return added

    def _note_free(self, request: Any, *arguments: Any, **more: Any) -> Any:
        """In the place of the KV manager's ``free``."""
        self._blocks.pop(request.request_id, None)
        self._preempted.append(request.request_id)
        return self._free(request, *arguments, **more)

    def finish_oldest(self) -> list[str]:
        """One token for each row of the oldest batch that is due one."""
        output, emitting = self._in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        alive = [name for name in names if not self._requests[name].is_finished()]
        outputs = import_module("vllm.v1.outputs")
        fields = outputs.ModelRunnerOutput.__dataclass_fields__
        as_array = "ndarray" in str(fields["sampled_token_ids"].type)
        sampled = [self._sampled(name, emits=name in emitting) for name in names]
        values: dict[str, Any] = {
            "req_ids": names,
            "req_id_to_index": {name: place for place, name in enumerate(names)},
            "sampled_token_ids": [import_module("numpy").array(tokens) for tokens in sampled] if as_array else sampled,
            "spec_token_ids": None,
            "logprobs": None,
            "prompt_logprobs_dict": {},
            "pooler_output": [],
        }
        result = outputs.ModelRunnerOutput(**{name: value for name, value in values.items() if name in fields})
        self._scheduler.update_from_output(output, result)
        return [name for name in alive if self._requests[name].is_finished()]

    def _sampled(self, name: str, *, emits: bool) -> list[int]:
        return [self._token(f"out:{name}", self._requests[name].num_output_tokens)] if emits else []

    def state(self) -> Line:
        """Both queues in order, as the scheduler walks them."""
        waiting = [request.request_id for request in self._scheduler.waiting]
        running = [request.request_id for request in self._scheduler.running]
        return {"waiting": waiting, "running": running, "free": self._kv.block_pool.get_num_free_blocks()}

    def _new_hasher(self, config: Mapping[str, object]) -> Any:
        if not config.get("enable_prefix_caching"):
            return None
        utils = import_module("vllm.v1.core.kv_cache_utils")
        utils.init_none_hash(_hash)
        return utils.get_request_block_hasher(config["block_size"], _hash)


def _hash(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _known_tokens(request: Any) -> int:
    """Tokens that a request has, those in flight included."""
    return int(request.num_tokens + getattr(request, "num_output_placeholders", 0))


# -- configuration ---------------------------------------------------------------------------------------------------


def _scheduler(config: Mapping[str, object]) -> Any:
    """The scheduler class of this version, built as its engine core builds it."""
    module = import_module("vllm.config")
    with tempfile.TemporaryDirectory() as folder:
        shape = {**_MODEL, "max_position_embeddings": config["max_model_len"]}
        Path(folder, "config.json").write_text(json.dumps(shape), encoding="utf-8")
        model = module.ModelConfig(
            model=folder, dtype="float16", skip_tokenizer_init=True, max_model_len=config["max_model_len"]
        )
    cache = module.CacheConfig(
        block_size=config["block_size"], enable_prefix_caching=bool(config.get("enable_prefix_caching", False))
    )
    cache.num_gpu_blocks = config["num_blocks"]
    vllm_config = module.VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=_scheduler_config(module, config),
        device_config=module.DeviceConfig(device="cpu"),
    )
    interface = import_module("vllm.v1.kv_cache_interface")
    torch = import_module("torch")
    spec = interface.FullAttentionSpec(
        block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float16
    )
    kv_config = interface.KVCacheConfig(
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
    )
    name = "async_scheduler.AsyncScheduler" if config.get("async_scheduling") else "scheduler.Scheduler"
    place, _, cls = name.partition(".")
    return getattr(import_module(f"vllm.v1.core.sched.{place}"), cls)(
        vllm_config=vllm_config,
        kv_cache_config=kv_config,
        structured_output_manager=import_module("vllm.v1.structured_output").StructuredOutputManager(vllm_config),
        block_size=config["block_size"],
    )


def _scheduler_config(module: ModuleType, config: Mapping[str, object]) -> Any:
    """vLLM's own defaults but where the log states otherwise; what its format means by a missing setting is stated."""
    kind = module.SchedulerConfig
    values: dict[str, Any] = {
        name: config[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    }
    values |= {"is_encoder_decoder": False, "async_scheduling": False, "enable_chunked_prefill": True}
    fields = kind.__dataclass_fields__
    for setting, name in _SCHEDULER_NAMES.items():
        if setting not in config:
            continue
        if name not in fields:
            raise ConfigError(f"policies record: the installed vllm has no setting '{setting}'; leave it out")
        values[name] = config[setting]
    return kind(**{name: value for name, value in values.items() if name in fields})
