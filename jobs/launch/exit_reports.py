"""How a job whose ranks may die has ended, by what the ranks themselves said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from closeranks.comms.exit.hard_deadline import TRY_AGAIN
from closeranks.errors import named

#: Such a status of a launcher speaks of a signal; another one but 0 is a program's.
_SIGNALS: Final = range(128, 128 + 65)
_MARK: Final = re.compile(r"\d{1,9}\.[0-9a-f]{8}")


class Parting(NamedTuple):
    """A process that has ended in good order.

    Attributes
    ----------
    group : int
        Whose member it was, or whose spare.
    epoch : int
        Of its last world; -1 for a spare that has waited to the end.
    first : int
        How many processes had begun together; 0 if it has come later.
    last : int
        How many were left, with those that waited.
    status : int
        Its exit status.
    """

    group: int
    epoch: int
    first: int
    last: int
    status: int


@dataclass(frozen=True)
class Votes:
    """What was said so far.

    Ranks speak for a group: those who have opened a communicator together.  Epochs
    of two groups say nothing about each other.

    Parameters
    ----------
    begun : frozenset of int, optional
        Groups that have opened a communicator.
    mixed : frozenset of int, optional
        Groups with ranks in a communicator of another one.
    last : mapping of int to tuple of int, optional
        Of each group the largest epoch of which members said how they ended, and
        the largest status among them.  Who left before was lost to those who went
        on.
    timed_out : bool, optional
        Whether a recovery has taken too long for anybody.
    aborted : int, optional
        The status of the first who asked for the end of the whole job.
    closed : frozenset of str, optional
        Marks of members that have closed what they had opened, all together, and
        have not said how they ended: "RANK." and what tells two of them apart.
    left : tuple of Parting, optional
        What processes have ended with that have ended in good order, as far as
        they say so.
    """

    begun: frozenset[int] = frozenset()
    mixed: frozenset[int] = frozenset()
    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    timed_out: bool = False
    aborted: int | None = None
    closed: frozenset[str] = frozenset()
    left: tuple[Parting, ...] = ()

    def after(self, words: Sequence[str]) -> Votes:
        """Count one more vote.

        Parameters
        ----------
        words : sequence of str
            ``here``, which counts nothing, ``begun``, ``ended EPOCH STATUS`` or
            ``abort STATUS``; of another group than 0 ``begun GROUP:0`` and
            ``ended GROUP:EPOCH STATUS``; of one that is in another one, too,
            ``mixed GROUP:0``.  ``overdue`` where a recovery takes too long.  ``closed
            MARK``, and then ``again MARK`` of who opens more, or ``ended PLACE STATUS
            MARK``.  ``left GROUP:EPOCH FIRST LAST STATUS``, of a spare
            ``left GROUP:waits FIRST LAST STATUS``.

        Returns
        -------
        Votes
            With it.

        Raises
        ------
        ValueError
            If it is none of them.
        """
        match list(words):
            case ["here"]:
                return self
            case ["begun"]:
                return replace(self, begun=self.begun | {0})
            case ["begun", place] if ":" in place:
                return replace(self, begun=self.begun | {_place(place)[0]})
            case ["mixed", place] if ":" in place:
                return replace(self, mixed=self.mixed | {_place(place)[0]})
            case ["closed", mark] if _MARK.fullmatch(mark):
                return replace(self, closed=self.closed | {mark})
            case ["again", mark] if _MARK.fullmatch(mark):
                return replace(self, closed=self.closed - {mark})
            case ["ended", place, status, mark] if _MARK.fullmatch(mark):
                return self.after(["ended", place, status]).after(["again", mark])
            case ["ended", place, status]:
                group, epoch = _place(place)
                begun = self.begun | {group}
                said = epoch, int(status)
                last = {**self.last, group: max(said, self.last.get(group, said))}
                return replace(self, begun=begun, last=last)
            case ["overdue"]:
                return replace(self, timed_out=True)
            case ["left", place, *numbers] if len(numbers) == 3:
                return replace(self, left=(*self.left, _parting(place, numbers)))
            case ["abort", status]:
                first = int(status) if self.aborted is None else self.aborted
                return replace(self, aborted=first)
        raise ValueError(f"no vote: {' '.join(words)}")

    def judge(self, status: int, ranks: int = 0) -> int:
        """Give the exit status of the job.

        Parameters
        ----------
        status : int
            The launcher's, 128 + n if signal n ended it.
        ranks : int, optional
            How many the launcher has started, with spares; 0 if that is not known.

        Returns
        -------
        int
            75 if a recovery has timed out; else what was asked for with an abort;
            else the launcher's if a program gave it (not 0, nor 128 to 192), unless
            others went on without whom it may be of (see `accounts_for`); else the
            largest of what the members of each group's last world said, of what they
            have ended with, and of 1 for each that is `silent`, or has `closed` and
            said nothing since; else the launcher's.
        """
        if self.timed_out:
            return TRY_AGAIN
        if self.aborted is not None:
            return self.aborted
        if _is_of_a_program(status) and not self.accounts_for(ranks):
            return status
        said = [status for _, status in self.last.values()]
        said += [one.status for one in self.left if one.epoch in (-1, self._epoch(one.group))]
        said += [1 for _ in (*self.silent, *self.closed)]
        return max(said, default=status)

    def accounts_for(self, ranks: int) -> bool:
        """Tell whether the end of every process is known, but of those lost.

        All have begun in groups, somebody went on without others, and all processes
        that the last world of each group had left, spares too, have said with which
        status they end.

        Parameters
        ----------
        ranks : int
            How many the launcher has started.

        Returns
        -------
        bool
            If not, any status of the launcher may be that of one who was needed.
        """
        groups = self.begun | {one.group for one in self.left}
        tallies = [self._tally(group) for group in groups]
        went_on = any(one.epoch > 0 for one in self.left)
        return went_on and None not in tallies and sum(filter(None, tallies)) == ranks

    def _epoch(self, group: int) -> int:
        """Give the last epoch of which a process of a group has said its end; -1 if none."""
        return max((one.epoch for one in self.left if one.group == group), default=-1)

    def _tally(self, group: int) -> int | None:
        """Count who has begun in a group; None unless all who were left say their end."""
        of = [one for one in self.left if one.group == group]
        epoch = self._epoch(group)
        final = [one for one in of if one.epoch == epoch]
        firsts = {one.first for one in of} - {0}
        lasts = {one.last for one in final}
        if epoch < self.last.get(group, (0, 0))[0] or not len(firsts) == len(lasts) == 1:
            return None
        final += [one for one in of if one.epoch < 0 and one.last in lasts]
        return firsts.pop() if len(final) == lasts.pop() else None

    @property
    def silent(self) -> frozenset[int]:
        """Groups that have begun, and all of whose ranks are dead, as it seems.

        One that was mixed with others may be a node that those have lost; they say
        how it ended.
        """
        return self.begun - self.last.keys() - (self.mixed if self.last else frozenset())

    def silence(self, status: int, ranks: int = 0) -> str | None:
        """Say whose silence makes a failure of the job, if that does.

        Parameters
        ----------
        status : int
            The launcher's.
        ranks : int, optional
            See `judge`.

        Returns
        -------
        str or None
            Who said nothing, in words: a group whose members are all dead, as it
            seems, or members that died when no other could go on for them.
        """
        if self.timed_out or self.aborted is not None:
            return None
        if _is_of_a_program(status) and not self.accounts_for(ranks):
            return None
        if self.silent:
            who = f"the group of {named(tuple(sorted(self.silent)))}" if self.last else "the job"
            return f"{who} had begun, and nobody is left to say how it ended"
        if self.closed:
            who = named(tuple(sorted(int(mark.partition(".")[0]) for mark in self.closed)))
            return f"{who} ended without a word after all had closed their communicator"
        return None


def _is_of_a_program(status: int) -> bool:
    """Tell whether a launcher's status is that of a failure of a program."""
    return status != 0 and status not in _SIGNALS


def _place(text: str) -> tuple[int, int]:
    """Read the group and the epoch of who speaks."""
    group, colon, epoch = text.rpartition(":")
    found = int(group) if colon else 0, int(epoch)
    if min(found) < 0:
        raise ValueError(f"no vote: {text}")
    return found


def _parting(place: str, numbers: Sequence[str]) -> Parting:
    """Read how a process has ended."""
    group, _, epoch = place.partition(":")
    found = _place(f"{group}:0" if epoch == "waits" else place)[0]
    first, last, status = (int(number) for number in numbers)
    if min(first, last - 1, status) < 0:
        raise ValueError(f"no vote: left {place} {' '.join(numbers)}")
    return Parting(found, -1 if epoch == "waits" else int(epoch), first, last, status)
