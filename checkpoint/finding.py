"""What is left on the nodes: found, judged together, and made whole again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from closeranks.checkpoint import slots
from closeranks.checkpoint.choosing import Damaged, Found, Save
from closeranks.checkpoint.coding import rebuilding
from closeranks.checkpoint.erasure import Code
from closeranks.checkpoint.header import COMMITTED, ENCODED, WRITING, Header
from closeranks.checkpoint.layout import Share
from closeranks.checkpoint.recoding import Recoding
from closeranks.checkpoint.slots import Slot
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.talk import Talk


class Nodes:
    """Which ranks are on which nodes, of those that look for a save.

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
        """Give the rank of a node whose turn it is."""
        return self.ranks[node][number % len(self.ranks[node])]


def scan(talk: Talk, nodes: Nodes, name: str, root: Path | None) -> list[Found]:
    """Find all slots of a name, on all nodes.

    Collective.

    Parameters
    ----------
    talk : Talk
        Between the ranks.
    nodes : Nodes
        Where they are.
    name : str
        Of the checkpoints.
    root : Path or None
        The file system in memory.

    Returns
    -------
    list of Found
        The same on all ranks; files that no header is whole of are left out.
    """
    own = []
    if nodes.turn(nodes.here, 0) == nodes.rank:
        for path, _ in sorted(slots.found(name, root)):
            try:
                own.append([str(path), slots.look(path).encode().decode()])
            except (CheckpointError, Unavailable):
                continue  # damaged beyond recognition: as good as lost
    return [
        Found(nodes.nodes[rank], path, Header.decode(text.encode()))
        for rank, lot in enumerate(talk.everything(own))
        for path, text in lot
    ]


