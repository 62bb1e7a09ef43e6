"""One command that measures the executor on the device at hand and holds the simulator against it.

    python -m calibrate.gpu_check [--device cuda|cpu] [--model llama-2-7b|15m] [--out DIR] [--resume]
                                  [--stages NAME,NAME] [--deadline-s 330]

Stages run in order of worth, each with a deadline of its own and a JSON file of its own, written as things become
known (docs/gpu-check.md). Exit code 0: all chosen stages are complete; 1: one failed or overran; 2: a wrong call.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from calibrate.gpu.record import Settings, discard, is_complete, open_folder, recorded_settings
from calibrate.gpu.stages import STAGES, chosen
from calibrate.gpu.supervisor import supervise
from calibrate.gpu.table import write_page
from policies.catalog import model
from policies.core.errors import BatchscopeError, UserError

_DEADLINE_S = 330.0
_USUAL_MODEL = {"cuda": "llama-2-7b", "cpu": "15m"}


def main(arguments: list[str] | None = None) -> int:
    """Run the check and print its page."""
    given = _parser().parse_args(arguments)
    try:
        settings = _settings(given)
        return _check(settings, given.stages, resume=given.resume)
    except BatchscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what is known is on disk, --resume goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.gpu_check", description="Measures the executor on this device."
    )
    parser.add_argument("--device", help="cuda, cuda:N or cpu (default: cuda, or what --out holds with --resume)")
    parser.add_argument("--model", help="a name of the catalog (default: llama-2-7b, on a CPU 15m)")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-check"), help="folder of the results (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="leave out the stages that are complete in --out")
    parser.add_argument("--stages", help=f"only these, by comma: {', '.join(stage.name for stage in STAGES)}")
    parser.add_argument("--deadline-s", type=float, default=_DEADLINE_S, help="seconds in all (default: %(default).0f)")
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    recorded = recorded_settings(given.out) if given.resume else None
    device = given.device or (recorded[0] if recorded else "cuda")
    usual = recorded[1] if recorded else _USUAL_MODEL.get(device.partition(":")[0], "")
    if not given.deadline_s > 0:
        raise UserError(f"--deadline-s {given.deadline_s:g}: give a number of seconds above 0")
    if not usual and given.model is None:
        raise UserError(f"--device {device}: choose cuda, cuda:N or cpu")
    return Settings(device, model(given.model or usual).name, given.out, given.deadline_s)


def _check(settings: Settings, names: str | None, *, resume: bool) -> int:
    stages, was_there = chosen(names), recorded_settings(settings.out) is not None
    open_folder(settings, [stage.name for stage in stages], resume=resume)
    left = [stage for stage in stages if not (resume and is_complete(settings.out, stage.name))]
    for stage in stages:
        if stage not in left:
            print(f"{stage.name}: complete, not repeated")
    try:
        complete = not left or supervise(settings, left, lambda text: print(text, flush=True))
    except UserError:
        if not was_there:
            discard(settings)
        raise
    print(f"\n{write_page(settings, settings.out)}")
    print(f"results: {settings.out}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
