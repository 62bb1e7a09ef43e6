"""Where torch is not installed, ``batchscope execute`` says in a line what to install; ``diff`` needs none."""

from __future__ import annotations

from pathlib import Path

from tests.real_time import drive
from tests.test_layering import python
from tests.test_real_time import FIVE, SIZE
from tests.variants import VARIANTS
from traces.record.events import EVENTS_NAME

RUN = """
import sys
for name in ("torch", "triton", "safetensors", "tokenizers"):
    sys.modules[name] = None  # as if it were not installed
sys.argv = ["batchscope", *ARGUMENTS]
from sim.cli.main import main
main()
"""


def ended(*arguments: str) -> tuple[int, str, str]:
    done = python(f"ARGUMENTS = {arguments!r}{RUN}")
    return done.returncode, done.stdout, done.stderr


def test_execute_says_what_to_install(tmp_path: Path) -> None:
    work = ("workload.generator=closed-loop", "workload.concurrency=1", "workload.num_requests=1")
    lengths = ('workload.prompt={dist="fixed",value=5}', 'workload.output={dist="fixed",value=3}')
    options = [part for key in (*work, *lengths) for part in ("--set", key)]
    for more in ((), ("--prompt", "Hello", "--model-folder", str(tmp_path))):
        code, stdout, stderr = ended("execute", "--model", "tiny", *options, *more, "--out", str(tmp_path / "run"))
        assert (code, stdout) == (2, "")
        assert stderr.count("\n") == 1
        assert "pip install 'batchscope[gpu]'" in stderr
    assert not (tmp_path / "run").exists()


def test_a_replay_needs_no_model(tmp_path: Path) -> None:
    drive(VARIANTS["v1"], SIZE, FIVE, events=tmp_path / EVENTS_NAME)
    toml = "preset = 'vllm-0.11'\nenable_prefix_caching = false\nblock_size = 4\nnum_gpu_blocks = 14\n"
    limits = "max_model_len = 48\nmax_num_seqs = 5\nmax_num_batched_tokens = 12\n"
    workload = "generator = 'constant'\nrate_per_s = 1\nnum_requests = 5\n"
    one = "{ dist = 'fixed', value = 1 }"
    text = f"[engine]\n{toml}{limits}[workload]\n{workload}prompt = {one}\noutput = {one}\n[model]\nname = 'tiny'\n"
    (tmp_path / "run.toml").write_text(text)
    code, stdout, stderr = ended("diff", str(tmp_path))
    assert (code, stderr) == (0, "")
    assert stdout.startswith("first differing decision: none (")
