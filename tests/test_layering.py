"""What each package may load, seen from fresh interpreters, and that all five come from one place.

import-linter (``make layers``) reads the imports of all code, lazy ones included. These tests cover what it
cannot see: what really gets loaded, and rules that allow an import only inside a function.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policies", "traces", "sim", "gpu_backend", "calibrate")
LAZY = ("jinja2", "pandas", "plotly", "pyarrow", "scipy", "torch", "triton")
HEAVY = (*LAZY, "numpy", "simpy")
TESTING = Path("policies", "testing.py")

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if is_blocked(name.partition(".")[0]):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""

IMPORT_ALL = """
import importlib, pkgutil

for root in ROOTS:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith("__main__") and module.name != "policies.testing":
            importlib.import_module(module.name)
"""

SHOW_HELP = """
sys.argv = ["batchscope", "--help"]
from sim.cli.main import main
try:
    main()
except SystemExit as end:
    if end.code:
        raise
"""

SHOW_EVERY_HELP = """
import click
from sim.cli.main import cli

def show(command, *path):
    context = click.Context(command, info_name=" ".join(path))
    print(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            show(command.get_command(context, name), *path, name)

show(cli, "batchscope")
"""


def blocking(names: Collection[str]) -> str:
    """Code that makes the top-level ``names`` impossible to import."""
    return f"is_blocked = {set(names)!r}.__contains__\n{BLOCKER}"


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter that finds the packages in this checkout."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def run_python(code: str) -> str:
    """Standard output of ``code``, which must succeed."""
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(code: str) -> set[str]:
    """Top-level names of all modules that ``code`` leaves loaded."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    return set(json.loads(run_python(f"import sys\n{code}\n{report}").splitlines()[-1]))


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports by its full name."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_blocker_blocks() -> None:
    code = blocking(["simpy"]) + "try:\n    import simpy\nexcept ModuleNotFoundError:\n    print('blocked')"
    assert run_python(code) == "blocked\n"


def test_policies_import_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"policies"}
    foreign = [
        f"{path.relative_to(ROOT)} {name}"
        for path in sorted((ROOT / "policies").rglob("*.py"))
        for _, name in imported_names(path)
        if name not in allowed
    ]
    for_types_alone = "policies/core/native.py mypy_extensions"
    assert set(foreign) == {f"{TESTING} pytest", f"{TESTING} hypothesis", for_types_alone}


def test_nobody_imports_what_needs_pytest() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert "policies.testing" not in imported_modules(path), path


def test_tests_to_inherit_say_what_they_need() -> None:
    done = python(blocking(["hypothesis"]) + "import policies.testing")
    assert "there is no hypothesis; pip install 'batchscope[testing]'" in done.stderr.splitlines()[-1]


def test_policies_load_without_any_other_distribution() -> None:
    rule = f"is_blocked = lambda name: name not in {set(sys.stdlib_module_names) | {'policies'}!r}"
    rule += " and not name.endswith('__mypyc')\n"  # what the modules of a compiled build share
    run_python(rule + BLOCKER + f"ROOTS = ['policies']\n{IMPORT_ALL}")


@pytest.mark.parametrize("package", ["policies", "traces", "sim"])
def test_no_module_needs_tables_scipy_or_torch_to_load(package: str) -> None:
    run_python(blocking(LAZY) + f"ROOTS = [{package!r}]\n{IMPORT_ALL}")


def test_executor_loads_without_simulator_and_torch() -> None:
    run_python(blocking([*LAZY, "simpy", "sim"]) + "import gpu_backend, gpu_backend.loop, gpu_backend.traffic")


def test_help_works_without_heavy_packages() -> None:
    assert "Usage" in run_python(blocking(HEAVY) + SHOW_HELP)


def test_help_of_every_verb_works_without_heavy_packages() -> None:
    code = blocking(HEAVY) + SHOW_EVERY_HELP
    pages = run_python(code).count("Usage: ")
    assert pages > 5


def test_help_loads_no_heavy_package() -> None:
    loaded = loaded_after(SHOW_HELP)
    assert "click" in loaded
    assert loaded & set(HEAVY) == set()


def test_importing_sim_loads_no_simulator() -> None:
    assert loaded_after("import sim") & set(HEAVY) == set()


def test_all_packages_come_from_one_place() -> None:
    code = (
        f"import importlib, pathlib\nfor name in {PACKAGES!r}:\n"
        "    print(pathlib.Path(importlib.import_module(name).__file__).resolve().parent.parent)"
    )
    assert set(run_python(code).split()) == {str(ROOT)}


def test_a_foreign_package_of_the_same_name_is_named(tmp_path: Path) -> None:
    culprit = tmp_path / "traces" / "__init__.py"
    culprit.parent.mkdir()
    culprit.touch()
    done = python(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{SHOW_HELP}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(culprit) in done.stderr
    assert "virtual environment" in done.stderr
