"""``python -m calibrate.gpu_check`` rehearsed on the CPU: its stages, their deadlines, what is not repeated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.gpu import table
from calibrate.gpu.bounds import bound, step_bound_s
from calibrate.gpu.environment import catalog_card
from calibrate.gpu.fitted import kind_of, read_timed, split
from calibrate.gpu.grids import stored
from calibrate.gpu.kernels import Job, run_jobs
from calibrate.gpu.record import Settings, StageRecord, found_in, read_stage
from calibrate.gpu.scenarios import scenarios
from calibrate.gpu.stages import STAGES, Stage, chosen, ends_s
from calibrate.gpu.supervisor import supervise
from calibrate.gpu.worker import Check
from calibrate.gpu_check import main
from calibrate.measure_points import Step
from calibrate.measure_rows import Timed
from policies.catalog import card, model
from policies.core.errors import ConfigError
from traces.record import packed

ROOT = Path(__file__).resolve().parents[2]
NAMES = [stage.name for stage in STAGES]


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "calibrate.gpu_check", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of one whole check of the smallest model."""
    folder = tmp_path_factory.mktemp("gpu") / "out"
    done = check("--device", "cpu", "--model", "tiny", "--out", folder, "--deadline-s", 900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_every_stage_leaves_its_json(rehearsed: tuple[Path, str]) -> None:
    folder, _ = rehearsed
    for name in NAMES:
        content = json.loads((folder / f"{name}.json").read_text())
        assert (content["status"], content["error"]) == ("complete", ""), name
        assert (content["device"], content["model"]) == ("cpu", "tiny")
    assert not list(folder.glob(".*"))
    found = {name: found_in(folder, name) for name in NAMES}
    assert found["environment"]["environment"]["torch"]
    assert found["environment"]["ceilings"]["copy_bytes_per_s"] > 0
    assert all(error <= limit for _, _, error, limit in found["kernels"]["checks"])
    assert found["tokens"]["wrong_tokens"] == 0
    plans = found["tokens"]["plans"]
    assert not any(row["wrong"] for row in plans.values())
    assert sum(row["preemptions"] for row in plans.values()) > 5
    assert {row["sequences"] for row in found["grids"]["decode"]} == {1, 8, 32}
    assert found["fit"]["errors"]["all"]["points"] > 5
    names = {scenario.name for scenario in scenarios(model("tiny"), 10)}
    assert set(found["replay"]["runs"]) == set(found["simulate"]["runs"]) == names
    assert found["replay"]["runs"]["capped-swap-32"]["swapped"]["out"]["bytes"] > 0


def test_both_worlds_served_the_same_requests(rehearsed: tuple[Path, str]) -> None:
    for name, run in found_in(rehearsed[0], "simulate")["runs"].items():
        for key in ("requests", "output_tokens"):
            assert run["measured"][key] == run["simulated"][key] > 0, name
        assert run["steps"]["decode"]["points"] > 5
    runs = found_in(rehearsed[0], "simulate")["runs"]
    assert runs["capped-recompute-32"]["measured"]["preemptions"] > 0


def test_the_page_says_which_device_and_shows_no_target_of_a_card(rehearsed: tuple[Path, str]) -> None:
    folder, output = rehearsed
    page = (folder / "gpu-check.md").read_text()
    assert page in output
    assert "Measured with `python -m calibrate.gpu_check` on **cpu (" in page
    assert "H200" not in page
    assert "target" not in page
    assert "measured | simulated with the fitted costs" in page
    assert "Bounds are computed" in page


def test_resume_repeats_nothing(rehearsed: tuple[Path, str]) -> None:
    folder, _ = rehearsed
    before = {name: (folder / f"{name}.json").read_bytes() for name in NAMES}
    began = time.process_time()
    assert main(["--resume", "--out", str(folder)]) == 0
    assert time.process_time() - began < 5
    assert {name: (folder / f"{name}.json").read_bytes() for name in NAMES} == before


def test_fit_and_simulation_run_elsewhere_from_the_json(rehearsed: tuple[Path, str], tmp_path: Path) -> None:
    # As if a card had left these files and another machine went on.
    for name in ("environment", "grids", "replay"):
        content = json.loads((rehearsed[0] / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "device": "cuda"}))
    (tmp_path / "check.json").write_text(json.dumps({"device": "cuda", "model": "tiny"}))
    assert main(["--resume", "--stages", "fit,simulate", "--out", str(tmp_path), "--deadline-s", "300"]) == 0
    assert found_in(tmp_path, "simulate")["errors"]["output_tokens_per_s"]["points"] == 11
    assert not (tmp_path / "kernels.json").exists()


