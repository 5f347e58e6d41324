"""A progress bar on standard error, where a terminal watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from closeranks.jobs.bench.measuring.sizes import show_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Counts measured items; silent unless standard error is a terminal.

    Parameters
    ----------
    total : int
        Number of items.
    shown : bool
        False on all ranks but one.
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar = _bar() if shown and sys.stderr.isatty() else None
        self._task = None if self._bar is None else self._bar.add_task("bench", total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, name: str, algorithm: str, nbytes: int) -> None:
        """Name what is being measured."""
        if self._bar is not None and self._task is not None:
            text = f"{name} {algorithm} {show_bytes(nbytes)}"
            self._bar.update(self._task, description=text)

    def advance(self) -> None:
        """Count one item as done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


def _bar() -> Bar:
    """Make the bar; rows pass above it only where both are one terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
