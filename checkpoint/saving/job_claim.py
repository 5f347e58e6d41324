"""The claim of one job, while it lives, to the checkpoints of a name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.memory.slot_locks import Owner
from closeranks.errors import CheckpointError, Disagreement, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel
    from closeranks.checkpoint.restore.recovery_search import RankNodes

#: How long who has been killed may take to be gone, seconds: who is there after that, lives.
PATIENCE_S: Final = 3.0
#: Seconds between two tries, how many times as long the next one waits, and at most.
_FIRST_S, _SLOWER, _SLOWEST_S = 0.01, 1.5, 0.3


class Claim(NamedTuple):
    """The claim that the ranks of a job share to the slots of a name.

    Made by `claim`.

    Attributes
    ----------
    key : str
        Name of the checkpoints, with that of the job.
    token : str
        Tells these ranks from all others: 16 digits.
    run : str or None
        Tells this run from others of the name; None if that is not known.
    """

    key: str
    token: str
    run: str | None = None


class Meeting(NamedTuple):
    """The result of a meeting of all ranks.

    Attributes
    ----------
    claim : Claim
        Of members of before, else a new one.
    number : int
        Drawn at this meeting, 32 bits.
    """

    claim: Claim
    number: int


def meet(
    channel: ControlChannel,
    nodes: RankNodes,
    asked: Claim | str,
    root: Path | None,
    *,
    options: Mapping[str, Any],
    is_open: bool = False,
) -> Meeting:
    """Agree which claim counts, and take the slots.

    Collective.  The claim of members of the term before counts, else the first
    rank's.

    Parameters
    ----------
    channel : ControlChannel
        Between the ranks; closed where they are refused.
    nodes : RankNodes
        Where they are.
    asked : Claim or str
        The claim of the term before, if this rank was a member; else the key.
    root : Path or None
        The file system in memory.
    options : mapping of str to object
        The options that must be equal on all ranks, as plain JSON.
    is_open : bool
        Whether another checkpointer of this process has the key open.

    Returns
    -------
    Meeting
        The same on all ranks.

    Raises
    ------
    UsageError, Disagreement
        On all ranks, if one has them open already, or their options differ.
    CheckpointError
        On all ranks, if others have them, or a node has no such folder.  A
        rank that was no member of the term before holds nothing then.
    """
    try:
        return _met(channel, nodes, asked, root, options, is_open=is_open)
    except (CheckpointError, Disagreement, UsageError):  # on all ranks
        channel.close()
        raise


def _met(
    channel: ControlChannel,
    nodes: RankNodes,
    asked: Claim | str,
    root: Path | None,
    options: Mapping[str, Any],
    *,
    is_open: bool,
) -> Meeting:
    """Agree, and take the slots."""
    before = asked if isinstance(asked, Claim) else None
    fresh = Claim(asked if isinstance(asked, str) else asked.key, secrets.token_hex(8))
    said = channel.everything([before, fresh, secrets.randbits(32), {**options}, is_open])
    members = [Claim(*one) for one, *_ in said if one is not None]
    claim = members[0] if members else Claim(*said[0][1])
    _compare([one for *_, one, _ in said], claim.key)
    if any(one for *_, one in said):
        raise UsageError("Checkpointer", f"{claim.key!r} is open twice", "close the other one")
    if before is None:  # a checkpointer that was dropped, and not closed, is no hindrance
        slot_locks.release(claim.key, root)
    _take(channel, nodes, claim, root)
    return Meeting(claim, int(said[0][2]))


def _compare(options: Sequence[Mapping[str, Any]], key: str) -> None:
    """Raise if ranks ask for different things."""
    for name, value in options[0].items():
        values = {rank: one.get(name) for rank, one in enumerate(options)}
        if any(other != value for other in values.values()):
            told = {rank: f"{name}={other!r}" for rank, other in values.items()}
            raise Disagreement(f"Checkpointer {key}", told)


def _take(channel: ControlChannel, nodes: RankNodes, claim: Claim, root: Path | None) -> None:
    """Take the slots on all nodes, or on none.

    One rank of each node takes them; the others join it.  Two jobs that come at
    once may have some nodes each: both let go, and try again after times that
    differ, until one of them has all.
    """
    owner, is_first = Owner.here(claim.token), nodes.turn(nodes.here, 0) == nodes.rank
    had, until = slot_locks.holds(claim.key, root), time.monotonic() + PATIENCE_S
    pause_s = _FIRST_S * (1 + int(claim.token, 16) % 16 / 8)

    def is_taken() -> list[int]:
        found[:] = [slot_locks.take(claim.key, owner, root)]
        return [not found[0]]

    def is_free() -> list[int]:
        found[:] = [""]
        return is_taken() if is_first else [1]

    found: list[str] = []
    try:
        while not channel.told("checkpoint", is_free, 1, channel.least)[0]:
            said = channel.everything([found[0], time.monotonic() > until])
            if said[0][1]:
                _refuse(claim.key, [other for other, _ in said])
            if not had:
                slot_locks.release(claim.key, root)
            time.sleep(pause_s)
            pause_s = min(pause_s * _SLOWER, _SLOWEST_S)
        if not channel.told("checkpoint", is_taken, 1, channel.least)[0]:
            _refuse(claim.key, channel.everything(found[0]))
    except BaseException:
        if not had:
            slot_locks.release(claim.key, root)
        raise


def _refuse(key: str, others: Sequence[str]) -> None:
    """Raise if another job has them on a node."""
    told = next(filter(None, others), "")
    if told:
        remedy = "let it end, or give one of the two another name, or another CLOSERANKS_RUN"
        raise CheckpointError("checkpoint", f"{key} is open elsewhere: {told}", remedy)
