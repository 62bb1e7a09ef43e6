"""The documentation as a site: one command, every page, the API from docstrings, nothing asked of a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import Page

pytest.importorskip("mkdocs", reason="no mkdocs here: pip install 'batchscope[docs]'")
pytest.importorskip("mkdocstrings", reason="no mkdocstrings here: pip install 'batchscope[docs]'")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make docs`` builds it, elsewhere; a link that leads nowhere fails it."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    # No third-party package but mkdocs' own is imported: the API comes from the sources.
    blocked = "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'simpy', 'pandas', 'sim', 'policies']))"
    run = f"{blocked}; from mkdocs.__main__ import cli; cli(['build', '--strict', '--quiet', '-d', {str(folder)!r}])"
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_it_has_a_page_for_every_guide_notebook_and_project_file(site: Path) -> None:
    made = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")} - {"404"}
    guides = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    project = {f"project/{name}" for name in ("index", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")}
    assert made == guides | notebooks | project
    linked = {link["href"].partition("#")[0] for link in read(site / "index.html").all("a")}
    assert {f"{name}.html" for name in made} <= linked


API = {
    "sim": ["api.simulate", "explore.sweep.sweep", "explore.capacity.capacity", "result.Result.figure"],
    "policies": ["core.plan.StepPlan", "core.engine.Engine", "systems.base.BatchingPolicy"],
    "traces": ["record.read.read_run", "workload.readers.open_trace"],
    "gpu_backend": ["ops.Ops", "model.LlamaModel", "step_batch.StepBatch"],
    "calibrate": ["fit.fit_profile", "execute.execute", "measure.measure"],
}


@pytest.mark.parametrize("package", API)
def test_the_api_pages_name_what_is_public(site: Path, package: str) -> None:
    made = read(site / "api" / f"{package}.html")
    ids = {attributes["id"] for _, attributes in made.elements if "id" in attributes}
    assert {f"{package}.{name}" for name in API[package]} <= ids
    assert not {name for name in ids if re.search(r"\._[a-z]", name)}, "nothing private"


def test_a_notebook_shows_its_code_its_words_and_its_pictures(site: Path) -> None:
    made = read(site / "notebooks" / "01-first-run.html")
    assert "Question:" in made.visible
    assert "TTFT: time to first token" in made.visible
    pictures = made.all("img")
    assert len(pictures) == 2
    for picture in pictures:
        assert picture["alt"].startswith("Figure: ")
        assert (site / "notebooks" / picture["src"]).read_bytes().startswith(b"\x89PNG")


def test_pages_run_nothing_and_ask_nobody(site: Path) -> None:
    for path in site.rglob("*.html"):
        made = read(path)
        assert made.all("script") == []
        sources = [image["src"] for image in made.all("img")] + [link["href"] for link in made.all("link")]
        assert [source for source in sources if source.startswith(("http", "//"))] == [], path
        assert len(made.texts("h1")) == 1, path
