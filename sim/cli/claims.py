"""``batchscope claims``: headline claims, audited."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.explore.claims import Audit, Row


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="List the claims; run nothing.")
@click.option("--execute", is_flag=True, help="Run slots-8 and slots-32 on the real executor (needs torch; minutes).")
@click.option("--out", metavar="FILE", help="Where the page goes.  [default: runs/claims-N.html]")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON; without --out write no page.")
def claims(ids: tuple[str, ...], only_list: bool, execute: bool, out: str | None, as_json: bool) -> None:
    """Audit headline claims about continuous batching: set each up, simulate it, and say what the hardware allows.

    Verdicts (reproduced, baseline-dependent, false, impossible, undecidable) follow from the runs by a stated rule. All
    of them take less than a minute of CPU; IDs choose some.
    """
    import json

    from sim.explore.claims import CLAIMS
    from sim.explore.claims import claims as audit
    from sim.explore.claims_page import counted
    from sim.progress import on_terminal
    from sim.report.document import check_page
    from sim.runs import next_page

    if only_list:
        listed = [{"id": claim.id, "claim": claim.says} for claim in CLAIMS.values()]
        lines = [f"{claim.id:14} {claim.says}" for claim in CLAIMS.values()]
        click.echo(json.dumps(listed, indent=2) if as_json else "\n".join(lines))
        return
    if out is not None:
        check_page(out)
    found = audit(ids, execute=execute, progress=_progress)
    on_terminal()
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        click.echo("\n\n".join(in_words(row) for row in found.rows))
        click.echo(f"\n{counted(found)} {_how(found)}; published figures are named as such.")
    if out is not None or not as_json:
        page = found.report(out if out is not None else next_page("claims"))
        click.echo(f"report: {page}", err=as_json)


def _how(found: Audit) -> str:
    measured = [row.claim.id for row in found.rows if row.side == "server-measured"]
    return f"Simulated, but for {', '.join(measured)}, which the executor ran" if measured else "Simulated"


def in_words(row: Row) -> str:
    """A claim as a terminal shows it."""
    from textwrap import wrap

    from sim.cli.tables import render

    claim, audited, ruling = row.claim, row.audited, row.ruling
    parts = [
        *[("claim", claim.says), ("verdict", f"{ruling.verdict.upper()}: {ruling.why}")],
        *([("missing", ruling.missing)] if ruling.missing else []),
        ("bound", audited.bound),
        *((name.lower(), text) for name, text in row.setup),
        *(("step times", text) for text in row.costs),
        ("rule", claim.rule),
        *(("note", note) for note in audited.notes),
    ]
    lines = [claim.id]
    for name, text in parts:
        lines += wrap(
            f"{name}: {text}", 116, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
    for table in audited.tables:
        lines += ["", f"  {table.caption}"]
        lines += [f"  {line}" for line in render(table.header, table.rows).splitlines()]
    return "\n".join(lines)


def _progress(number: int, total: int, claim_id: str) -> None:
    """One line on a terminal, rewritten."""
    from sim.progress import on_terminal

    on_terminal(f"claim {number} of {total}: {claim_id}")
