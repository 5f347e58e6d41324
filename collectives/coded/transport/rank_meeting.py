"""All ranks come together before they call the communicator.

A call of the communicator lasts for ever if a rank never makes it. A rank
that has given up cannot come, and others may have come already. So nodes
vote, as in a commit of two phases (Gray, "Notes on data base operating
systems", 1978, 5.8.3): a node says yes once all of its ranks have come, and
no once one of them has given up before that. Nobody takes back a yes. The
ranks call the communicator if all nodes have said yes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from closeranks.collectives.coded.transport.cell_messages import MET, REFUSED
from closeranks.comms.exit.signal_handlers import DeferredHandlers, defer_handlers
from closeranks.errors import PeerError

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.cell_messages import CellMessages
    from closeranks.collectives.coded.transport.round_memory import RoundMemory
    from closeranks.collectives.coded.transport.round_wait import RoundWait

_T = TypeVar("_T")


class RankMeeting:
    """The meetings of all ranks, one after another.

    Parameters
    ----------
    memory : RoundMemory
        Of this node.
    messages : CellMessages
        Of this rank.
    member : int
        Rank in the node.
    others : list of int
        The other nodes.
    """

    def __init__(
        self, memory: RoundMemory, messages: CellMessages, member: int, others: list[int]
    ) -> None:
        self._memory, self._messages = memory, messages
        self._member, self._others = member, others
        self._number = 0

    def call(self, wait: RoundWait, together: Callable[[BaseException | None], _T]) -> _T:
        """Wait for all ranks, then call.

        Collective.  Once all nodes have voted, handlers of signals wait until the
        call is over.

        Parameters
        ----------
        wait : RoundWait
            Raises where a rank has given up before its node had said yes.
        together : callable
            Calls the communicator.  Takes what has interrupted this rank since,
            which it raises when it has called, or None.

        Returns
        -------
        object
            Its result.

        Raises
        ------
        PeerLost, PeerLate, Revoked
            If a rank does not come; nothing was called then.
        """
        memory, interrupted = self._memory, None
        with DeferredHandlers():
            self._number += 1
            number = self._number
            try:
                memory.words.store(memory.met(self._member), number)
                wait.until(
                    lambda: self._has_gathered(number), bool, late=lambda: memory.missing(number)
                )
                self._vote(wait, number)
                defer_handlers()
            except BaseException as error:
                self.refuse()
                if not self._has_gathered(number):
                    raise
                # The others count on this rank.  What it has heard of it hears again afterwards.
                interrupted = None if isinstance(error, PeerError) else error
                defer_handlers()
                self._vote(wait, number)
            if any(self._messages.refuses(cell, number) for cell in self._others):
                wait.until(lambda: False, bool)  # raises why, which comes from another rank
            return together(interrupted)

    def refuse(self) -> None:
        """Come to no further meeting.  Local; any thread."""
        words, at = self._memory.words, self._memory.gathered
        while (number := words.load(at)) >= 0:
            if words.swap_if(at, number, -1 - number) == number:
                self._messages.tell_or_revoke(REFUSED, number + 1)

    def _has_gathered(self, number: int) -> bool:
        """Tell whether this node has said yes; who sees all of its ranks says so."""
        words, at = self._memory.words, self._memory.gathered
        if words.load(at) == number - 1 and not self._memory.missing(number):
            words.swap_if(at, number - 1, number)
        found = words.load(at)
        return max(found, -1 - found) >= number

    def _vote(self, wait: RoundWait, number: int) -> None:
        """Say yes for this node, and wait until all nodes have voted; harmless twice."""
        messages = self._messages
        if self._member == 0:
            messages.tell_or_revoke(MET, number)
        wait.until(
            lambda: all(
                messages.met(cell) >= number or messages.refuses(cell, number)
                for cell in self._others
            ),
            bool,
            hears_failures=False,
        )
