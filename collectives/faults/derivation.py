"""What was derived from a communicator, so that it can be derived again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from closeranks.comms.liveness.collective_creation import all_or_none

if TYPE_CHECKING:
    from closeranks.collectives.communicator.recoverable import Recovering


class Birth(NamedTuple):
    """One communicator that was derived.

    Attributes
    ----------
    child : Recovering
        What came of it.
    color, key : int
        As for `MPI.Intracomm.Split`; color `MPI.UNDEFINED` if nothing that a split
        would give again.
    """

    child: Recovering
    color: int
    key: int


class Lineage:
    """The communicators derived from one, in the order in which its ranks made them.

    One that was freed stays as long as anything that came of it does.

    Attributes
    ----------
    living : dict of int to Birth
        Number -> those that have not been freed, as far as this rank is a member.
    others : list of Recovering
        What its members have made without the other ranks: it has no number.
    """

    def __init__(self) -> None:
        self._births, self._forsaken = 0, set[int]()
        self.living: dict[int, Birth] = {}
        self.others: list[Recovering] = []

    def note(self, child: Recovering | None, color: int, key: int) -> None:
        """Note that one more was made; None where this rank is no member.  Local."""
        if child is not None:
            self.living[self._births] = Birth(child, color, key)
        self._births += 1

    def children(self) -> list[Recovering]:
        """Give those that are left.  Local."""
        return [*(birth.child for birth in self.living.values()), *self.others]

    def forget(self, child: Any) -> None:
        """Note that nothing of a communicator is left.  Local."""
        self.living = {n: birth for n, birth in self.living.items() if birth.child is not child}
        self.others = [other for other in self.others if other is not child]

    def forsake(self, child: Any) -> None:
        """Note that nobody is to have a communicator again.  Local."""
        self._forsaken |= {n for n, birth in self.living.items() if birth.child is child}

    def settle(self) -> None:
        """Note that the ranks go on with what was made again last.  Local.

        Not before: it is made once more where another one dies meanwhile.
        """
        self._forsaken.clear()

    def again(self, plain: MPI.Intracomm) -> list[tuple[Recovering, MPI.Intracomm | None]]:
        """Derive them again from those who are left.

        Collective over ``plain``.  What only some ranks have is not made again: it
        was under way when the others were told; nor is what anybody has forsaken.

        Parameters
        ----------
        plain : MPI.Intracomm
            The ranks of the communicator they came from, as it is now.

        Returns
        -------
        list of (Recovering, MPI.Intracomm or None)
            Of this rank, with what each is from now on; None: nothing any more.
        """
        comms = all_or_none(plain, lambda: self._split(plain))
        made: list[tuple[Recovering, MPI.Intracomm | None]] = []
        made += [(gone, None) for other in self.others for gone in other.descent()]
        problem: Exception | None = None
        for number, birth in self.living.items():
            if number not in comms:
                made += [(gone, None) for gone in birth.child.descent()]
                continue
            comm = comms[number]
            try:
                made += [(birth.child, comm), *birth.child.derived_again(comm)]
            except Exception as error:  # told when all have met in all of them
                problem = problem or error
        if problem is not None:
            raise problem
        return made

    def _split(self, plain: MPI.Intracomm) -> dict[int, MPI.Intracomm]:
        """Split once for each that all ranks had; gives those of this rank."""
        here = [n for n, birth in self.living.items() if birth.color != MPI.UNDEFINED]
        said = plain.allgather((self._births, here, self._forsaken))
        complete = min(births for births, _, _ in said)
        wanted = {n for _, numbers, _ in said for n in numbers if n < complete}
        comms: dict[int, MPI.Intracomm] = {}
        for number in sorted(wanted.difference(*(forsaken for _, _, forsaken in said))):
            birth = self.living.get(number)
            color, key = (MPI.UNDEFINED, 0) if birth is None else (birth.color, birth.key)
            comm = plain.Split(color, key)
            if comm != MPI.COMM_NULL:
                assert isinstance(comm, MPI.Intracomm)
                comms[number] = comm
        self._births = complete
        return comms
