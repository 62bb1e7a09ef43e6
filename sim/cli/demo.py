"""``batchscope demo``: what continuous batching and paged memory are worth, on a built-in workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.result import Result

_PRESETS = {"ft-static": "static", "orca-max": "Orca", "vllm-0.11": "paged"}
"""Presets, and what they are called in the report."""

_WORKLOAD = (
    "workload.generator=poisson",
    "workload.rate_per_s=10",
    "workload.num_requests=1000",
    'workload.prompt={dist="uniform",low=50,high=200}',
    'workload.output={dist="exponential",mean=250,cap=1500}',
    "sim.record=tokens",
)
FOLDER = Path("batchscope-demo")
"""Where the report goes, below the current folder."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the three summaries as a JSON list; write no report.")
def demo(as_json: bool) -> None:
    """Static, Orca and paged batching side by side: the same 1,000 requests at 10/s, Llama-2-7B on one A100-80GB.

    Ends with the path of a report, batchscope-demo/report.html, for any browser.
    """
    import json

    from sim.api import prepare, run_setup
    from sim.cli.tables import comparison_table
    from sim.config import load_config
    from sim.progress import ProgressLine

    results = []
    for name in _PRESETS:
        setup = prepare(load_config(None, _WORKLOAD, preset=name))
        with ProgressLine(setup.workload.num_requests, label=name) as progress:
            results.append(run_setup(setup, progress=progress, keep=not as_json))
    summaries = [result.summary for result in results]
    if as_json:
        click.echo(json.dumps(summaries, indent=2, allow_nan=False))
        return
    click.echo("1,000 requests at 10/s, prompts of 50-200 tokens, exponential answers of 250 on average,")
    click.echo("Llama-2-7B on one A100-80GB. Simulated, server side; see 'batchscope policies show NAME' for each.\n")
    click.echo(comparison_table(summaries, [f"{label} ({name})" for name, label in _PRESETS.items()]))
    for notice in dict.fromkeys(notice for result in results for notice in result.notices):
        of = [label for label, result in zip(_PRESETS.values(), results, strict=True) if notice in result.notices]
        click.echo(f"note: {'' if len(of) == len(results) else ', '.join(of) + ': '}{notice}")
    click.echo(f"\nreport: {_report(results)} (open it in any browser)")


def _report(results: Sequence[Result]) -> Path:
    """Write the page into the demo's folder, or into a temporary one where this is no place to write."""
    from dataclasses import replace
    from tempfile import mkdtemp

    from sim.report.page import REPORT_NAME, write_page

    views = [replace(result.view, label=label) for result, label in zip(results, _PRESETS.values(), strict=True)]
    try:
        FOLDER.mkdir(exist_ok=True)
        return write_page(views, FOLDER / REPORT_NAME)
    except OSError:
        return write_page(views, Path(mkdtemp(prefix="batchscope-demo-")) / REPORT_NAME)
