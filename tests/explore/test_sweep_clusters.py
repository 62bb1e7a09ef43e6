"""The same sweep on a Dask cluster and on a real two-node Ray cluster; the latter is opt-in (CONTRIBUTING.md)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from policies.core.errors import UserError
from sim import sweep
from tests.explore.sweeps import GRID, keys_of, write

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_a_dask_cluster_gives_the_same_table() -> None:
    distributed = pytest.importorskip("distributed")
    write(GRID)
    alone = sweep("sweep.toml", jobs=1)
    size = {"n_workers": 2, "threads_per_worker": 1}
    with distributed.LocalCluster(**size, processes=False, dashboard_address=None) as cluster:
        together = sweep("sweep.toml", out="out", dask=cluster.scheduler_address)
    pd.testing.assert_frame_equal(together.table, alone.table)
    assert len(set(keys_of("out"))) == 6


def test_a_cluster_that_is_not_there_ends_in_one_line() -> None:
    pytest.importorskip("distributed")
    write(GRID)
    with pytest.raises(UserError, match=r"--dask 127\.0\.0\.1:1: .*give the scheduler's address"):
        sweep("sweep.toml", dask="127.0.0.1:1")


@pytest.fixture
def ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a cluster of two nodes on loopback, made by ``ray start`` and stopped by the ids of its processes."""
    if not os.environ.get("BATCHSCOPE_RAY"):
        pytest.skip("BATCHSCOPE_RAY is not set: a real Ray cluster takes half a minute to start")
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = Path(sys.executable).with_name("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, before = f"127.0.0.1:{port}", ray_processes()
    common = ["--num-cpus=1", "--disable-usage-stats"]
    head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false"]
    node = [f"--address={address}", "--node-ip-address=127.0.0.2"]
    try:
        for options in (head, node):
            subprocess.run([program, "start", *options, *common], check=True, capture_output=True, timeout=120)
        yield address
    finally:
        stop(ray_processes() - before)


def ray_processes() -> set[int]:
    """Ids of the processes of Ray on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ")
        except OSError:  # it has ended
            continue
        if b"/ray/" in command or command.startswith(b"ray::"):
            found.add(int(path.parent.name))
    return found


def stop(processes: set[int]) -> None:
    """End these processes, and wait until they are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + 10
        while processes & ray_processes() and time.monotonic() < until:
            time.sleep(0.2)


@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_ray_cluster_of_two_nodes_gives_the_same_table(ray_cluster: str) -> None:
    ray: Any = pytest.importorskip("ray")
    write(GRID)
    alone = sweep("sweep.toml", jobs=1)
    ray.init(address=ray_cluster, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        assert ray.cluster_resources()["CPU"] == 2.0
    finally:
        ray.shutdown()
    together = sweep("sweep.toml", out="out", ray=ray_cluster)
    pd.testing.assert_frame_equal(together.table, alone.table)
    assert len(set(keys_of("out"))) == 6
