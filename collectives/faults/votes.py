"""The outcome of the votes on an attempt: pure, the same on all members.

At the end of an attempt every member votes, and the members agree on the bits
that all votes have in common, see `closeranks.comms.liveness.agreement`::

    bit    a rank sets it if              AGREED AGAIN UNBEGUN ABORT
    0b001  its body has ended well           1     0      0      0
    0b010  it goes on if all others do       1     1      1      0
    0b100  it has not begun the attempt      0     0      1      0

The bits that two votes have in common are a vote again, so four results are
possible:

=========== ==== ========= ==================================================
agreed      died own vote  `Outcome`
=========== ==== ========= ==================================================
``AGREED``  no   any       ``END``: the results are valid on all members
``AGREED``  yes  any       ``REPEAT``: a rank died during the agreement
``AGAIN``   any  any       ``REPEAT``: recover, then run the body again
``UNBEGUN`` any  any       ``REPEAT_UNBEGUN``: recover; no attempt has failed
``ABORT``   any  ``ABORT`` ``LEAVE``: raise the own error
``ABORT``   any  another   ``LEAVE_TOLD``: raise the error of another member
=========== ==== ========= ==================================================
"""

from __future__ import annotations

from enum import Enum
from typing import Final

#: The votes of a rank: its body has ended well, a peer is to blame, it raises its error.
AGREED, AGAIN, ABORT = 0b011, 0b010, 0b000
#: The vote of a rank that meets the end of the first attempt before it has begun it.
UNBEGUN = 0b110


class Outcome(Enum):
    """The next act of a member after a vote."""

    END = "the attempt is over"
    REPEAT = "recover and repeat it"
    REPEAT_UNBEGUN = "recover and begin the first one"
    LEAVE = "raise the own error"
    LEAVE_TOLD = "raise the error of another member"

    @property
    def goes_on(self) -> bool:
        """Whether the members recover and run the body again."""
        return self in (Outcome.REPEAT, Outcome.REPEAT_UNBEGUN)

    @property
    def leaves(self) -> bool:
        """Whether all members leave the loop by an error."""
        return self in (Outcome.LEAVE, Outcome.LEAVE_TOLD)


#: By the bits that survivors have agreed on; every other result is `Outcome.REPEAT`.
_OF_AGREED: Final = {
    AGREED: Outcome.END,
    UNBEGUN: Outcome.REPEAT_UNBEGUN,
    ABORT: Outcome.LEAVE_TOLD,
}


def outcome_of(vote: int, agreed: int, *, died: bool = False) -> Outcome:
    """Give the next act of a member after a vote.  Pure.

    Parameters
    ----------
    vote : int
        The vote of this rank.
    agreed : int
        The bits that the votes of all survivors have in common.
    died : bool
        Whether the agreement has found ranks dead; then the attempt has not ended
        well, even if all survivors vote so.

    Returns
    -------
    Outcome
        Of the members that have agreed on the same bits, all leave, all go on, or
        all end.
    """
    outcome = _OF_AGREED.get(agreed & UNBEGUN if died else agreed, Outcome.REPEAT)
    return Outcome.LEAVE if outcome is Outcome.LEAVE_TOLD and vote == ABORT else outcome
