"""Checkpoints as tables.

`row` and `verify` describe and check saves on disk as those in memory are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.disk.saved_files import SavedFile
from closeranks.checkpoint.restore.repair import LOST, WHOLE

Row = dict[str, Any]
#: State of what is in files.
ON_DISK: Final = "on disk"


def row(name: str, volume: SavedFile, folder: Path, now: float) -> Row:
    """Describe a save on disk as plain JSON; local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    volume : SavedFile
        Which.
    folder : Path
        Of the checkpoints of the name.
    now : float
        Seconds since 1970.

    Returns
    -------
    dict
        As of `closeranks.checkpoint.restore.slot_inventory.Holding.row`: its
        shares are files.
    """
    objection = volume.objection()
    changed = [0.0]
    for file in volume.files:
        with suppress(FileNotFoundError):
            changed.append((folder / file.name).lstat().st_mtime)
    epoch, generation = volume.age
    abouts = list(volume.abouts.values())
    return {
        "name": name, "run": volume.run, "step": volume.step, "generation": generation,
        "epoch": epoch, "state": ON_DISK, "ranks": volume.world or None,
        "groups": None, "groups_seen": 0,
        "shares": abouts[0].files if abouts else len(volume.files),
        "shares_present": len(abouts), "files": len(volume.files), "bytes": volume.nbytes,
        "age_s": max(0.0, round(now - max(changed), 1)), "locked": False, "owner": "",
        "restorable": objection is None, "verdict": objection.text if objection else WHOLE,
    }  # fmt: skip


def verify(volume: SavedFile, folder: Path, done: Callable[[int], None]) -> tuple[str, str]:
    """Look at all check sums of a save on disk; local.

    Parameters
    ----------
    volume : SavedFile
        Which.
    folder : Path
        Of the checkpoints of the name.
    done : callable
        Is told how many bytes were looked at, file by file.

    Returns
    -------
    outcome, text : str
        ``whole`` or ``lost``, and why: files have no parity.
    """
    objection = volume.objection()
    if objection is not None:
        return LOST, objection.text
    wrong: list[str] = []
    for file in volume.files:
        wrong += saved_files.damaged(folder, file.name)
        done(file.nbytes)
    told = ", ".join(wrong[:4]) + (", ..." if wrong[4:] else "")
    return (LOST, f"damaged on disk: {told}") if wrong else (WHOLE, "on disk")


_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
#: Title and least width of the columns that all tables of saves have.
_SAVES: Final = {"step": 6, "state": 9, "ranks": 5, "shares": 6, "size": 8, "age": 6}
_LEFT: Final = {"state", "seen here", "is", "because", ""}


def show(rows: Sequence[Row]) -> None:
    """Write saves as a table.

    Parameters
    ----------
    rows : sequence of dict
        As `closeranks.checkpoint.restore.slot_inventory.Holding.row` gives them.
    """
    lines = [[*_saved(row), _coloured(row["verdict"], good=row["restorable"])] for row in rows]
    _write({**_SAVES, "seen here": 0}, lines)


def show_fates(rows: Sequence[Row]) -> None:
    """Write what becomes of saves.

    Parameters
    ----------
    rows : sequence of dict
        As `closeranks.jobs.checkpoint_tools.clean.clean` gives them.
    """
    lines = [[*_saved(row), _coloured(row["fate"], good=not row["kept"])] for row in rows]
    _write({**_SAVES, "": 0}, lines)


def show_verdicts(rows: Sequence[Row]) -> None:
    """Write what was found when check sums were looked at.

    Parameters
    ----------
    rows : sequence of dict
        As `closeranks.jobs.checkpoint_tools.verify.inspect` gives them.
    """
    lines = [
        [*_plain(row["name"], row["step"]), _coloured(row["outcome"], good=row["fine"]),
         *_plain(row["text"])]
        for row in rows
    ]  # fmt: skip
    _write({"step": 6, "is": 10, "because": 0}, lines)


def size(nbytes: int) -> str:
    """Write a number of bytes.

    Parameters
    ----------
    nbytes : int
        At least 0.

    Returns
    -------
    str
        Three digits or so, in powers of 1024.

    Examples
    --------
    >>> size(0), size(1742336), size(5 << 40)
    ('0 B', '1.66 MiB', '5 TiB')
    """
    number, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 - the last one stays
        if number < 1000:
            break
        number /= 1024
    return f"{number:.3g} {unit}"


def age(seconds: float) -> str:
    """Write a time.

    Parameters
    ----------
    seconds : float
        At least 0.

    Returns
    -------
    str
        In the largest unit of which there is one.

    Examples
    --------
    >>> age(0.2), age(3599), age(200_000)
    ('0 s', '59 min', '2 d')
    """
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"


def _saved(row: Row) -> list[str]:
    """Write what all tables of saves have."""
    shares = f"{row['shares_present']}/{row['shares']}" if row["shares"] else None
    name = row["name"] + (f", open: {row['owner']}" if row["locked"] else "")
    return _plain(
        name, row["step"], row["state"], row["ranks"], shares, size(row["bytes"]), age(row["age_s"])
    )


def _plain(*values: object) -> list[str]:
    """Write values, and a dash for what nobody knows."""
    from rich.markup import escape

    return ["-" if value is None else escape(str(value)) for value in values]


def _coloured(text: str, *, good: bool) -> str:
    """Write a text in the colour of good or bad news."""
    colour = "green" if good else "red"
    return f"[{colour}]{_plain(text)[0]}[/{colour}]"


def _write(columns: Mapping[str, int], lines: Sequence[Sequence[str]]) -> None:
    """Write a table for each name, one below the other."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for number, (name, lot) in enumerate(groupby(lines, key=itemgetter(0))):
        table = Table(box=None, header_style="bold", show_header=not number)
        for title, width in columns.items():
            table.add_column(title, min_width=width, justify="left" if title in _LEFT else "right",
                             no_wrap=bool(width))  # fmt: skip
        for _, *rest in lot:
            table.add_row(*rest)
        console.print(f"[bold]{name}[/bold]", highlight=False, soft_wrap=True)
        console.print(table)
