"""Hypothesis profiles and the shared data folder, for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# ``ci`` draws the same examples everywhere; ``fuzz`` (make fuzz) draws many new ones each time.
settings.register_profile(
    "ci",
    max_examples=30,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz", settings.get_profile("ci"), max_examples=1_000, derandomize=False, database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the public traces, profiles and recorded logs, which do not travel with the project."""
    folder = Path(os.environ.get("BATCHSCOPE_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; BATCHSCOPE_DATA names the folder")
    return folder


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is a new folder (``pytestmark = pytest.mark.usefixtures("in_empty_folder")``)."""
    monkeypatch.chdir(tmp_path)
