"""The package checkpoint.erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.checkpoint.erasure.code import Code

__all__ = ["Code"]


def __getattr__(name: str) -> object:
    """Import what the package shows when it is first asked for."""
    if name != "Code":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from closeranks.checkpoint.erasure.code import Code

    return Code
