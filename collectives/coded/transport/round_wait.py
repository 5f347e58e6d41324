"""How a rank waits inside of a round, and what ends the wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.coded.transport.cell_messages import FAILED
from closeranks.collectives.coded.transport.round_memory import WORDS_BYTES
from closeranks.collectives.engine.error_translation import explained
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerLate, PeerLost, Revoked

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.cell_messages import CellMessages
    from closeranks.collectives.coded.transport.rank_meeting import RankMeeting
    from closeranks.collectives.coded.transport.round_memory import RoundMemory
    from closeranks.collectives.communicator.membership import Membership

STEP: Final = "CodedAllreduce.step"
_REMEDY: Final = "make a CodedAllreduce of the ranks that are there now"
#: Between two questions who has died, seconds.
_LOOK_S: Final = 0.02
#: Before the words of a rank that has waited too long for others, and how many it names.
_LATE: Final = b"\1"
_MOST_LATE: Final = 256

#: Whether a round cannot go on without some ranks, which have died.
Blocks = Callable[[frozenset[int]], bool]


class RoundWait:
    """Waits of one rank.

    Parameters
    ----------
    membership : Membership
        Of the communicator.
    memory : RoundMemory
        Of this node.
    messages : CellMessages
        Of this rank.
    handle : callable
        Receives messages of other nodes.
    meeting : RankMeeting
        Which no rank is to wait for that has given up.

    Attributes
    ----------
    is_broken : bool
        Whether a rank has given up.
    dead : frozenset of int
        Ranks that are known here to have died.
    """

    def __init__(
        self,
        membership: Membership,
        memory: RoundMemory,
        messages: CellMessages,
        handle: Callable[[], None],
        meeting: RankMeeting,
    ) -> None:
        self._membership, self._memory, self._messages = membership, memory, messages
        self._handle, self._world = handle, membership.family.world
        self._meeting = meeting
        self._hears, self._look_at_s = ulfm.is_on(), 0.0
        self._rank = membership.comm.Get_rank()
        self.dead: frozenset[int] = frozenset()
        self.is_broken = False

    @property
    def is_outlived(self) -> bool:
        """Whether a recovery has made other ranks of these."""
        return self._membership.family.world is not self._world

    def refuse(self) -> None:
        """Raise if no round can come to its end any more.  Local."""
        if self.is_broken and not self.is_outlived:
            raise Revoked(STEP, (), "a rank has given up a round", _REMEDY, for_good=True)
        self._membership.service.guard.refuse(STEP)

    def is_current(self) -> bool:
        """Tell whether the ranks are those that it was made for, and go on.  Local."""
        world = self._membership.family.world
        return not self.is_broken and world is self._world and not world.revoked

    def look(self) -> None:
        """Receive messages, and raise what keeps the round from its end.  Local."""
        with self.explaining():
            self._handle()
            self._abort(None)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise what the user is told of errors of the library; no round goes on then."""
        try:
            yield
        except MPI.Exception as error:
            self.is_broken = True
            plain = self._membership.service.plain
            raise explained(STEP, plain, self._world, error) from error
        except (PeerLost, Revoked):
            self.is_broken = True
            raise

    def wait_locked(self, ready: Callable[[], bool]) -> None:
        """Wait for a rank of this node that may have died in there.

        Local; receives nothing, since whoever waits may be receiving.
        """
        wait(ready, progress=ulfm.listen, abort=lambda: self._abort(bool))

    def until(
        self,
        ready: Callable[[], bool],
        blocks: Blocks,
        *,
        limit_s: float | None = None,
        late: Callable[[], list[int]] = list,
        hears_failures: bool = True,
    ) -> bool:
        """Wait for other ranks.

        Parameters
        ----------
        ready : callable
            Whether the wait is over.
        blocks : callable
            Whether ranks that have died make the wait vain.
        limit_s : float, optional
            How long at most; False is returned after it.  Default: the
            deadline of the communicator, which raises.
        late : callable
            The ranks that it waits for, for the text of an error.
        hears_failures : bool
            Whether a rank that has given up, and lives, ends the wait.

        Returns
        -------
        bool
            Whether it is over.

        Raises
        ------
        PeerLost, PeerLate, Revoked
            If ranks have died, given up, or not come.
        """
        with self.explaining():
            if ready():
                return True
        family_s = self._membership.family.timeout_s
        span_s = family_s if limit_s is None else limit_s
        deadline = None if span_s is None else Deadline(span_s)
        abort = partial(self._abort, blocks, hears_failures=hears_failures)
        with self.explaining():
            if wait(ready, progress=self._progress, abort=abort, deadline=deadline):
                return True
        if limit_s is not None:
            return False
        self.is_broken = True
        assert deadline is not None
        told = PeerLate(STEP, late(), waited_s=deadline.waited_s, limit_s=deadline.limit_s)
        self.tell_failure(told)
        raise told

    def _progress(self) -> bool:
        self._handle()
        return ulfm.listen()

    def _abort(self, blocks: Blocks | None, *, hears_failures: bool = True) -> None:
        """Raise what has ended the round for others, or for all."""
        failed = self._memory.words.load(self._memory.failed)
        if failed > 0 and hears_failures:
            self.is_broken = True
            self._meeting.refuse()
            raise _understood(failed - 1, self._memory.failure_words.tobytes().rstrip(b"\0"))
        self._world.check(STEP)
        if self._membership.opened is not None:
            self._membership.opened.check(STEP)
        if blocks is None or not self._hears:
            return
        if time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_S
            self.dead = frozenset(ulfm.failed(self._membership.service.plain))
        if self.dead and blocks(self.dead):
            self._world.revoke()
            raise self._world.verdict(STEP)

    def tell_failure(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot go on.  Local; not in a forked child.

        Parameters
        ----------
        error : BaseException
            Why.
        """
        self.is_broken = True
        if forked_child.is_child():
            return  # which is no rank
        if self.is_outlived or (self._hears and self._world.revoked):
            return  # which has told them, and why
        words = _words_of(error)
        self.note_failure(self._rank, words)
        self._meeting.refuse()
        self._messages.tell_or_revoke(FAILED, 0, words)

    def note_failure(self, rank: int, words: bytes) -> None:
        """Let the ranks of this node know of a rank that cannot go on.  Local."""
        memory = self._memory
        if memory.words.swap_if(memory.failed, 0, -1) == 0:  # the first one counts
            memory.failure_words[: len(words)] = np.frombuffer(words, np.uint8)
            memory.words.store(memory.failed, rank + 1)


def _words_of(error: BaseException) -> bytes:
    """Say why a rank cannot go on; who is late is said to all in full."""
    if type(error) is PeerLate:
        late = {"ranks": error.ranks[:_MOST_LATE], "waited_s": error.waited_s}
        return _LATE + json.dumps({**late, "limit_s": error.limit_s}).encode()
    text = f"{type(error).__name__}: {error}".encode(errors="replace")
    return text[:WORDS_BYTES].replace(b"\0", b" ")


def _understood(rank: int, words: bytes) -> PeerLost | PeerLate:
    """Give the error that a rank raises which has heard of another one's."""
    if words.startswith(_LATE):
        return PeerLate(STEP, **json.loads(words[len(_LATE) :]))
    return PeerLost(STEP, [rank], cause=words.decode(errors="replace"))
