"""The choice of the save to restore: from the slots, the same on all ranks.

Pure.  A save is whole if no row of any group has lost more blocks than it has
parities.  A damaged block counts as lost, and a slot that was not encoded yet
has no parity.  Whether all ranks had agreed on the save does not matter: the
slots decide, no flag.

`Availability` is a picture of it: which node holds which save, in which state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.checkpoint.placement.coding_tasks import all_lost, damaged_blocks, losses
from closeranks.checkpoint.placement.slot_header import (
    COMMITTED,
    ENCODED,
    STATES,
    WRITING,
    WRITTEN,
    Header,
)
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.comms.topology.drawing import Box
from closeranks.comms.topology.drawing import save as draw_boxes
from closeranks.errors import NotFound, TooManyErasures

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


class GroupMember(NamedTuple):
    """One member of an erasure group."""

    group: int
    member: int


@dataclass(frozen=True)
class Availability:
    """Which node holds which save.  Printable.

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

    def seats(self) -> list[GroupMember]:
        """List the members of all groups of all saves.  Local."""
        return sorted({GroupMember(group, member) for save in self.saves
                       for group, layout in save.layouts.items()
                       for member in range(layout.members)})  # fmt: skip

    def cell(self, save: Save, seat: GroupMember) -> str:
        """Tell which part of a save a member holds.

        Local.

        Parameters
        ----------
        save : Save
            Which.
        seat : GroupMember
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

    def _cells(self, seat: GroupMember) -> list[str]:
        """Tell which part of each save a member holds."""
        return [self.cell(save, seat) for save in self.saves]

    def _has_lost(self, seat: GroupMember) -> bool:
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
            told = self.cell(save, GroupMember(group, member))
            state = LOST if LOST in told else told.rpartition(" ")[2]
            cards.append(Box(f"{member}: {told}", *_COLOURS[state], dashed=state == LOST))
        note = f"may lose {layout.parity} of {layout.members}"
        rows: Sequence[Sequence[Box]] = [cards[at : at + 4] for at in range(0, len(cards), 4)]
        return Box(f"group {group}", "#f7fafc", "#4a5568", [list(row) for row in rows], note)


def of_nodes(name: str, saves: Sequence[Save], nodes: int) -> Availability:
    """Picture the slots on the nodes of a job.

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


#: Groups that a text names.
_NAMED: Final = 8


class Found(NamedTuple):
    """A slot that was found.

    Attributes
    ----------
    node : int
        Where.
    path : str
        Its name there.
    header : Header
        Its header.
    """

    node: int
    path: str
    header: Header


class Damaged(NamedTuple):
    """Chunks of a slot that differ from their sums: of its data, of its parities."""

    data: tuple[int, ...] = ()
    parity: tuple[tuple[int, int], ...] = ()


Blocks = dict[tuple[Share, int], list[tuple[int, int]]]


@dataclass(frozen=True)
class Save:
    """The slots that are left of a save.

    Made by `saves`.

    Parameters
    ----------
    header : Header
        Of one of its slots.
    layouts : mapping of int to StripeLayout
        Group -> its layout.
    found : mapping of Share to Found
        Slots that hold something.
    """

    header: Header
    layouts: Mapping[int, StripeLayout]
    found: Mapping[Share, Found]

    @property
    def step(self) -> int:
        """The caller's number."""
        return self.header.step

    @property
    def age(self) -> tuple[int, int]:
        """The order of saves of a run: the later, the larger."""
        return self.header.age

    @cached_property
    def lost(self) -> tuple[Share, ...]:
        """Shares without a slot on any node."""
        return tuple(
            share for layout in self.layouts.values() for share in layout.shares
            if share not in self.found
        )  # fmt: skip

    def layout_of(self, rank: int) -> StripeLayout:
        """Give the layout of the group that a rank was in."""
        return next(layout for layout in self.layouts.values() if rank in layout.sizes)

    def damage(self, group: int, damaged: Mapping[Share, Damaged]) -> Blocks:
        """Give the blocks of a group that are of no use.

        Parameters
        ----------
        group : int
            Which.
        damaged : mapping of Share to Damaged
            Damage that was found by check sums.

        Returns
        -------
        dict of (Share, int) to list of (int, int)
            As `closeranks.checkpoint.placement.coding_tasks.rebuilding` takes them.
        """
        layout, gone = self.layouts[group], {}
        for share in layout.shares:
            if share not in self.found:
                gone.update(all_lost(layout, share))
                continue
            of = damaged.get(share, Damaged())
            blocks = damaged_blocks(layout, share, of.data, of.parity)
            if self.found[share].header.state == WRITTEN:
                blocks.update(all_lost(layout, share, data=False))
            gone.update(blocks)
        return gone

    def objection(self, damaged: Mapping[Share, Damaged] | None = None) -> Objection | None:
        """Say why it cannot be restored, or None.

        Parameters
        ----------
        damaged : mapping of Share to Damaged, optional
            Damage that was found by check sums.

        Returns
        -------
        Objection or None
            None if it is whole, or can be made so.
        """
        # So few are named anyhow, and what a file says may be any number.
        some = min(self.header.groups, len(self.layouts) + _NAMED + 1)
        absent = [group for group in range(some) if group not in self.layouts]
        if absent:
            return Objection(f"nothing is left of erasure groups {_few(absent)}", (), 0)
        ranks = sorted(rank for layout in self.layouts.values() for rank in layout.sizes)
        if ranks != list(range(len(ranks))) or len(ranks) != self.header.world:
            return Objection(f"{len(ranks)} ranks of {self.header.world}, or others", (), 0)
        for group, layout in sorted(self.layouts.items()):
            worst = self._worst(layout, self.damage(group, damaged or {}))
            if len(worst) > layout.parity:
                text = f"group {group} has lost {len(worst)} members, its code tolerates"
                return Objection(f"{text} {layout.parity}", worst, layout.parity)
        return None

    def told(self, damaged: Mapping[Share, Damaged]) -> str:
        """Tell what is wrong with it, though it can be restored.

        Parameters
        ----------
        damaged : mapping of Share to Damaged
            Damage that was found by check sums.
        """
        both = (self.lost, "lost"), (damaged, "damaged")
        wrong = [f"{len(shares)} shares {what}" for shares, what in both if shares]
        return f"can be restored, {', '.join(wrong)}" if wrong else "whole"

    def _worst(self, layout: StripeLayout, damage: Blocks) -> tuple[int, ...]:
        """Give the members with lost blocks, in the row with most."""
        worst: tuple[int, ...] = ()
        members = {share.member for share, _ in damage}
        if len(members) <= layout.parity:
            return worst
        for lane in range(layout.lanes):
            for row in range(layout.members):
                for _, _, present in losses(layout, damage, lane, row):
                    gone = [(row + layout.parity + block) % layout.members if block < layout.data
                            else (row + block - layout.data) % layout.members
                            for block in range(layout.members) if not present[block]]  # fmt: skip
                    worst = max(worst, tuple(sorted(gone)), key=len)
        return worst


