"""Memory of a node in which its ranks follow one round, and a few at once.

A round has a slot.  A rank that enters a round waits until the slot is open
for it.  The last rank that leaves the round clears the slot and opens it for a
later round: so no rank is more than ``ahead`` rounds before another one of its
node.

Each word has lines of its own, since ranks that wait look at it all the time::

    slot:   OPEN LOCK DECIDED MOVED ADDED LEFT AGENT TOLD PROMISED ACCEPTED
            STATE, DONE, TAKEN, HOLDS of each rank of the node
            records: flags of all ranks, as ranks of the node propose them,
                     as they were accepted, and as heard from elsewhere
            notes:   number, completeness and flags, by node
    head:   ABANDONED, ENTERED and MET of each rank of the node; LEFT_BY of
            each node; FAILED; GATHERED; why a rank has failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.transport.node_words import NodeWords
from closeranks.comms.shm.shared_file import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

#: Words of a slot.
OPEN, LOCK, DECIDED, MOVED, ADDED, LEFT, AGENT, TOLD, PROMISED, ACCEPTED = range(10)
_SLOT_WORDS: Final = 10
#: Words of a rank in a slot.
STATE, DONE, TAKEN, HOLDS = range(4)
_RANK_WORDS: Final = 4
#: Values of STATE: it computes its own work; it has ended it, and waits; it has, and helps;
#: the round is decided, and it has added its part of the sum.
COMPUTES, WAITS, HELPS, PLACED = range(4)
#: Bytes between words: two lines, since processors fetch lines in pairs.
_APART: Final = 128
#: Bytes that tell why a rank cannot go on.
WORDS_BYTES: Final = 2048
#: The round that a rank is in which has closed.
CLOSED: Final = 1 << 62


class RoundMemory:
    """Words and records of the rounds of one node.

    Collective over ``node`` to make.

    Parameters
    ----------
    node : MPI.Intracomm
        The ranks of this node.
    cells : sequence of tuple of int
        Ranks of each node.
    mine : int
        Which of them is this one.
    slots : int
        Rounds that may be under way at once.

    Raises
    ------
    Unavailable
        On all ranks of the node, if it has no memory to share.
    """

    def __init__(
        self, node: MPI.Intracomm, cells: Sequence[tuple[int, ...]], mine: int, slots: int
    ) -> None:
        self.words = NodeWords()
        self._cells, self._mine, self._slots = cells, mine, slots
        self._members, self._size = len(cells[mine]), sum(map(len, cells))
        padded = -(-self._size // _APART) * _APART
        self._flag_bytes = padded
        self._tail = (3 * self._members + len(cells)) * _APART
        head = self._tail + 2 * _APART + WORDS_BYTES
        self._head = -(-head // _APART) * _APART
        self._records = (_SLOT_WORDS + _RANK_WORDS * self._members) * _APART
        self._notes = self._records + (self._members + 2) * padded
        self._slot_bytes = self._notes + len(cells) * (_APART + padded)
        self._file = share(node, self._head + slots * self._slot_bytes)
        self._bytes = self._file.array
        self._address = self._bytes.ctypes.data
        if node.rank == 0:
            for round_ in range(1, slots + 1):
                self.words.store(self.word(round_, OPEN), round_)
        node.Barrier()

    def _slot(self, round_: int) -> int:
        return self._head + round_ % self._slots * self._slot_bytes

    def word(self, round_: int, which: int) -> int:
        """Give the address of a word of a round's slot.  Local."""
        return self._address + self._slot(round_) + which * _APART

    def rank_word(self, round_: int, member: int, which: int) -> int:
        """Give the address of a word of a rank in a round's slot.  Local."""
        at = _SLOT_WORDS + which * self._members + member
        return self._address + self._slot(round_) + at * _APART

    def abandoned(self, member: int) -> int:
        """Give the address of the number of rounds that a rank has given up."""
        return self._address + member * _APART

    def entered(self, member: int) -> int:
        """Give the address of the round that a rank has entered last."""
        return self._address + (self._members + member) * _APART

    def left_by(self, cell: int) -> int:
        """Give the address of the last round that all ranks of a node have left."""
        return self._address + (3 * self._members + cell) * _APART

    def met(self, member: int) -> int:
        """Give the address of the number of meetings to which a rank has come."""
        return self._address + (2 * self._members + member) * _APART

    def missing(self, meeting: int) -> list[int]:
        """Give the ranks of this node that have not come to a meeting.  Local."""
        load, here = self.words.load, self._cells[self._mine]
        return [rank for member, rank in enumerate(here) if load(self.met(member)) < meeting]

    @property
    def failed(self) -> int:
        """Address of the word that names a rank that cannot go on, plus 1.

        It is negative while that rank writes why.
        """
        return self._address + self._tail

    @property
    def gathered(self) -> int:
        """Address of the number of meetings to which all ranks of this node have come.

        It is -1 minus that number once a rank has refused to come to another one.
        """
        return self._address + self._tail + _APART

    @property
    def failure_words(self) -> NDArray[np.uint8]:
        """Bytes that tell why it cannot."""
        start = self._tail + 2 * _APART
        return self._bytes[start : start + WORDS_BYTES]

    def record(self, round_: int, index: int) -> NDArray[np.uint8]:
        """View flags of all ranks: proposed by a rank of the node, or elsewhere.

        Local.

        Parameters
        ----------
        round_ : int
            Of whose slot.
        index : int
            Rank of the node; ``members`` for what was accepted, one more for
            what was heard from elsewhere.
        """
        start = self._slot(round_) + self._records + index * self._flag_bytes
        return self._bytes[start : start + self._size]

    @property
    def accepted(self) -> int:
        """Index of the record that was accepted."""
        return self._members

    @property
    def heard(self) -> int:
        """Index of the record that was heard from elsewhere."""
        return self._members + 1

    def note(self, round_: int, cell: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """View what a node has told: (number, completeness), and flags of all ranks."""
        start = self._slot(round_) + self._notes + cell * (_APART + self._flag_bytes)
        flags = self._bytes[start + _APART : start + _APART + self._size]
        return self._bytes[start : start + 16].view(np.int64), flags

    def leave(self, round_: int) -> bool:
        """Leave a round; the last rank is to clear its slot.

        Local.

        Parameters
        ----------
        round_ : int
            Which one; this rank touches nothing of it any more.

        Returns
        -------
        bool
            Whether this was the last rank.
        """
        return self.words.add(self.word(round_, LEFT), 1) + 1 == self._members

    def clear(self, round_: int) -> None:
        """Open the slot of a round that all ranks have left.

        Local; with LOCK held where other nodes send messages about it.
        """
        start = self._slot(round_)
        self._bytes[start + (LOCK + 1) * _APART : start + self._slot_bytes] = 0
        self.words.store(self.word(round_, OPEN), round_ + self._slots)

    def close_rank(self, member: int) -> None:
        """Note that a rank of this node takes part in no round any more.  Local."""
        self.words.store(self.entered(member), CLOSED)

    def has_closed(self) -> bool:
        """Tell whether no rank of this node takes part in rounds any more.  Local."""
        return not self.behind(CLOSED)

    def behind(self, round_: int) -> list[int]:
        """Give the ranks of this node that have not entered a round.  Local."""
        load, here = self.words.load, self._cells[self._mine]
        return [rank for member, rank in enumerate(here) if load(self.entered(member)) < round_]

    def slow_elsewhere(self, round_: int) -> list[int]:
        """Give the ranks of other nodes that have not all left a round.  Local."""
        load, found = self.words.load, list[int]()
        for cell, ranks in enumerate(self._cells):
            if cell != self._mine and load(self.left_by(cell)) < round_:
                found.extend(ranks)
        return found

    def is_open(self, round_: int) -> bool:
        """Tell whether ranks of this node may enter a round.  Local."""
        return self.words.load(self.word(round_, OPEN)) == round_

    def has_had(self, round_: int) -> bool:
        """Tell whether a round has a slot of this node, or has had one.  Local."""
        return self.words.load(self.word(round_, OPEN)) >= round_

    def close(self) -> None:
        """Let go of the memory.  Local, harmless twice; its addresses are void then."""
        self._bytes = np.empty(0, np.uint8)
        self._file.close()
