"""A picture of who holds which save, and in what state.

Local and pure: it is made of what was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.checkpoint.placement.slot_header import COMMITTED, ENCODED, WRITTEN
from closeranks.checkpoint.restore.generation_choice import Save
from closeranks.comms.topology.box_layout import Box
from closeranks.comms.topology.drawing import save as draw_boxes

LOST: Final = "lost"
#: Members of groups that are printed, those first that have lost something.
_PRINTED: Final = 48
#: Groups that are drawn.
_DRAWN: Final = 16
_COLOURS: Final = {
    COMMITTED: ("#dff3e4", "#2f855a"),
    ENCODED: ("#e2e8f5", "#4c51bf"),
    WRITTEN: ("#fdf6e9", "#c98a1b"),
    LOST: ("#fbeeee", "#b65050"),
}


class Seat(NamedTuple):
    """One member of an erasure group."""

    group: int
    member: int


@dataclass(frozen=True)
class Availability:
    """Who holds which save.  Printable.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    saves : tuple of Save
        The newest first.
    nodes : tuple of str
        Names of the nodes that were looked at.
    """

    name: str
    saves: tuple[Save, ...]
    nodes: tuple[str, ...]

    def seats(self) -> list[Seat]:
        """List the members of all groups of all saves.  Local."""
        return sorted({Seat(group, member) for save in self.saves
                       for group, layout in save.layouts.items()
                       for member in range(layout.members)})  # fmt: skip

    def cell(self, save: Save, seat: Seat) -> str:
        """Tell what a member holds of a save.

        Local.

        Parameters
        ----------
        save : Save
            Which.
        seat : Seat
            Whose.

        Returns
        -------
        str
            Nodes and states, such as ``node 3 committed``; empty if it has no such
            member.
        """
        layout = save.layouts.get(seat.group)
        if layout is None or seat.member >= layout.members:
            return ""
        held = Counter(
            self._told(save, share) for share in layout.shares if share.member == seat.member
        )
        if len(held) == 1:
            return next(iter(held))
        return ", ".join(f"{number} {told}" for told, number in sorted(held.items()))

    def draw(self, path: str | Path) -> None:
        """Draw it: a box for each save and group, a card for each member.

        Local.

        Parameters
        ----------
        path : str or Path
            Ends with ``.svg``, or with ``.png`` where matplotlib is installed.

        Raises
        ------
        TopologyError
            If it ends with anything else.
        Unavailable
            If matplotlib is missing for PNG.
        """
        whole = Box(
            self.name, "#ffffff", "#2d3748", rows=[[self._box(save)] for save in self.saves]
        )
        whole.note = "" if self.saves else "nothing is left"
        whole.measure()
        whole.place(16.0, 16.0)
        draw_boxes(whole, path)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _told(self, save: Save, share: object) -> str:
        """Tell where a share is, and how far."""
        found = save.found.get(share)  # type: ignore[call-overload]
        if found is None:
            return LOST
        return f"{self.nodes[found.node]} {found.header.state}"

    def _lines(self) -> list[str]:
        """Write it as a matrix: members down, saves across."""
        if not self.saves:
            return [f"{self.name}: nothing is left"]
        table = [["group", "member", *(f"step {save.step}" for save in self.saves)]]
        shown = sorted(self.seats(), key=lambda seat: (not self._has_lost(seat), seat))[:_PRINTED]
        table += [[str(seat.group), str(seat.member), *self._cells(seat)] for seat in sorted(shown)]
        table.append(["", "", *(self._verdict(save) for save in self.saves)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        left = len(self.seats()) - len(shown)
        if left:
            lines.insert(-1, f"... ({left} members left out)")
        return [f"{self.name}: who holds what", *lines]

    def _cells(self, seat: Seat) -> list[str]:
        """Tell what a member holds of each save."""
        return [self.cell(save, seat) for save in self.saves]

    def _has_lost(self, seat: Seat) -> bool:
        """Tell whether a member has lost something."""
        return any(LOST in told for told in self._cells(seat))

    def _verdict(self, save: Save) -> str:
        """Tell whether a save can be restored, in few words."""
        if save.objection() is not None:
            return "not restorable"
        return f"restorable, {len(save.lost)} lost" if save.lost else "whole"

    def _box(self, save: Save) -> Box:
        """Draw a save."""
        header = save.header
        title = f"step {save.step}, generation {header.generation}: {self._verdict(save)}"
        is_gone = save.objection() is not None
        box = Box(title, "#ffffff", _COLOURS[LOST if is_gone else COMMITTED][1], dashed=is_gone)
        hurt = {share.group for share in save.lost}
        shown = sorted(sorted(save.layouts, key=lambda group: (group not in hurt, group))[:_DRAWN])
        boxes = [self._group(save, group) for group in shown]
        left = header.groups - len(shown)
        if left > 0:
            boxes.append(Box(f"+ {left} more groups", "#ffffff", "#718096", dashed=True))
        box.rows = [boxes[at : at + 4] for at in range(0, len(boxes), 4)]
        return box

    def _group(self, save: Save, group: int) -> Box:
        """Draw a group: its members in rows of four."""
        layout = save.layouts[group]
        cards = []
        for member in range(layout.members):
            told = self.cell(save, Seat(group, member))
            state = LOST if LOST in told else told.rpartition(" ")[2]
            cards.append(Box(f"{member}: {told}", *_COLOURS[state], dashed=state == LOST))
        note = f"may lose {layout.parity} of {layout.members}"
        rows: Sequence[Sequence[Box]] = [cards[at : at + 4] for at in range(0, len(cards), 4)]
        return Box(f"group {group}", "#f7fafc", "#4a5568", [list(row) for row in rows], note)


def of_nodes(name: str, saves: Sequence[Save], nodes: int) -> Availability:
    """Picture what the nodes of a job hold.

    Local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    saves : sequence of Save
        The newest first.
    nodes : int
        How many there are.

    Returns
    -------
    Availability
        With nodes called ``node 0``, ``node 1`` ...
    """
    return Availability(name, tuple(saves), tuple(f"node {node}" for node in range(nodes)))
