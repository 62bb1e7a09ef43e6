"""``batchscope capacity``: how much load a server carries within stated limits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.explore.capacity_result import CapacityResult


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option(
    "--slo",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="ttft_p99_s=0.5, ttft_p99_s=0.5@prompt<=1000; several count.",
)
@click.option("--find", default="rate", metavar="WHAT", help="rate, replicas, or card (the cheapest).  [default: rate]")
@click.option("--rate", type=float, metavar="PER_S", help="Requests a second that replicas or a card are to carry.")
@click.option(
    "--replicas", type=int, default=1, metavar="N", help="Replicas whose highest rate is found.  [default: 1]"
)
@click.option("--router", default="round_robin", metavar="NAME", help="round_robin or least_outstanding.")
@click.option(
    "--try", "levers", multiple=True, metavar="KEY=VALUE", help="Find the highest rate with this setting, too."
)
@click.option("--price", "prices", multiple=True, metavar="CARD=USD", help="What an hour of a card costs you.")
@click.option("--samples", type=int, default=5, metavar="N", help="Independent samples of requests.  [default: 5]")
@click.option("--requests", type=int, metavar="N", help="Requests of a sample.  [default: 2000]")
@click.option("--trace", metavar="FILE", help="Trace file; its windows are the samples.")
@click.option("--profile", metavar="NAME", help="Requests like a real trace's.  [default: chat]")
@click.option("--policy", metavar="NAME", help="A preset (policies list) or FILE.py:CLASS.  [default: vllm-0.11]")
@click.option("--model", metavar="NAME", help="Model of the catalog.  [default: llama-2-7b]")
@click.option("--hardware", metavar="NAME", help="Card of the catalog.  [default: a100-80gb]")
@click.option("--vllm-args", metavar="TEXT", help="vLLM's own command line, e.g. '--max-num-seqs 128'.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml.")
@click.option("--out", metavar="FILE", help="Where the page goes.  [default: runs/capacity-N.html]")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON; without --out write no page.")
def capacity(
    config: str | None,
    limits: tuple[str, ...],
    find: str,
    rate: float | None,
    replicas: int,
    router: str,
    levers: tuple[str, ...],
    prices: tuple[str, ...],
    samples: int,
    requests: int | None,
    overrides: tuple[str, ...],
    out: str | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Find the highest rate within every --slo, with its interval and what stops more; or the fewest replicas, or the
    cheapest card, for a rate. CONFIG is a RUN.toml; options come on top of it (docs/capacity.md)."""
    from pathlib import Path

    from sim.explore.capacity import capacity as find_capacity
    from sim.report.document import check_page
    from sim.runs import next_page

    page = Path(out) if out else None
    if page is not None:
        check_page(page)
    result = find_capacity(
        config,
        slo=limits,
        find=find,  # type: ignore[arg-type]
        rate_per_s=rate,
        replicas=replicas,
        router=router,
        samples=samples,
        num_requests=requests,
        levers=levers or None,
        overrides=[*overrides, *map(_price, prices)],
        progress=lambda text: click.echo(f"finding {text}", err=True),
        **{name: value for name, value in flags.items() if value is not None},  # type: ignore[arg-type]
    )
    wanted = page is not None or not as_json
    path = result.report(page or next_page("capacity")) if wanted else None  # before what a closed pipe may cut off
    if as_json:
        import json

        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        _show(result)
    if path is not None:
        click.echo(f"report: {path}", err=as_json)
    if not result.feasible:
        sys.exit(1)


def _price(text: str) -> str:
    """CARD=USD as a key of RUN.toml."""
    from policies.core.errors import ConfigError

    if "=" not in text:
        raise ConfigError(f"--price {text}: write CARD=USD, for example a100-80gb=1.5")
    return f"price.{text}"


def _show(result: CapacityResult) -> None:
    from sim.cli.tables import render
    from sim.explore.capacity_page import tables
    from sim.explore.capacity_words import finding

    for sentence in finding(result):
        click.echo(sentence)
    for table in tables(result):
        click.echo(f"\n{table.caption}")
        click.echo(render(table.header, table.rows))
    for note in result.loads.source.notices:
        click.echo(f"note: {note}")
