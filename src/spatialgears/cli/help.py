"""Help that reads well: flags and arguments show no type, options what to put there, and slips get a hint."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda **_: None
    return params


class Command(TyperCommand):
    """A command whose flags show no type, and that knows the usual slip: several files after one option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, as typer reads them."""
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            ctx.fail(
                f"{left[0]} belongs to no option. Repeat an option to give more: --st a.h5ad --st b.h5ad"
            )
        return left

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` among them."""
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """The same for what comes before the command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` among them."""
        return _without_types(super().get_params(ctx))