# -- deadlines and failures ----------------------------------------------------------------------------------


def stage(name: str, share: float = 1.0) -> Stage:
    return Stage(name, "a stage of a test", share, f"tests.executor.gpu_check_stages:{name}", on_device=False)


def test_a_stage_that_fails_dies_or_hangs_is_recorded_and_the_others_run(tmp_path: Path) -> None:
    settings = Settings("cpu", "tiny", tmp_path, 300.0)
    said: list[str] = []
    stages = [stage("hangs", 3), stage("fails", 99), stage("dies", 99), stage("keeps", 99)]
    assert not supervise(settings, stages, said.append)
    found = {one.name: read_stage(tmp_path, one.name) or {} for one in stages}
    assert [found[one.name]["status"] for one in stages] == ["overran", "failed", "failed", "complete"]
    assert found["fails"]["error"] == "RunError: this is wrong"
    assert found["dies"]["error"] == "its process ended with exit code 7"
    assert "not over when its time was" in found["hangs"]["error"]
    assert found["keeps"]["found"] == {"answer": 42}
    assert (found["fails"]["found"], found["dies"]["found"]) == ({"answer": 2}, {"answer": 3})
    assert any(line.startswith("  overran after") for line in said)


def test_what_a_stage_leaves_of_its_time_is_the_next_ones() -> None:
    stages = [stage("keeps", 1), stage("fails", 3)]
    assert ends_s(stages, 100.0, 40.0) == [110.0, 140.0]
    assert ends_s(list(STAGES), 0.0, 330.0)[-1] == pytest.approx(330.0)


def test_a_record_can_be_read_while_its_stage_runs(tmp_path: Path) -> None:
    record = StageRecord(tmp_path, "grids", Settings("cpu", "tiny", tmp_path, 1.0))
    record.keep(rows=[1, 2])
    content = read_stage(tmp_path, "grids")
    assert content is not None
    assert (content["status"], content["found"]) == ("running", {"rows": [1, 2]})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu", "--stages", "grid"], "did you mean 'grids'?"),
        (["--device", "tpu"], "choose cuda, cuda:N or cpu"),
        (["--device", "cpu", "--model", "llama-2-7"], "llama-2-7b"),
        (["--device", "cpu", "--deadline-s", "0"], "give a number of seconds above 0"),
        (["--device", "cuda:9", "--stages", "environment"], "device = 'cuda:9': there are"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "check.json").write_text(json.dumps({"device": "cuda", "model": "llama-2-7b"}))
    assert main(["--device", "cpu", "--out", str(tmp_path), "--stages", "fit"]) == 2
    assert "holds a check of llama-2-7b on cuda" in capsys.readouterr().err


def test_jobs_of_the_kernels_run_in_processes_and_say_what_is_wrong(tmp_path: Path) -> None:
    settings = Settings("cpu", "tiny", tmp_path, 900.0)
    check = Check(settings)
    check.begin(StageRecord(tmp_path, "kernels", settings), time.monotonic() + 900)
    jobs = [Job("launches", ("launch", "cpu", "tiny", "1", "float32", "16")), Job("wrong", ("check", "cpu", "float33"))]
    run_jobs(check, jobs)
    found = found_in(tmp_path, "kernels")["jobs"]
    assert found["launches"]["error"] == ""
    assert found["wrong"]["error"].startswith("exit code 1: KeyError: 'float33'")


