"""The pages in docs say what the program does: every name they must list, examples that load, figures of the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from calibrate.cli import describe_fit
from calibrate.sources import fitted_groups, recipe_for
from policies.presets import presets
from sim.config import SECTIONS, WorkloadConfig
from sim.costs.load import DATA_DIR, shipped_path
from sim.costs.load import shipped as cost_files
from sim.costs.roofline import ROOFLINE_FILE
from sim.engine_flags import PER_PRESET, SWITCHES, VALUES
from traces.workload.formats import CSV_FORMATS, JSON_FORMATS, OPTIONAL
from traces.workload.profile import load_profile, shipped
from traces.workload.readers import open_trace

DOCS = Path(__file__).parents[1] / "docs"
TRACES = (DOCS / "traces.md").read_text(encoding="utf-8")
CALIBRATE = (DOCS / "calibrate.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced examples in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_page_about_traces_names_every_format_column_generator_and_key() -> None:
    formats = (*CSV_FORMATS, *JSON_FORMATS)
    names = {name for known in formats for name in (known.name, *known.required)} | set(shipped())
    keys = get_type_hints(WorkloadConfig)
    generators, _ = get_args(keys.pop("generator"))
    del keys["trace"], keys["seed"]
    keys = {name: kind for name, kind in keys.items() if not name.startswith("_")}
    for name in (*names, *OPTIONAL, *get_args(generators), *keys):
        assert f"`{name}`" in TRACES, name


@pytest.mark.parametrize("language", ["csv", "jsonl"])
def test_its_examples_are_traces(language: str, tmp_path: Path) -> None:
    (example,) = blocks(TRACES, language)
    path = tmp_path / "example"
    path.write_text(example, encoding="utf-8")
    trace = open_trace(str(path))
    assert (trace.format, trace.num_rows, trace.notices) == (language, 3, ())
    first, second, third = trace.rows
    assert first.segments == second.segments[:2] == (("system", 200), ("q1", 100))
    assert (second.parent_id, third.priority, third.abort_after_s) == (0, 5, 30.0)


def test_the_table_of_profiles_names_the_licence_of_each() -> None:
    for name in shipped():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", TRACES, re.MULTILINE)
        assert f"({load_profile(name).licence})" in row


def test_the_page_about_engines_names_arguments_and_keys_there_are() -> None:
    text = (DOCS / "from-your-engine.md").read_text(encoding="utf-8")
    table = "\n".join(re.findall(r"^\| `--.*$", text, re.MULTILINE)).replace("--[no-]", "--")
    named = set(re.findall(r"`--([a-z-]+)", table))
    assert named == {*VALUES, *SWITCHES, *PER_PRESET}
    for section, key in re.findall(r"`(engine|model|hardware)\.([a-z_]+)`", text):
        assert key in SECTIONS[section].all_keys(), key


def test_its_settings_are_a_workload(tmp_path: Path) -> None:
    from sim.config import load_config

    (example,) = blocks(TRACES, "toml")
    path = tmp_path / "RUN.toml"
    path.write_text(example, encoding="utf-8")
    assert load_config(str(path), ()).workload.max_tokens == "x1.5"


def test_the_page_about_calibration_names_every_table_and_its_source() -> None:
    for source in {table.source for group in fitted_groups() for table in recipe_for(*group).tables}:
        repository, path = source.origin.split(" (")[0].split(":")
        for word in (source.file, repository, path.strip(), source.licence):
            assert word in CALIBRATE, word


def test_the_errors_on_it_are_those_of_the_shipped_file() -> None:
    shipped = json.loads(shipped_path("llama-2-7b", "a100-80gb").read_text(encoding="utf-8"))
    assert blocks(CALIBRATE, "text") == [describe_fit(shipped) + "\n"]


def test_the_table_of_cost_files_on_it_is_complete() -> None:
    for name in cost_files():
        content = json.loads((DATA_DIR / f"{name}.json").read_text(encoding="utf-8"))
        step = content["held_out"]["step"]
        errors = f"{100 * step['median']:.2f} | {100 * step['p95']:.2f} | {step['points']:,}"
        assert f"| `{name}` | {content['version']}, {content['date']} | {errors} |" in CALIBRATE


def test_the_page_about_costs_has_the_figures_of_the_files() -> None:
    text = (DOCS / "costs.md").read_text(encoding="utf-8")
    content = json.loads(ROOFLINE_FILE.read_text(encoding="utf-8"))
    band, shares = content["band"], content["shares"]
    assert f"{band['p5']:.2f} to {band['p95']:.2f} of those measured in 90 % of {band['runs']} published" in text
    for name in ("weights", "kv", "matrices", "attention"):
        assert f"| {shares[name]:.2f}" in text, name
    for known in presets():
        if known.host is not None and known.name in ("vllm-0.2.7", "vllm-0.6"):
            base_s, per_seq_s = known.host[:2]
            assert f"| {1e3 * base_s:g} ms + {1e3 * per_seq_s:g} ms a sequence" in text
    for key in re.findall(r"`hardware\.([a-z_]+)", text):
        assert key in SECTIONS["hardware"].all_keys(), key
