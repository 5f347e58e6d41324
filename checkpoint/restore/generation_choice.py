"""Which save can be restored: decided from what was found, the same on all ranks.

Pure.  A save is whole if no row of any group has lost more blocks than it has
parities; what is damaged is lost, and what was not encoded yet has no parity.
Whether all ranks had agreed on it does not matter: evidence counts, no flag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from closeranks.checkpoint.placement.coding_tasks import all_lost, damaged_blocks, losses
from closeranks.checkpoint.placement.slot_header import STATES, WRITING, WRITTEN, Header
from closeranks.checkpoint.placement.stripe_layout import Layout, Share
from closeranks.errors import NotFound, TooManyErasures

#: Groups that a text names.
_NAMED: Final = 8


class Found(NamedTuple):
    """A slot that somebody has found.

    Attributes
    ----------
    node : int
        Where.
    path : str
        Its name there.
    header : Header
        What it says.
    """

    node: int
    path: str
    header: Header


class Damaged(NamedTuple):
    """Chunks of a slot that are not what was written: of its data, of its parities."""

    data: tuple[int, ...] = ()
    parity: tuple[tuple[int, int], ...] = ()


Blocks = dict[tuple[Share, int], list[tuple[int, int]]]


@dataclass(frozen=True)
class Save:
    """What is left of a save.

    Made by `saves`.

    Parameters
    ----------
    header : Header
        Of one of its slots.
    layouts : mapping of int to Layout
        Group -> its layout.
    found : mapping of Share to Found
        Slots that hold something.
    """

    header: Header
    layouts: Mapping[int, Layout]
    found: Mapping[Share, Found]

    @property
    def step(self) -> int:
        """The caller's number."""
        return self.header.step

    @property
    def age(self) -> tuple[int, int]:
        """What orders saves of a run: the later, the larger."""
        return self.header.age

    @cached_property
    def lost(self) -> tuple[Share, ...]:
        """Shares of which nobody has a slot."""
        return tuple(
            share for layout in self.layouts.values() for share in layout.shares
            if share not in self.found
        )  # fmt: skip

    def layout_of(self, rank: int) -> Layout:
        """Give the layout of the group that a rank was in."""
        return next(layout for layout in self.layouts.values() if rank in layout.sizes)

    def damage(self, group: int, damaged: Mapping[Share, Damaged]) -> Blocks:
        """Give the blocks of a group that are of no use.

        Parameters
        ----------
        group : int
            Which.
        damaged : mapping of Share to Damaged
            What was found when check sums were looked at.

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
            What was found when check sums were looked at.

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
            What was found when check sums were looked at.
        """
        both = (self.lost, "lost"), (damaged, "damaged")
        wrong = [f"{len(shares)} shares {what}" for shares, what in both if shares]
        return f"can be restored, {', '.join(wrong)}" if wrong else "whole"

    def _worst(self, layout: Layout, damage: Blocks) -> tuple[int, ...]:
        """Give the members whose blocks are gone where most are."""
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
    """Sort what was found into saves.

    Parameters
    ----------
    found : iterable of Found
        Everything of one name, on all nodes.
    run : str, optional
        Of which run; of that of the newest save that is whole if not given, for a
        node that comes back may bring what is left of another one.

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
    layouts: dict[int, Layout] = {}
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
    first: Objection | None, skipped: Sequence[str], steps: Sequence[int], wanted: str
) -> Exception:
    """Give what is raised where no save can be restored.

    Local.

    Parameters
    ----------
    first : Objection or None
        To the newest one that was wanted, best one that has lost something; None
        if there is none such.
    skipped : sequence of str
        All that was said against any.
    steps : sequence of int
        That there are.
    wanted : str
        Which step, of what.
    """
    if first is None:
        known = ", ".join(dict.fromkeys(map(str, steps)))
        return NotFound("restore", f"no step {wanted}; there are {known}")
    return TooManyErasures("restore", first.lost, first.tolerated, "; ".join(skipped))