class Objection(NamedTuple):
    """Why a save cannot be restored.

    Attributes
    ----------
    text : str
        For a reader.
    lost : tuple of int
        Members of a group that are lost at the same place.
    tolerated : int
        How many may be.
    """

    text: str
    lost: tuple[int, ...]
    tolerated: int


def saves(found: Iterable[Found], run: str | None = None) -> list[Save]:
    """Sort slots into saves.

    Parameters
    ----------
    found : iterable of Found
        Everything of one name, on all nodes.
    run : str, optional
        The run; if not given, the run of the newest whole save, for a node
        that comes back may bring slots of another one.

    Returns
    -------
    list of Save
        The newest first; those of other runs are left out.
    """
    by_age: dict[tuple[tuple[int, int], str], list[Found]] = {}
    for one in found:
        if one.header.state != WRITING and run in (None, one.header.run):
            by_age.setdefault((one.header.age, one.header.run), []).append(one)
    every = [_save(lot) for _, lot in sorted(by_age.items(), reverse=True)]
    if run is None and every:
        run = next((save for save in every if save.objection() is None), every[0]).header.run
    return [save for save in every if save.header.run == run]


def _save(found: Sequence[Found]) -> Save:
    """Put the slots of one save together; of two of one share the further one counts."""
    layouts: dict[int, StripeLayout] = {}
    for group in sorted({one.header.share.group for one in found}):
        of_group = [one.header.layout for one in found if one.header.share.group == group]
        said = [layout.text for layout in of_group]
        layouts[group] = of_group[said.index(Counter(said).most_common(1)[0][0])]
    best: dict[Share, Found] = {}
    for one in sorted(found, key=lambda one: (STATES.index(one.header.state), -one.node)):
        share = one.header.share
        if one.header.layout == layouts[share.group]:
            best[share] = one
    return Save(found[0].header, layouts, best)


def _few(numbers: Sequence[int]) -> str:
    """Name some numbers."""
    return ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")


def why_none(
    objections: Sequence[Objection], skipped: Sequence[str], steps: Sequence[int], wanted: str
) -> Exception:
    """Give the error for the case that no save can be restored.

    Local.

    Parameters
    ----------
    objections : sequence of Objection
        To the saves of the wanted step, the newest first; empty if there is none.
    skipped : sequence of str
        The same in words.
    steps : sequence of int
        Steps of all saves that there are.
    wanted : str
        The wanted step and its key, in words.

    Returns
    -------
    TooManyErasures or NotFound
        What the newest of these saves has lost, if any has lost something.
    """
    if not objections:
        known = ", ".join(dict.fromkeys(map(str, steps)))
        return NotFound("restore", f"no step {wanted}; there are {known}")
    worst = next((one for one in objections if one.lost), objections[-1])
    return TooManyErasures("restore", worst.lost, worst.tolerated, "; ".join(skipped))
