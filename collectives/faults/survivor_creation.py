"""Making communicators of the survivors, while more ranks may die.

`together` repeats a collective until all survivors have its result.  `Lineage`
lists the communicators derived from one, so that they can be derived again.
`JoinMessage` is the state that a replacement cannot find out alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from mpi4py import MPI

from closeranks.collectives.engine.error_translation import may_blame
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms.liveness.agreement import agree
from closeranks.comms.liveness.collective_creation import all_or_none
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.collectives.selection.findings import TrialFindings
    from closeranks.comms.topology.topology import Link, Topology


class JoinMessage(NamedTuple):
    """A member's message to the others, newcomers above all.

    Attributes
    ----------
    epoch : int
        The one that begins.
    links : mapping of str to Link
        Of each level.
    given : Topology or None
        Of all seats, if the program had one.
    known : dict of Agreed to str
        The fastest algorithms as far as it knows.
    chooser : mapping of str to object
        Numbers by which it chooses, without its trials.
    sat : str
        Shape of the ranks that choose so, see `shape`.
    family : mapping of str to object
        Options that newcomers cannot find out alone.
    newcomers : dict of int to int
        See `Family`.
    failed, before, came
        See `Family`.
    findings : dict of str to TrialFindings
        See `Family`.
    """

    epoch: int
    links: Mapping[str, Link]
    given: Topology | None
    known: dict[Agreed, str]
    chooser: Mapping[str, Any]
    sat: str
    family: Mapping[str, Any]
    newcomers: dict[int, int]
    failed: int
    before: tuple[int, ...]
    came: set[int]
    findings: dict[str, TrialFindings]

    @classmethod
    def of(cls, family: Family, chooser: Chooser, epoch: int) -> JoinMessage:
        """Write the message of this member.  Local.

        Parameters
        ----------
        family : Family
            As it was in the epoch before.
        chooser : Chooser
            Of its first communicator.
        epoch : int
            That begins.

        Returns
        -------
        JoinMessage
            To be sent.
        """
        return cls(
            epoch,
            dict(family.world.topology.links),
            family.given,
            chooser.best_known,
            chooser.numbers,
            shape(chooser.topology),
            family.abilities,
            family.newcomers,
            family.failed,
            family.before,
            family.came,
            family.findings,
        )


#: Bits of a rank about its result; the ranks agree on the bits that all have set.
_MADE: Final = 0b01
_POSSIBLE: Final = 0b10


class Made(Protocol):
    """A result that may have to be dropped again."""

    def drop(self) -> None:
        """Let go of it; local."""


_M = TypeVar("_M", bound=Made)


def together(base: MPI.Intracomm, make: Callable[[MPI.Intracomm], _M]) -> _M:
    """Make something of the survivors until all of them have made it.

    Collective over the living ranks of ``base``.

    Parameters
    ----------
    base : MPI.Intracomm
        Revoked.
    make : callable
        Takes the communicator of the survivors; collective over it.

    Returns
    -------
    object
        Its result, on all of them, with no rank lost meanwhile.

    Raises
    ------
    Exception
        The error by which ``make`` failed here, unless a death caused it.
    Unavailable
        If another rank was kept from it.
    """
    while True:
        base.Ack_failed()  # nothing more is expected of the dead ranks
        whole = _shrunk(base)
        if whole is None:
            continue
        made, problem = _tried(whole, make)
        flags = (0 if made is None else _MADE) | (0 if problem else _POSSIBLE)
        agreed, died = agree(base, flags)
        if agreed & _MADE and not died:
            assert made is not None
            return made
        deferred_free.defer(whole)
        if made is not None:
            made.drop()
        if not agreed & _POSSIBLE:
            raise problem or Unavailable("a world of those who are left", "relaunch")


def _shrunk(base: MPI.Intracomm) -> MPI.Intracomm | None:
    """Shrink; None, on all ranks, where that has failed on any.

    No rank uses or revokes the new communicator before all have it: a rank of Open
    MPI 5 that is still making a communicator crashes when it is revoked.
    """
    whole = None
    try:
        whole = ulfm.shrink(base)
    except MPI.Exception as error:
        if not ulfm.speaks_of_failure(error, base):
            raise
    everybody, _ = agree(base, int(whole is not None))
    if whole is not None and not everybody:
        deferred_free.defer(whole)
    return whole if everybody else None


def _tried(
    whole: MPI.Intracomm, make: Callable[[MPI.Intracomm], _M]
) -> tuple[_M | None, Exception | None]:
    """Make it, or give the error that prevented it, if no death caused that."""
    try:
        return make(whole), None
    except Exception as error:
        blamed = may_blame(error, whole)
        ulfm.revoke(whole)
        return None, None if blamed else error


class Recoverable(Protocol):
    """The membership of a communicator that goes on after a recovery.

    `closeranks.collectives.communicator.membership.Membership`, a package above,
    is one.
    """

    @property
    def comm(self) -> MPI.Intracomm:
        """The handle."""

    @property
    def lineage(self) -> Lineage:
        """What was derived from it."""

    @property
    def chooser(self) -> Chooser:
        """What chooses algorithms for it."""

    @property
    def world(self) -> World:
        """What serves its calls."""

    def descent(self) -> Iterator[Recoverable]:
        """Give this one and those of all that came of it."""

    def give_up(self) -> None:
        """Be of no use after a recovery."""

    def refuse_shut(self, operation: str) -> None:
        """Raise `Revoked` once it was closed or given up."""

    def move(
        self,
        plain: MPI.Intracomm,
        topology: Topology,
        seats: tuple[int, ...],
        *,
        world: World | None = None,
        heritage: Mapping[Agreed, str] | None = None,
    ) -> None:
        """Go on as another MPI communicator."""


class Birth(NamedTuple):
    """One communicator that was derived.

    Attributes
    ----------
    child : Recoverable
        The membership of the derived communicator.
    color, key : int
        As for `MPI.Intracomm.Split`; color `MPI.UNDEFINED` if a split would not
        give it again.
    """

    child: Recoverable
    color: int
    key: int


class Lineage:
    """The communicators derived from one, in the order in which its ranks made them.

    A freed one stays as long as any communicator derived from it does.

    Attributes
    ----------
    living : dict of int to Birth
        Number -> communicators that have not been freed and have this rank.
    others : list of Recoverable
        Communicators that their members made without the others; without a number.
    """

    def __init__(self) -> None:
        self._births, self._forsaken = 0, set[int]()
        self.living: dict[int, Birth] = {}
        self.others: list[Recoverable] = []

    def note(self, child: Recoverable | None, color: int, key: int) -> None:
        """Note that one more was made; None where this rank is no member.  Local."""
        if child is not None:
            self.living[self._births] = Birth(child, color, key)
        self._births += 1

    def children(self) -> list[Recoverable]:
        """Give all that have not been freed.  Local."""
        return [*(birth.child for birth in self.living.values()), *self.others]

    def forget(self, child: Any) -> None:
        """Note that a communicator and all derived from it are freed.  Local."""
        self.living = {n: birth for n, birth in self.living.items() if birth.child is not child}
        self.others = [other for other in self.others if other is not child]

    def forsake(self, child: Any) -> None:
        """Note that a communicator is not to be made again.  Local."""
        self._forsaken |= {n for n, birth in self.living.items() if birth.child is child}

    def settle(self) -> None:
        """Note that the ranks go on with the communicators made last.  Local.

        Not before: they are made once more if another rank dies meanwhile.
        """
        self._forsaken.clear()

    def again(self, plain: MPI.Intracomm) -> list[tuple[Recoverable, MPI.Intracomm | None]]:
        """Derive them again from the survivors.

        Collective over ``plain``.  A communicator that only some ranks have is not
        made again: it was under way when the others were told.  Nor is one that any
        rank has forsaken.

        Parameters
        ----------
        plain : MPI.Intracomm
            The ranks of the communicator they came from, as it is now.

        Returns
        -------
        list of (Recoverable, MPI.Intracomm or None)
            Those of this rank, each with its new communicator; None if it has none.
        """
        comms = all_or_none(plain, lambda: self._split(plain))
        made: list[tuple[Recoverable, MPI.Intracomm | None]] = []
        made += [(gone, None) for other in self.others for gone in other.descent()]
        problem: Exception | None = None
        for number, birth in self.living.items():
            if number not in comms:
                made += [(gone, None) for gone in birth.child.descent()]
                continue
            comm = comms[number]
            try:
                made += [(birth.child, comm), *birth.child.lineage.again(comm)]
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
