"""Slots in the memory of all nodes: found, mapped, verified and made whole again.

`scan` finds the slots of a name; every rank gets the same list.
`SaveRecovery` maps the slots of one save, checks their sums together with the
other ranks, and makes lost or damaged shares anew.

A `SaveSource` gives descriptions and bytes of the old ranks.  `Slots` is one
in memory; the other one is on disk, and the reader of both,
`closeranks.checkpoint.restore.redistribution`, does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.crc32c import Sums
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.memory.slot_file import Slot, sums_of
from closeranks.checkpoint.placement.coding_tasks import Task, holder, rebuilding
from closeranks.checkpoint.placement.slot_header import (
    COMMITTED,
    ENCODED,
    WRITING,
    Header,
    Layouts,
    place_of,
)
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.checkpoint.restore.coding_work import Recoding
from closeranks.checkpoint.restore.fetch import Want, fetch, of_extent
from closeranks.checkpoint.restore.generation_choice import Damaged, Found, Save
from closeranks.checkpoint.state import rank_image
from closeranks.checkpoint.state.device_staging import Anywhere
from closeranks.checkpoint.state.rank_image import Description
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


def scan(
    channel: ControlChannel, nodes: RankNodes, name: str, root: Path | None
) -> tuple[list[Found], tuple[str, ...]]:
    """Find all slots of a name, on all nodes.

    Collective.

    Parameters
    ----------
    channel : ControlChannel
        Between the ranks.
    nodes : RankNodes
        Where they are.
    name : str
        Of the checkpoints.
    root : Path or None
        The file system in memory.

    Returns
    -------
    found : list of Found
        The same on all ranks.
    unread : tuple of str
        Why files of this name could not be read: as good as lost.

    Raises
    ------
    CheckpointError
        On all ranks, if a node has no such folder.
    """
    own: list[Found] = []
    unread: list[str] = []
    layouts: Layouts = {}

    def look() -> None:
        for path, _ in sorted(slot_file.found(name, root)):
            try:
                own.append(Found(nodes.here, str(path), slot_file.look(path, layouts)))
            except (CheckpointError, Unavailable) as error:
                unread.append(str(error))

    is_first = nodes.turn(nodes.here, 0) == nodes.rank
    channel.taken("restore", look if is_first else lambda: None)
    mine = [[one.path, one.header.encode().decode()] for one in own]
    every = channel.everything([mine, unread])
    found: list[Found] = []
    for rank, (lot, _) in enumerate(every):
        found += own if rank == nodes.rank else [
            Found(nodes.nodes[rank], path, Header.decode(text.encode(), layouts))
            for path, text in lot
        ]  # fmt: skip
    return found, tuple(text for _, lot in every for text in lot)


class Unreadable(CheckpointError):
    """Raised on all ranks when a save is damaged: an older one may do."""


class Wanted(NamedTuple):
    """Bytes of the data of an old rank.

    Attributes
    ----------
    rank : int
        Which one.
    at : int
        Where they start in its data.
    target : ndarray of uint8, or DeviceBytes
        Where they go; as many as there is room.
    """

    rank: int
    at: int
    target: Anywhere


class SaveSource(Protocol):
    """A save that can be read.

    Attributes
    ----------
    world : int
        Ranks that saved.
    """

    @property
    def world(self) -> int:
        """Ranks that saved."""

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks that have a slice each of the values that are alike.  Local."""

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give the descriptions of old ranks.  Collective."""

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""


class Slots:
    """A save in slots.

    Parameters
    ----------
    recovery : SaveRecovery
        The save, whole.
    channel : ControlChannel
        Between the ranks.
    """

    def __init__(self, recovery: SaveRecovery, channel: ControlChannel) -> None:
        self._recovery, self._channel = recovery, channel

    @property
    def world(self) -> int:
        """Ranks that saved."""
        return self._recovery.save.header.world

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks of its group.  Local."""
        return self._recovery.save.layout_of(rank).everybody

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give the descriptions of old ranks.  Collective."""
        heads: dict[int, Bytes] = {}
        wants: list[Want] = []
        for rank in ranks:
            layout = self._recovery.save.layout_of(rank)
            heads[rank] = np.empty(layout.sizes[rank].head, np.uint8)
            wants += of_extent(layout, rank, 0, heads[rank])
        fetch(wants, self._channel, self._recovery.server, self._recovery.mapped)
        return self._channel.taken(
            "restore", lambda: {rank: rank_image.read(head) for rank, head in heads.items()}
        )

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""
        found: list[Want] = []
        for rank, at, target in wants:
            layout = self._recovery.save.layout_of(rank)
            found += of_extent(layout, rank, layout.head(rank) + at, target)
        fetch(found, self._channel, self._recovery.server, self._recovery.mapped)


_T = TypeVar("_T")


class RankNodes:
    """Which ranks are on which nodes, of the ranks that look for a save.

    Parameters
    ----------
    nodes : sequence of int
        Rank -> its node.
    rank : int
        This one.

    Attributes
    ----------
    ranks : dict of int to list of int
        Node -> its ranks.
    here : int
        This rank's node.
    """

    def __init__(self, nodes: Sequence[int], rank: int) -> None:
        self.nodes, self.rank = tuple(nodes), rank
        self.ranks: dict[int, list[int]] = {}
        for other, node in enumerate(nodes):
            self.ranks.setdefault(node, []).append(other)
        self.here = self.nodes[rank]

    def turn(self, node: int, number: int) -> int:
        """Give the rank of a node that has its turn."""
        return self.ranks[node][number % len(self.ranks[node])]


class SaveRecovery:
    """A save that is being restored: its slots, and the ranks that serve them.

    Parameters
    ----------
    save : Save
        Which.
    channel : ControlChannel
        Between the ranks.
    nodes : RankNodes
        Where they are.
    root : Path or None
        The file system in memory.
    known : mapping of Path to Slot, optional
        Slots that this process has mapped; they stay so.
    """

    def __init__(
        self,
        save: Save,
        channel: ControlChannel,
        nodes: RankNodes,
        root: Path | None,
        known: Mapping[Path, Slot] | None = None,
    ) -> None:
        self.save, self._channel, self._nodes, self._root = save, channel, nodes, root
        self._known = known or {}
        self._node = {share: found.node for share, found in save.found.items()}
        self._slots: dict[Share, Slot] = {}
        shares = [share for layout in save.layouts.values() for share in layout.shares]
        self._number = {share: at for at, share in enumerate(shares)}

    def server(self, share: Share) -> int:
        """Give the rank that looks after a share."""
        return self._nodes.turn(self._node[share], self._number[share])

    def mapped(self, share: Share) -> Slot | None:
        """Give a slot of this node, mapped, found or made anew; None of another one."""
        if self._node[share] != self._nodes.here:
            return None
        if share not in self._slots:
            found = self.save.found.get(share)
            header = self._header(share) if found is None else found.header
            path = (slot_file.path_of(header, self._place, self._root) if found is None
                    else Path(found.path))  # fmt: skip
            slot = self._known.get(path)
            if slot is None or found is None:
                self._slots[share] = Slot.attach(path, whole=False, known=header)
            else:
                self._slots[share] = slot.following(header)
        return self._slots[share]

    def verify(self, *, data: bool = True, parity: bool = False) -> dict[Share, Damaged]:
        """Look at check sums.

        Collective; each rank reads its part of the slots on its node.

        Parameters
        ----------
        data, parity : bool
            At which; at parity anyway where data are lost, or found to be damaged.

        Returns
        -------
        dict of Share to Damaged
            Of all ranks, those that are damaged.
        """
        mine = [share for share in self.save.found if self.server(share) == self._nodes.rank]
        of_data = self._seen(self._damaged_data, mine if data else [])
        needed = parity or bool(self.save.lost) or any(of_data.values())
        if not parity:
            needed = int(self._channel.least([not needed])[0]) != 1
        of_parity = self._seen(self._damaged_parity, mine if needed else [])
        own = [[list(share), of_data.get(share, []), of_parity.get(share, [])] for share in mine
               if of_data.get(share) or of_parity.get(share)]  # fmt: skip
        return {
            Share(*share): Damaged(tuple(chunks), tuple((number, at) for number, at in broken))
            for lot in self._channel.everything(own)
            for share, chunks, broken in lot
        }

    def rebuild(self, damaged: dict[Share, Damaged]) -> tuple[int, ...]:
        """Make every share whole again.

        Collective.

        Parameters
        ----------
        damaged : dict of Share to Damaged
            As `verify` has found; the save has no objection to it.

        Returns
        -------
        tuple of int
            Old ranks with data, made anew, that differ from the save: none,
            unless the sources were wrong.

        Raises
        ------
        CheckpointError
            On all ranks, if there is no room for the lost shares.
        """
        hurt = {group: damage for group in sorted(self.save.layouts)
                if (damage := self.save.damage(group, damaged))}  # fmt: skip
        if not hurt:  # all ranks know
            return ()
        self._assign_lost(self.save.lost)
        self._make_room()
        for group, damage in hurt.items():
            layout = self.save.layouts[group]
            tasks = rebuilding(layout, Code(layout.data, layout.parity), damage, self._worker)
            made: list[Recoding] = []
            self._channel.taken("restore", partial(self._prepare, made, layout, tasks))
            made[0].run()
            self._channel.together("restore", None)  # all rows are there
            self._channel.taken("restore", partial(self._sum_up, {share for share, _ in damage}))
        return self._differing(hurt)

    def settle(self, state: str = COMMITTED) -> None:
        """Say of every share how far it is.

        Collective.

        Parameters
        ----------
        state : str
            All ranks have it; or *writing*, so that no rank uses it any more.
        """
        self._channel.taken("restore", partial(self._mark, state))

    def of_node(self) -> dict[Share, Slot] | None:
        """Give all slots of the node that had this one's number when the save was made.

        Local.

        Returns
        -------
        dict of Share to Slot or None
            None if one of them is elsewhere, or there were more nodes or fewer.
        """
        order, layouts = sorted(self._nodes.ranks), self.save.layouts.values()
        before = sorted(node for layout in layouts for node in layout.ranks)
        if before != [*range(len(order))]:
            return None
        number = order.index(self._nodes.here)
        shares = [share for layout in layouts if number in layout.ranks for share in layout.shares
                  if layout.ring[share.member] == number]  # fmt: skip
        if any(self._node[share] != self._nodes.here for share in shares):
            return None
        return {share: self._mine(share) for share in shares}

    def close(self) -> None:
        """Let go of the slots; the files stay.  Local."""
        for slot in self._slots.values():
            if slot.path not in self._known:
                slot.close()
        self._slots = {}

    def _seen(self, look: Callable[[Share], _T], shares: Iterable[Share]) -> dict[Share, _T]:
        """Look at slots here; an error of one rank is raised on all."""
        return self._channel.taken("restore", lambda: {share: look(share) for share in shares})

    def _damaged_data(self, share: Share) -> list[int]:
        """List the damaged chunks of the data of a slot here."""
        slot, layout = self._readable(share), self.save.layouts[share.group]
        if slot is None:
            return [*range(-(-layout.filled(share) // layout.chunk))]
        return slot.data.damaged()

    def _damaged_parity(self, share: Share) -> list[tuple[int, int]]:
        """List the damaged chunks of the parities of a slot here: which, and which chunk."""
        slot, layout = self._readable(share), self.save.layouts[share.group]
        if slot is None:
            each = range(-(-layout.block // layout.chunk))
            return [(number, at) for number in range(layout.parity) for at in each]
        if self.save.found[share].header.state not in (ENCODED, COMMITTED):
            return []  # it is all of no use
        return [(number, at) for number, area in enumerate(slot.parity) for at in area.damaged()]

    def _readable(self, share: Share) -> Slot | None:
        """Give a slot here; None if it has become none since it was found."""
        try:
            return self._mine(share)
        except (CheckpointError, Unavailable):
            return None

    def _mine(self, share: Share) -> Slot:
        """Give a slot that is on this node, mapped."""
        slot = self.mapped(share)
        assert slot is not None
        return slot

    def _worker(self, share: Share, row: int) -> int:
        """Give the rank that makes a row of a share: those of its node take turns."""
        return self._nodes.turn(self._node[share], self._number[share] + row)

    def _assign_lost(self, lost: Sequence[Share]) -> None:
        """Decide where lost shares are made anew: where fewest of their group are."""
        for share in lost:
            layout = self.save.layouts[share.group]
            beside = [self._node[other] for other in layout.shares
                      if other in self._node and other.lane == share.lane]  # fmt: skip
            peers = [self._node[other] for other in layout.shares if other in self._node
                     and layout.ring[other.member] == layout.ring[share.member]]  # fmt: skip
            every = list(self._node.values())
            self._node[share] = min(
                self._nodes.ranks,
                key=lambda node: (beside.count(node), -peers.count(node), every.count(node), node),
            )

    def _make_room(self) -> None:
        """Make empty slots for lost shares: all ranks of a node ask for their pages."""
        made: list[Slot] = []
        ranks = self._nodes.ranks[self._nodes.here]

        def make() -> None:
            for share in self.save.lost:
                if self.server(share) == self._nodes.rank:
                    made.append(
                        Slot.create(self._header(share), self._place, self._root, bare=True)
                    )
                    self._slots[share] = made[-1]

        def ask() -> None:
            for share in self.save.lost:
                if self._node[share] == self._nodes.here:
                    self._mine(share).ask(ranks.index(self._nodes.rank), len(ranks))

        try:
            self._channel.taken("restore", make)
            self._channel.taken("restore", ask)
        except CheckpointError:
            for slot in made:
                slot.path.unlink(missing_ok=True)
            raise

    def _prepare(self, made: list[Recoding], layout: StripeLayout, tasks: Sequence[Task]) -> None:
        """Map the slots that the tasks of a group need; zero bytes that no sum covers."""
        me = self._nodes.rank
        needed = {share for share in layout.shares if self.server(share) == me}
        for task in tasks:
            shares = {holder(layout, task.lane, task.row, block)[0]
                      for block in (*task.read, *task.write)}  # fmt: skip
            if task.worker == me:
                needed |= {share for share in shares if self._node[share] == self._nodes.here}
        local = {share: self._mine(share) for share in needed}
        for share in needed:
            if self.server(share) == me:
                local[share].room[layout.filled(share) :] = 0
        made.append(Recoding(tasks, layout, local, self.server, self._reaches, self._channel))

    def _sum_up(self, shares: Iterable[Share]) -> None:
        """Sum some slots up anew, a part on each rank of their node."""
        ranks = self._nodes.ranks[self._nodes.here]
        at = ranks.index(self._nodes.rank)
        for share in sorted(shares):
            if self._node[share] == self._nodes.here:
                slot = self._mine(share)
                for area in (slot.data, *slot.parity):
                    first, last = (len(area.kept) * part // len(ranks) for part in (at, at + 1))
                    start, stop = first * area.chunk, min(last * area.chunk, area.memory.size)
                    area.sum(start, stop - start)

    def _differing(self, groups: Iterable[int]) -> tuple[int, ...]:
        """Compare the sums in the descriptions of some groups with those of the data."""
        sums: dict[Share, Sums] = {}
        shares = [share for group in groups for share in self.save.layouts[group].shares]
        own = [[list(share), self._mine(share).data.kept.tolist()] for share in shares
               if self.server(share) == self._nodes.rank]  # fmt: skip
        for lot in self._channel.everything(own):
            sums |= {Share(*share): np.array(kept, np.uint32) for share, kept in lot}
        ranks = [rank for group in groups for rank in self.save.layouts[group].everybody]
        mine = ranks[self._nodes.rank :: len(self._nodes.nodes)]
        heads = {rank: np.empty(self.save.layout_of(rank).sizes[rank].head, np.uint8)
                 for rank in mine}  # fmt: skip
        wants = [want for rank, head in heads.items()
                 for want in of_extent(self.save.layout_of(rank), rank, 0, head)]  # fmt: skip
        fetch(wants, self._channel, self.server, self.mapped)
        wrong = [rank for rank, head in heads.items() if not self._fits(rank, head, sums)]
        return tuple(sorted(rank for lot in self._channel.everything(wrong) for rank in lot))

    def _fits(self, rank: int, head: Bytes, sums: Mapping[Share, Sums]) -> bool:
        """Tell whether the data of an old rank fit its description."""
        layout = self.save.layout_of(rank)
        try:
            description = rank_image.read(head)
        except CheckpointError:
            return False
        start, stop = layout.head(rank), layout.extent(rank)
        return description.check(list(sums_of(layout, rank, sums, start, stop)))

    def _mark(self, state: str) -> None:
        """Write a state into headers that say another one."""
        for share in self._number:
            if self.server(share) == self._nodes.rank:
                slot = self._mine(share)
                if slot.header.state != state:
                    slot.write(replace(slot.header, state=state))

    def _header(self, share: Share) -> Header:
        """Give the first header of the slot of a lost share."""
        layout = self.save.layouts[share.group]
        return replace(self.save.header, share=share, layout=layout, state=WRITING)

    @property
    def _place(self) -> int:
        """Which of the slots of each share the save is in."""
        return place_of(Path(next(iter(self.save.found.values())).path))

    def _reaches(self, rank: int, share: Share) -> bool:
        """Tell whether a rank is where a share is."""
        return self._nodes.nodes[rank] == self._node[share]
