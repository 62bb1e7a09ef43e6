"""Where runs are run: in this process, on the cores of this machine, or on a Ray or Dask cluster, through joblib."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from policies.core.errors import RunError, UserError

T = TypeVar("T")
R = TypeVar("R")
_WATCH_S = 1.0
Runner = Callable[[Callable[[T], R], Iterable[T]], Iterator[R]]
"""Calls a function on many arguments and yields the results as they come, in any order."""


class Where(NamedTuple):
    """``jobs`` processes of this machine (None: one a core); or the cluster of Ray or Dask at that address, with all
    its cores."""

    jobs: int | None = None
    ray: str | None = None
    dask: str | None = None

    def check(self) -> None:
        """Raise a UserError for what cannot be meant."""
        given = [name for name, value in self._asdict().items() if value is not None]
        if len(given) > 1:
            raise UserError(f"{' and '.join(f'--{name}' for name in given)} are both given; leave one out")
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: give a whole number of at least 1")


@contextmanager
def workers(where: Where, most: int) -> Iterator[Runner[Any, Any]]:
    """A runner over the workers at ``where``; they stay until the end, so that each loads the program once. No more
    than ``most`` tasks come at a time."""
    where.check()
    jobs = min(where.jobs or _cores(), most)
    if where.ray is None and where.dask is None and jobs == 1:
        yield lambda call, arguments: map(call, arguments)
        return
    joblib = needed("joblib", "sweep")
    with ExitStack() as stack:
        if where.ray is not None:
            stack.enter_context(_ray(where.ray, joblib))
            jobs = -1
        elif where.dask is not None:
            stack.enter_context(_dask(where.dask, joblib))
            jobs = -1
        else:
            watch = {"initializer": _end_with, "initargs": (os.getpid(),)}
            stack.enter_context(joblib.parallel_config(backend="loky", **watch))
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        stack.enter_context(parallel)

        def run(call: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
            results: Any = None
            try:
                with _interrupt_held():
                    results = parallel(joblib.delayed(call)(argument) for argument in arguments)
                yield from results
            except KeyboardInterrupt as stop:
                if results is not None:
                    results.throw(stop)  # it ends its processes without a word; one that is dropped warns
                raise
            except Exception as error:
                if type(error).__name__ in ("TerminatedWorkerError", "BrokenProcessPool", "RayActorError"):
                    raise RunError(
                        "a worker process died, out of memory perhaps; what has finished is kept: start the same "
                        "command again, with fewer --jobs"
                    ) from None
                raise

        yield run


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Processes that start within are never told of Ctrl-C, which a terminal sends to all: they would print where they
    were. This process is told afterwards, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # no such masks on this system
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # starting it lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int) -> None:
    """In a new process: end when the one that started it is gone. One that was killed tells its workers nothing, and
    they would wait for minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _ray(address: str, joblib: Any) -> Iterator[None]:
    """joblib on the Ray cluster at that address (``auto``: the one of this machine)."""
    ray = needed("ray", "ray")
    backend = needed("ray.util.joblib.ray_backend", "ray").RayBackend
    # Results of Ray's pool come through callbacks as those of any other, only that joblib does not expect it of a pool.
    joblib.register_parallel_backend("ray", type("RayBackend", (backend,), {"supports_return_generator": True}))
    logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            remedy = "give the address that 'ray start' printed"
            raise UserError(f"--ray {address}: {_first_line(error)}; {remedy}") from None
    try:
        with joblib.parallel_config(backend="ray"):
            yield
    finally:
        if mine:
            ray.shutdown()


@contextmanager
def _dask(address: str, joblib: Any) -> Iterator[None]:
    """joblib on the Dask cluster whose scheduler is at that address."""
    distributed = needed("distributed", "dask")
    try:
        client = distributed.Client(address, timeout="5s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"--dask {address}: {_first_line(error)}; give the scheduler's address") from None
    with client, joblib.parallel_config(backend="dask", client=client):
        yield


def needed(module: str, extra: str) -> Any:
    """A module of another distribution; raises a UserError that says which extra of batchscope brings it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"there is no {module.partition('.')[0]}; pip install 'batchscope[{extra}]'") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
