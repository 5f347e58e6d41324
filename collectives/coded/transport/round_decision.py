"""Which ranks count in a round: decided once, by ranks that are on time.

Inside a node, a rank that has ended its work and finds that the round may end
writes the flags of the ranks that wait to a record of its own, and swaps its
number into the word DECIDED: the first one counts.

Between nodes, the first rank of a node that waits is its agent.  It tells the
other nodes which of its ranks have ended their work.  If the round may end, it
proposes the flags of all ranks to a majority of nodes, see `ballots`, and
tells the outcome.  A node answers as soon as any of its ranks looks at its
messages, which a late rank does after every micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.transport import cell_messages as kinds
from closeranks.collectives.coded.transport.ballots import Acceptor, Proposer
from closeranks.collectives.coded.transport.round_memory import (
    ACCEPTED,
    AGENT,
    DECIDED,
    LOCK,
    PROMISED,
    STATE,
    TOLD,
    WAITS,
)
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.cell_messages import CellMessage, CellMessages
    from closeranks.collectives.coded.transport.round_memory import RoundMemory

#: A node waits so long for each node before it, seconds, before it proposes, too.
_TURN_S: Final = 0.002

Flags = NDArray[np.uint8]


class RoundDecision:
    """The decision of one round after the other, as one rank sees it.

    Parameters
    ----------
    memory : RoundMemory
        Of this node.
    messages : CellMessages
        Of this rank.
    cells : sequence of tuple of int
        Ranks of each node, ascending.
    mine : int
        Which of them is this one.
    member : int
        This rank's number in its node.
    may_end : callable
        Whether the round may end, by the ranks that have ended their work.
    is_complete : callable
        Whether all that this node has to do is done.
    dead : callable
        The ranks that are known here to have died: they are to do nothing.
    wait_locked : callable
        Waits until a function gives true, for ranks that may have died.
    """

    def __init__(
        self,
        memory: RoundMemory,
        messages: CellMessages,
        cells: Sequence[tuple[int, ...]],
        mine: int,
        member: int,
        *,
        may_end: Callable[[frozenset[int]], bool],
        is_complete: Callable[[], bool],
        dead: Callable[[], Collection[int]] = tuple,
        wait_locked: Callable[[Callable[[], bool]], object] = wait,
    ) -> None:
        self._memory, self._messages, self._words = memory, messages, memory.words
        self._cells, self._mine, self._member = cells, mine, member
        self._may_end, self._is_complete = may_end, is_complete
        self._dead, self._wait_locked = dead, wait_locked
        self._size = sum(map(len, cells))
        self._members = np.array(cells[mine], np.int64)
        self._round = 0
        self._judged: tuple[bytes, bool] = b"", False
        self._deferred: list[CellMessage] = []
        self._begin_proposals()

    def _begin_proposals(self) -> None:
        self._proposer = Proposer(self._mine, len(self._cells))
        self._told: bytes | None = None
        self._propose_at_s = 0.0

    def begin(self, round_: int) -> None:
        """Begin a round.  Local."""
        self._round, self._judged = round_, (b"", False)
        self._begin_proposals()

    def is_decided(self) -> bool:
        """Tell whether the round is decided.  Local."""
        return self._words.load(self._memory.word(self._round, DECIDED)) != 0

    def ranks(self) -> list[int]:
        """Give the ranks that count in the round, ascending, once it is decided."""
        index = self._words.load(self._memory.word(self._round, DECIDED)) - 1
        found: list[int] = np.flatnonzero(self._memory.record(self._round, index)).tolist()
        return found

    def try_to_end(self) -> bool:
        """Decide the round if it may end; for ranks that wait.

        Local.

        Returns
        -------
        bool
            Whether it is decided.
        """
        if self.is_decided():
            return True
        complete = self._is_complete()
        flags = self._waiting()  # the later: a rank that waits then does not begin to help
        if len(self._cells) > 1:
            self._try_with_others(flags, complete=complete)
        elif complete and self._is_enough(flags):
            self._memory.record(self._round, self._member)[:] = flags
            self._decide(self._member)
        return self.is_decided()

    def resign(self) -> None:
        """Let another rank of this node be its agent: this one computes again.  Local."""
        if len(self._cells) > 1:
            self._words.swap_if(self._memory.word(self._round, AGENT), self._member + 1, 0)
            self._told = None

    def waiting(self) -> list[int]:
        """Give the ranks that have ended their work and wait, as far as known here.

        Local.
        """
        flags = self._waiting()
        for cell in range(len(self._cells)):
            if cell != self._mine:
                flags |= self._memory.note(self._round, cell)[1]
        found: list[int] = np.flatnonzero(flags).tolist()
        return found

    def _waiting(self) -> Flags:
        """Give the flags of the ranks of this node that wait."""
        found = np.zeros(self._size, np.uint8)
        for member, rank in enumerate(self._members):
            at = self._memory.rank_word(self._round, member, STATE)
            found[rank] = self._words.load(at) == WAITS
        found[list(self._dead())] = 0
        return found

    def _is_enough(self, flags: Flags) -> bool:
        """Ask whether the round may end; the answer for the same flags is kept."""
        said = flags.tobytes()
        if said != self._judged[0]:
            finished = frozenset(np.flatnonzero(flags).tolist())
            self._judged = said, self._may_end(finished)
        return self._judged[1]

    def _decide(self, index: int) -> None:
        """Let a record count, unless another one counts already."""
        self._words.swap_if(self._memory.word(self._round, DECIDED), 0, index + 1)

    def _try_with_others(self, flags: Flags, *, complete: bool) -> None:
        """Tell other nodes how far this one is, and propose, if this rank is the agent."""
        agent = self._memory.word(self._round, AGENT)
        if self._words.swap_if(agent, 0, self._member + 1) not in (0, self._member + 1):
            return
        said = flags.tobytes() + bytes([complete])
        if said != self._told:
            self._told = said
            number = self._words.add(self._memory.word(self._round, TOLD), 1) + 1
            numbers = (number, int(complete))
            self._messages.tell_all(kinds.NOTE, self._round, numbers, flags.tobytes())
            if not self._propose_at_s:
                self._propose_at_s = time.monotonic() + self._mine * _TURN_S
        if time.monotonic() < self._propose_at_s or not complete:
            return
        for cell in range(len(self._cells)):
            if cell != self._mine:
                numbers_of, others = self._memory.note(self._round, cell)
                complete = complete and bool(numbers_of[1])
                flags = flags | others
        if complete and self._is_enough(flags):
            self._propose(flags)

    def _propose(self, flags: Flags) -> None:
        """Begin a ballot; the next one only if this one does not come to an end."""
        self._propose_at_s = time.monotonic() + (len(self._cells) + self._mine) * 5 * _TURN_S
        with self._locked(self._round):
            seen = self._words.load(self._memory.word(self._round, PROMISED))
        ballot = self._proposer.begin(flags.tobytes(), seen)
        self._messages.tell_all(kinds.PREPARE, self._round, (ballot, 0), b"")
        own = self._prepare(self._round, ballot)
        if own is not None:
            self._hear_promise(self._mine, ballot, own)

    def _hear_promise(self, cell: int, ballot: int, own: Acceptor) -> None:
        if not self._proposer.hear_promise(cell, ballot, own.accepted, own.value):
            return
        value = self._proposer.value
        assert value is not None
        self._messages.tell_all(kinds.ACCEPT, self._round, (ballot, 0), value)
        if self._accept(self._round, ballot, value):
            self._hear_accepted(self._mine, ballot)

    def _hear_accepted(self, cell: int, ballot: int) -> None:
        if self._proposer.hear_accepted(cell, ballot):
            value = self._proposer.value
            assert value is not None
            self._messages.tell_all(kinds.HEARD, self._round, (0, 0), value)
            self._hear(self._round, value)

    @contextmanager
    def _locked(self, round_: int) -> Iterator[None]:
        """Keep other ranks of this node from a slot; no rank waits inside."""
        lock = self._memory.word(round_, LOCK)
        if self._words.swap_if(lock, 0, self._member + 1):
            self._wait_locked(lambda: self._words.swap_if(lock, 0, self._member + 1) == 0)
        try:
            yield
        finally:
            self._words.store(lock, 0)

    def _acceptor(self, round_: int) -> Acceptor:
        memory, load = self._memory, self._words.load
        accepted = load(memory.word(round_, ACCEPTED))
        value = memory.record(round_, memory.accepted).tobytes() if accepted else b""
        return Acceptor(load(memory.word(round_, PROMISED)), accepted, value)

    def _keep(self, round_: int, state: Acceptor) -> None:
        memory, store = self._memory, self._words.store
        if state.accepted:
            memory.record(round_, memory.accepted)[:] = np.frombuffer(state.value, np.uint8)
        store(memory.word(round_, ACCEPTED), state.accepted)
        store(memory.word(round_, PROMISED), state.promised)

    def _prepare(self, round_: int, ballot: int) -> Acceptor | None:
        """Promise a ballot for this node; gives what it had accepted."""
        with self._locked(round_):
            state = self._acceptor(round_).prepare(ballot) if self._is_open(round_) else None
            if state is not None:
                self._keep(round_, state)
            return state

    def _accept(self, round_: int, ballot: int, value: bytes) -> bool:
        """Accept a value for this node."""
        with self._locked(round_):
            state = None
            if self._is_open(round_):
                state = self._acceptor(round_).accept(ballot, value)
            if state is not None:
                self._keep(round_, state)
            return state is not None

    def _hear(self, round_: int, value: bytes) -> None:
        """Note what was decided."""
        memory = self._memory
        with self._locked(round_):
            if self._is_open(round_):
                memory.record(round_, memory.heard)[:] = np.frombuffer(value, np.uint8)
                self._words.swap_if(memory.word(round_, DECIDED), 0, memory.heard + 1)

    def _is_open(self, round_: int) -> bool:
        return self._memory.is_open(round_)

    def clear(self, round_: int) -> None:
        """Open the slot of a round that all ranks of this node have left.  Local."""
        if len(self._cells) == 1:
            self._memory.clear(round_)
            return
        with self._locked(round_):
            self._memory.clear(round_)
        self._messages.tell_all(kinds.ALL_LEFT, round_, (0, 0), b"")

    def handle(self, message: CellMessage) -> None:
        """Act on a message of another node.  Local.

        Parameters
        ----------
        message : CellMessage
            About any round; kept if this node has no slot for the round yet.
        """
        if message.kind == kinds.ALL_LEFT:
            at = self._memory.left_by(message.cell)
            before = self._words.load(at)
            while before < message.round:
                before = self._words.swap_if(at, before, message.round)
        elif not self._memory.has_had(message.round):
            self._deferred.append(message)
        elif self._is_open(message.round):
            self._act(message)

    def handle_deferred(self) -> None:
        """Act on messages that came before their round had a slot.  Local."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for message in deferred:
                self.handle(message)

    def _act(self, message: CellMessage) -> None:
        """Act on a message about a round that is under way in this node."""
        round_, ballot, is_own = message.round, message.ballot, message.round == self._round
        if message.kind == kinds.NOTE:
            with self._locked(round_):
                numbers, flags = self._memory.note(round_, message.cell)
                if self._is_open(round_) and message.ballot > numbers[0]:
                    flags[:] = np.frombuffer(message.data, np.uint8)
                    numbers[:] = message.ballot, message.accepted
        elif message.kind == kinds.PREPARE:
            state = self._prepare(round_, ballot)
            if state is not None:
                answer = ballot, state.accepted
                self._messages.tell(message.rank, kinds.PROMISE, round_, answer, state.value)
        elif message.kind == kinds.ACCEPT:
            if self._accept(round_, ballot, message.data):
                self._messages.tell(message.rank, kinds.ACCEPTED, round_, (ballot, 0), b"")
        elif message.kind == kinds.HEARD:
            self._hear(round_, message.data)
        elif message.kind == kinds.PROMISE and is_own:
            state = Acceptor(ballot, message.accepted, message.data)
            self._hear_promise(message.cell, ballot, state)
        elif message.kind == kinds.ACCEPTED and is_own:
            self._hear_accepted(message.cell, ballot)
