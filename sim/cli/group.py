"""A click group that answers an unknown command with the closest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from policies.core.errors import closest


class VerbGroup(click.Group):
    """A group whose error for an unknown command is one line that names those there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"unknown command '{args[0]}'; known are {', '.join(names)}{closest(args[0], names)}")
        return super().resolve_command(ctx, args)


def verb_group(**attributes: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """Decorator: a ``VerbGroup`` that also knows ``-h``."""
    return click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]}, **attributes)
