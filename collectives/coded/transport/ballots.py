"""One value out of several that nodes propose, whatever order messages come in.

Single-decree Paxos (Lamport, "Paxos Made Simple", 2001, section 2) without
learners: who proposes also learns.  Acceptors are nodes; a majority of them
must answer.  A node answers as soon as one of its ranks looks at its messages.
Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class Acceptor(NamedTuple):
    """What a node has promised and accepted.

    Attributes
    ----------
    promised : int
        It answers no lower ballot; 0 at first.
    accepted : int
        Ballot of the value that it has accepted; 0 if none.
    value : bytes
        That value.
    """

    promised: int = 0
    accepted: int = 0
    value: bytes = b""

    def prepare(self, ballot: int) -> Acceptor | None:
        """Promise a ballot; None if a higher one was promised."""
        return self._replace(promised=ballot) if ballot >= self.promised else None

    def accept(self, ballot: int, value: bytes) -> Acceptor | None:
        """Accept a value; None if a higher ballot was promised."""
        return Acceptor(ballot, ballot, value) if ballot >= self.promised else None


class Proposer:
    """A node that proposes a value.

    Parameters
    ----------
    cell : int
        The node.
    cells : int
        How many nodes there are.

    Attributes
    ----------
    ballot : int
        The one under way; 0 before the first.
    value : bytes or None
        The value to be accepted, once a majority has promised.
    """

    def __init__(self, cell: int, cells: int) -> None:
        self._cell, self._cells = cell, cells
        self.ballot, self.value = 0, None  # type: int, bytes | None
        self._attempts, self._own, self._highest = 0, b"", 0
        self._promised: set[int] = set()
        self._accepted: set[int] = set()

    def begin(self, value: bytes, seen: int = 0) -> int:
        """Begin a ballot.

        Parameters
        ----------
        value : bytes
            What this node proposes, unless another value may have been
            accepted.
        seen : int
            The highest ballot that it has heard of.

        Returns
        -------
        int
            The ballot, for `Acceptor.prepare`.
        """
        self._attempts = max(self._attempts, (max(seen, 1) - 1) // self._cells + 1)
        self.ballot = self._attempts * self._cells + self._cell + 1
        self._attempts += 1
        self._own, self._highest, self.value = value, 0, None
        self._promised.clear()
        self._accepted.clear()
        return self.ballot

    def hear_promise(self, cell: int, ballot: int, accepted: int, value: bytes) -> bool:
        """Note a promise; tell whether the value is to be sent now."""
        if ballot != self.ballot or self.value is not None:
            return False
        self._promised.add(cell)
        if accepted > self._highest:
            self._highest, self._own = accepted, value
        if 2 * len(self._promised) <= self._cells:
            return False
        self.value = self._own
        return True

    def hear_accepted(self, cell: int, ballot: int) -> bool:
        """Note that a node has accepted; tell whether the value is decided now."""
        if ballot != self.ballot or self.value is None:
            return False
        before = 2 * len(self._accepted) > self._cells
        self._accepted.add(cell)
        return not before and 2 * len(self._accepted) > self._cells
