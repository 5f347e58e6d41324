"""How a job whose ranks may die has ended, by what the ranks themselves said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from closeranks.comms.last_resort import TRY_AGAIN

#: A launcher's own status above this speaks of a signal.
_LARGEST: Final = 127


@dataclass(frozen=True)
class Votes:
    """What was said so far.

    Parameters
    ----------
    begun : bool, optional
        Whether the ranks have opened a communicator.
    last : tuple of int, optional
        The largest epoch of which members said how they ended, and the largest
        status among them.  Who left before was lost to those who went on.
    timed_out : bool, optional
        Whether a recovery has taken too long for anybody.
    aborted : int, optional
        The status of the first who asked for the end of the whole job.
    """

    begun: bool = False
    last: tuple[int, int] | None = None
    timed_out: bool = False
    aborted: int | None = None

    def after(self, words: Sequence[str]) -> Votes:
        """Count one more vote.

        Parameters
        ----------
        words : sequence of str
            ``here``, which counts nothing, ``begun``, ``ended EPOCH STATUS`` or
            ``abort STATUS``.

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
                return replace(self, begun=True)
            case ["ended", epoch, status] if int(status) == TRY_AGAIN and int(epoch) >= 0:
                return replace(self, begun=True, timed_out=True)
            case ["ended", epoch, status]:
                said = int(epoch), int(status)
                last = said if self.last is None else max(said, self.last)
                return replace(self, begun=True, last=last)
            case ["abort", status]:
                first = int(status) if self.aborted is None else self.aborted
                return replace(self, aborted=first)
        raise ValueError(f"no vote: {' '.join(words)}")

    def judge(self, status: int) -> int:
        """Give the exit status of the job.

        Parameters
        ----------
        status : int
            The launcher's, 128 + n if signal n ended it.

        Returns
        -------
        int
            75 if a recovery has timed out; else what was asked for with an abort;
            else the launcher's if a program gave it (1 to 127); else what the
            members of the last world said, the largest; else 1 if a world had
            begun, for all are dead; else the launcher's.
        """
        if self.timed_out:
            return TRY_AGAIN
        if self.aborted is not None:
            return self.aborted
        if 1 <= status <= _LARGEST:
            return status
        if self.last is not None:
            return self.last[1]
        return 1 if self.begun else status

    def is_silent(self, status: int) -> bool:
        """Say whether the job is a failure because nobody said how it ended.

        Parameters
        ----------
        status : int
            The launcher's.

        Returns
        -------
        bool
            True if all members are dead, as it seems.
        """
        said = self.timed_out or self.aborted is not None or self.last is not None
        return self.begun and not said and not 1 <= status <= _LARGEST
