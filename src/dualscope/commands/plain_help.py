"""Help that reads as it was written: a flag takes no value, and [mlflow] is no markup."""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

MARKUP = re.compile(r"(?<!\\)\[(?=[a-z])")


def mended(params: list[Any]) -> list[Any]:
    """Options whose help shows no type where they take no value, and keeps what stands in square brackets."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.display_type_rich = _no_type  # type: ignore[method-assign]
        if getattr(param, "help", None):
            param.help = MARKUP.sub(r"\\[", param.help)
    return params


def _no_type(ctx: Any) -> None:  # noqa: ARG001
    return None


class PlainHelp(TyperCommand):
    """A command with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return mended(super().get_params(ctx))


class PlainHelpGroup(TyperGroup):
    """The program with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return mended(super().get_params(ctx))