class Recovery:
    """A save that is being restored: its slots, mapped, and who serves them.

    Parameters
    ----------
    save : Save
        Which.
    talk : Talk
        Between the ranks.
    nodes : Nodes
        Where they are.
    root : Path or None
        The file system in memory.
    known : mapping of Path to Slot, optional
        Slots that this process has mapped; they stay so.
    """

    def __init__(
        self,
        save: Save,
        talk: Talk,
        nodes: Nodes,
        root: Path | None,
        known: Mapping[Path, Slot] | None = None,
    ) -> None:
        self.save, self._talk, self._nodes, self._root = save, talk, nodes, root
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
            path = self._path(share) if found is None else Path(found.path)
            slot = self._known.get(path)
            if slot is None or found is None:
                self._slots[share] = Slot.attach(path, whole=False)
            else:
                self._slots[share] = slot.following(found.header)
        return self._slots[share]

    def verify(self, *, everything: bool = False) -> dict[Share, Damaged]:
        """Look at check sums.

        Collective; each rank reads its part of what is on its node.

        Parameters
        ----------
        everything : bool
            Also at parities that nobody needs, for no data are lost or damaged.

        Returns
        -------
        dict of Share to Damaged
            Of all ranks, those that are damaged.
        """
        mine = [share for share in self.save.found if self.server(share) == self._nodes.rank]
        data = {share: self._damaged(share, parity=False) for share in mine}
        needed = everything or bool(self.save.lost) or any(data.values())
        needed = not bool(self._talk.least([not needed])[0])
        parity = {share: self._damaged(share, parity=needed) for share in mine if needed}
        own = [[list(share), data[share], parity.get(share, [])] for share in mine
               if data[share] or parity.get(share)]  # fmt: skip
        return {
            Share(*share): Damaged(
                tuple(chunk for _, chunk in of_data), tuple((number, at) for number, at in broken)
            )
            for lot in self._talk.everything(own)
            for share, of_data, broken in lot
        }

    def rebuild(self, damaged: dict[Share, Damaged]) -> None:
        """Make every share whole again.

        Collective.

        Parameters
        ----------
        damaged : dict of Share to Damaged
            As `verify` has found; the save has no objection to it.

        Raises
        ------
        CheckpointError
            On all ranks, if there is no room for what was lost.
        """
        lost = self.save.lost
        self._seat(lost)
        self._together(lambda: self._make_all(lost))
        for group, layout in sorted(self.save.layouts.items()):
            damage = self.save.damage(group, damaged)
            if damage:
                local = _Mapped(self.mapped)
                tasks = rebuilding(layout, Code(layout.data, layout.parity), damage, self.server)
                made: list[Recoding] = []
                parts = local, self.server, self._reaches, self._talk
                self._together(lambda: made.append(Recoding(tasks, layout, *parts)))  # noqa: B023
                for _ in made[0].run():
                    pass
                for share in {share for share, _ in damage}:
                    if self.server(share) == self._nodes.rank:
                        _sum_up(local[share])
        self._talk.together("restore", None)
        for share in self._number:
            if self.server(share) == self._nodes.rank:
                slot = self.mapped(share)
                assert slot is not None
                slot.reread()
                if slot.header.state != COMMITTED:
                    slot.write(replace(slot.header, state=COMMITTED))
        self._talk.together("restore", None)

    def close(self) -> None:
        """Let go of the slots; the files stay.  Local."""
        for slot in self._slots.values():
            if slot.path not in self._known:
                slot.close()
        self._slots = {}

    def _damaged(self, share: Share, *, parity: bool) -> list[tuple[int, int]]:
        """List the damaged chunks of a slot here: which parity, or 0, and which chunk."""
        layout = self.save.layouts[share.group]
        try:
            slot = self.mapped(share)
        except (CheckpointError, Unavailable):  # it was whole when it was found
            chunks = range(-(-layout.filled(share) // layout.chunk))
            return [] if parity else [(0, chunk) for chunk in chunks]
        assert slot is not None
        encoded = self.save.found[share].header.state in (ENCODED, COMMITTED)
        areas = (slot.parity if encoded else ()) if parity else (slot.data,)
        return [(number, chunk) for number, area in enumerate(areas) for chunk in area.damaged()]

    def _seat(self, lost: Sequence[Share]) -> None:
        """Decide where lost shares are made anew: where fewest of their group are."""
        for share in lost:
            layout = self.save.layouts[share.group]
            beside = [self._node[other] for other in layout.shares
                      if other in self._node and other.lane == share.lane]  # fmt: skip
            mates = [self._node[other] for other in layout.shares if other in self._node
                     and layout.ring[other.member] == layout.ring[share.member]]  # fmt: skip
            every = list(self._node.values())
            self._node[share] = min(
                self._nodes.ranks,
                key=lambda node: (beside.count(node), -mates.count(node), every.count(node), node),
            )

    def _make_all(self, lost: Sequence[Share]) -> None:
        """Make empty slots for what is lost, those that this rank will look after."""
        for share in lost:
            if self.server(share) == self._nodes.rank:
                self._slots[share] = Slot.create(self._header(share), self._place, self._root)

    def _together(self, step: Callable[[], None]) -> None:
        """Take a step on all ranks; raise on all what one has met."""
        problem: Exception | None = None
        try:
            step()
        except Exception as error:
            problem = error
        self._talk.together("restore", problem)

    def _path(self, share: Share) -> Path:
        """Give the name of a slot that was made anew."""
        return slots.path_of(self._header(share), self._place, self._root)

    def _header(self, share: Share) -> Header:
        """Give what the slot of a lost share says at first."""
        layout = self.save.layouts[share.group]
        return replace(self.save.header, share=share, layout=layout, state=WRITING)

    @property
    def _place(self) -> int:
        """Which of the slots of each share the save is in."""
        return slots.place_of(Path(next(iter(self.save.found.values())).path))

    def _reaches(self, rank: int, share: Share) -> bool:
        """Tell whether a rank is where a share is."""
        return self._nodes.nodes[rank] == self._node[share]


class _Mapped(dict[Share, Slot]):
    """Slots of this node, mapped when somebody asks for them."""

    def __init__(self, find: Callable[[Share], Slot | None]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, share: Share) -> Slot:
        slot = self._find(share)
        assert slot is not None
        self[share] = slot
        return slot


def _sum_up(slot: Slot) -> None:
    """Sum all of a slot up anew."""
    slot.data.sum(0, slot.data.memory.size)
    for area in slot.parity:
        area.sum(0, area.memory.size)
