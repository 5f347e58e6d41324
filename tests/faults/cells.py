"""The cells of the matrix: where a rank fails, how, and on what.

A cell is a schedule of faults; the program checks every sum of every step, and
the test who is left.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.shares import SEED

STEP = 20


class Cell(NamedTuple):
    """One schedule on one platform.

    Attributes
    ----------
    name : str
        What stands in the summary.
    platform : str
        "node": 4 ranks on one; "wide": 8 ranks on one; "lab": 4 nodes of 2.
    faults : str
        The schedule.
    victims : tuple of int
        Seats that are gone at the end.
    algorithm : str
        Of the all-reduce.
    nbytes : int
        Its size.
    spares : int
        How many wait: all victims are replaced, or none.
    """

    name: str
    platform: str
    faults: str
    victims: tuple[int, ...]
    algorithm: str = "auto"
    nbytes: int = 65536
    spares: int = 0


def _one(action: str, seat: int, at: str, step: int = STEP, after: str = "") -> str:
    return f"{action} seat={seat} step={step} at={at}" + (f" after={after}" if after else "")


def _windows() -> list[Cell]:
    """One rank fails in every window of an attempt; then one more in those of a recovery."""
    cells = []
    first = ("begin", "allreduce", "allreduce:end", "vote", "voted")
    algorithms = {"node": ("shared", "ring", "native"), "lab": ("hierarchical_ring",)}
    for platform, victim in (("node", 2), ("node", 0), ("lab", 5), ("lab", 0)):
        for action in ("kill", "stop"):
            windows = (*first, "allreduce:rail") if platform == "lab" else first
            for number, at in enumerate(windows):
                choices = algorithms[platform]
                cells.append(
                    Cell(
                        f"{action} seat {victim} at {at}",
                        platform,
                        _one(action, victim, at),
                        (victim,),
                        choices[number % len(choices)],
                    )
                )
            for at in ("shrink", "rebuild", "move"):
                faults = f"{_one('kill', 1, 'begin')}; {_one(action, victim, at)}"
                name = f"kill seat 1, then {action} seat {victim} at {at}"
                cells.append(Cell(name, platform, faults, (1, victim)))
    return cells


def _nodes() -> list[Cell]:
    """Both ranks of an emulated node fail, and two ranks of one machine."""
    cells = []
    for action in ("kill", "stop"):
        for at in ("begin", "allreduce:end", "vote"):
            both = f"{_one(action, 2, at)}; {_one(action, 3, at)}"
            cells.append(Cell(f"{action} a node at {at}", "lab", both, (2, 3), "hierarchical_ring"))
            cells.append(Cell(f"{action} two ranks at {at}", "node", both, (2, 3)))
    return cells


def _sweeps() -> list[Cell]:
    """From outside, at more and more later moments of an agreement and of a shrink."""
    cells = []
    for action in ("kill", "stop"):
        for start in range(0, 24, 6):
            # 0 to 2.3 ms: an agreement takes 0.1 to 1 ms where ranks share cores.
            moments = [f"{(start + i) / 10:g}ms" for i in range(6)]
            faults = [_one(action, 7 - i, "vote", 5 + 5 * i, m) for i, m in enumerate(moments)]
            name = f"{action} during the vote, {moments[0]} to {moments[-1]}"
            cells.append(Cell(name, "wide", "; ".join(faults), (2, 3, 4, 5, 6, 7)))
        for start in range(0, 21, 3):
            # 0 to 20 ms: a shrink and the new world take 5 to 15.
            moments = [f"{start + i}ms" for i in range(3)]
            faults = [
                f"{_one('kill', 7 - 2 * i, 'begin', 5 + 5 * i)};"
                f" {_one(action, 6 - 2 * i, 'shrink', 5 + 5 * i, m)}"
                for i, m in enumerate(moments)
            ]
            name = f"{action} during the recovery, {moments[0]} to {moments[-1]}"
            cells.append(Cell(name, "wide", "; ".join(faults), (2, 3, 4, 5, 6, 7)))
    return cells


def _replaced(cells: list[Cell]) -> list[Cell]:
    """Where the first seat lives: the same, and spares take the seats of the dead."""
    return [
        cell._replace(name=f"{cell.name}, replaced", spares=len(cell.victims))
        for cell in cells
        if 0 not in cell.victims
    ]


_SHRUNK = [*_windows(), *_nodes()]
#: Sweeps of the recovery are run with all seeds only, see docs/internals/faults.md: where a rank
#: dies while Open MPI makes a communicator, others may crash.
CELLS = [
    cell
    for cell in (*_SHRUNK, *_replaced(_SHRUNK), *_sweeps())
    if SEED == "all" or "during the recovery" not in cell.name
]