# -- parts ---------------------------------------------------------------------------------------------------

BLOCKED = ("simpy", "plotly", "pandas", "pyarrow", "rich", "jinja2", "click", "starlette", "pydantic")
IMPORTS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocker())
import importlib
for name in {names!r}:
    importlib.import_module(name)
from calibrate.gpu.stages import STAGES
from calibrate.gpu.worker import _function
for stage in STAGES:
    _function(stage)
"""


def test_no_stage_needs_more_to_load_than_an_image_of_torch_has() -> None:
    names = ["calibrate.gpu_check", *(f"calibrate.gpu.{path.stem}" for path in (ROOT / "calibrate/gpu").glob("*.py"))]
    is_compiled = not (packed.__file__ or "").endswith(".py")
    blocked = BLOCKED if is_compiled else (*BLOCKED, "librt")  # which compiled modules cannot do without
    code = IMPORTS.format(blocked=blocked, names=[name.removesuffix(".__init__") for name in names])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_itself_is_light() -> None:
    code = "import sys, calibrate.gpu_check; print(sorted({'torch', 'numpy', 'simpy', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H200", 140, "h200-141gb"),
        ("NVIDIA GH200 480GB", 95, "gh200-96gb"),
        ("NVIDIA H100 80GB HBM3", 79, "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 39, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 79, "a100-pcie-80gb"),
        ("NVIDIA L40S", 44, "l40s-48gb"),
        ("NVIDIA GeForce RTX 4090", 23, "rtx4090-24gb"),
        ("Some other card", 16, None),
    ],
)
def test_cards_are_known_by_their_own_names(name: str, gib: int, expected: str | None) -> None:
    found = catalog_card(name, gib << 30)
    assert (None if found is None else found.name) == expected


def test_bounds_are_those_of_the_published_arithmetic() -> None:
    # 13.21 GB of weights and 0.5 MiB of KV a token at 4.3 TB/s, 788 TFLOPS: 3.11, 3.34, 4.15 ms and 35.1 ms.
    ceilings = {"copy_bytes_per_s": 4.3e12, "matmul_flops_per_s": 788e12}
    environment = {"environment": {"card": "h200-141gb"}, "ceilings": ceilings}
    floor = bound(model("llama-2-7b"), environment, 2)
    assert floor is not None
    decode = [1e3 * step_bound_s(floor, (275,) * rows, 0, 0) for rows in (1, 8, 32)]
    assert decode == pytest.approx([3.11, 3.34, 4.15], abs=0.02)
    assert 1e3 * step_bound_s(floor, (), 2048, 0) == pytest.approx(35.1, abs=0.6)
    nominal = bound(model("llama-2-7b"), {"environment": {"card": "h200-141gb"}}, 2)
    assert nominal is not None
    assert nominal.context_read_s == pytest.approx(524288 / card("h200-141gb").bytes_per_s)
    assert bound(model("llama-2-7b"), {}, 2) is None


def test_held_out_steps_are_inner_ones_with_attention() -> None:
    steps = {Step((context,) * rows): 1.0 for rows in (1, 2, 4, 8) for context in (16, 64, 256, 1024)}
    steps |= {Step((16,) * rows, bare=True): 0.5 for rows in (1, 2, 4, 8)}
    kept, out = split(steps)
    assert len(out) == int(0.3 * 16)
    assert set(kept) | set(out) == set(steps)
    assert not set(kept) & set(out)
    assert not any(step.bare for step in out)
    assert {kind_of(step) for step in out} == {"decode"}
    assert Step((1024,) * 8) in kept
    assert split(steps)[1] == out


def test_the_runs_are_those_of_the_claim() -> None:
    runs = {run.name: run for run in scenarios(model("llama-2-7b"), 1)}
    assert [runs[f"paged-{clients}"].clients for clients in (1, 4, 8, 16, 32)] == [1, 4, 8, 16, 32]
    workload = runs["paged-32"].tables["workload"]
    assert workload["prompt"] == {"dist": "uniform", "low": 50, "high": 200}
    assert workload["output"] == {"dist": "uniform", "low": 100, "high": 500}
    assert [runs[f"paged-{n}"].tables["workload"]["num_requests"] for n in (1, 4, 8, 16, 32)] == [8, 16, 32, 48, 64]
    assert runs["capped-swap-32"].tables["engine"]["num_gpu_blocks"] == 600
    small = {run.name: run for run in scenarios(model("15m"), 10)}
    assert small["paged-32"].tables["workload"]["output"] == {"dist": "uniform", "low": 10, "high": 50}
    assert small["capped-swap-32"].tables["engine"]["num_gpu_blocks"] == 60


def page_of(tmp_path: Path, name: str, card_name: str, graph_s: float) -> str:
    settings = Settings("cuda", "llama-2-7b", tmp_path, 330.0)
    known = {"name": name, "card": card_name, "date": "2020-01-01"}
    ceilings = {"copy_bytes_per_s": 4e12, "d2h_merged_bytes_per_s": 5e10, "h2d_merged_bytes_per_s": 5e10}
    StageRecord(tmp_path, "environment", settings).keep(environment=known, ceilings=ceilings)
    decode = [{"sequences": 8, "context": 275, "step_s": 4.4e-3, "graph_s": graph_s, "attention_s": 1e-4}]
    swap: list[dict[str, Any]] = [{"blocks": 128, "out_bytes_per_s": 4.5e10, "in_bytes_per_s": 4e10}]
    StageRecord(tmp_path, "grids", settings).keep(decode=decode, swap=swap)
    return table.page(settings)


def test_targets_are_judged_on_the_card_they_are_for(tmp_path: Path) -> None:
    def verdicts(page: str) -> list[str]:
        return [line.split("|")[-2].strip() for line in page.splitlines() if "<=" in line or ">=" in line]

    text = page_of(tmp_path, "NVIDIA H200", "h200-141gb", 4.0e-3)
    assert verdicts(text) == ["not measured", "met", "not measured", "not measured", "missed", "not measured"]
    assert "measured on NVIDIA H200" in text
    assert "80.0 %" in text
    other = page_of(tmp_path, "NVIDIA A100-SXM4-80GB", "a100-80gb", 8.0e-3)
    assert verdicts(other)[1] == "(another card)"
    assert "missed" not in verdicts(other)


def test_the_guide_names_every_stage_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/gpu-check.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in text] == []
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert options == set(re.findall(r"\| `(--[a-z-]+)", text))


def test_stages_are_named_in_any_order_and_run_in_theirs() -> None:
    assert [one.name for one in chosen("replay, environment")] == ["environment", "replay"]
    assert [one.name for one in chosen(None)] == NAMES
    with pytest.raises(ConfigError, match="choose from"):
        chosen("everything")


def test_points_are_read_as_they_were_stored() -> None:
    """Steps that differ only in their number of chunks, or in whether they sample, stay apart."""
    kinds = product((False, True), (1, 2))
    steps = [Step(chunk_tokens=64, bare=True, silent=silent, chunks=chunks) for silent, chunks in kinds]
    steps += [Step((16, 16, 48)), Step((32,), 64, 16)]
    timed = Timed({step: 0.25 * place for place, step in enumerate(steps)}, {1: 0.5}, {4: 0.125}, {})
    assert read_timed({"timed": json.loads(json.dumps(stored(timed)))}) == timed
    # A check that went before has neither of the two.
    earlier = {"steps": [[[[16, 2]], 64, 32, False, 0.5]], "heads": [], "swaps": []}
    assert read_timed({"timed": earlier}).steps == {Step((16, 16), 64, 32): 0.5}
