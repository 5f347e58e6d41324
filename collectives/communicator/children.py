"""Communicators made from one of ours are ours too: how they are made.

What is wrong with arguments is found on each rank alone, and told to all ranks
before they make a communicator together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.collectives.dispatch.call_errors import careful_of
from closeranks.collectives.engine.error_translation import explaining
from closeranks.collectives.engine.init_state import alike
from closeranks.collectives.selection.findings import TrialFindings
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms import argument
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.errors import Error, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.communicator.membership import Membership
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.comms.topology.topology import Topology

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: What is wrong, and the way out.
Problem = tuple[str, str]
_REMEDY: Final = "give what the method of MPI.Intracomm takes"
#: What a C int holds.
_MOST: Final = 2**31


def number(name: str, value: Any, least: int = -_MOST) -> Problem | None:
    """Say what keeps a value from being a C int, or None."""
    try:
        argument.whole("", name, value, least=least, below=_MOST)
    except UsageError as wrong:
        return wrong.problem, wrong.remedy
    return None


def color_of(value: Any) -> Problem | None:
    """Say what keeps a value from being a color, or None."""
    if isinstance(value, int) and value == MPI.UNDEFINED:
        return None
    problem = number("color", value, 0)
    return problem and (problem[0], f"{problem[1]}, or MPI.UNDEFINED")


def subgroup(value: Any) -> Problem | None:
    """Say what keeps a value from being a group, or None."""
    if isinstance(value, MPI.Group) and value != MPI.GROUP_NULL:
        return None
    return f"group is {argument.shown(value)}", "give an MPI.Group, such as Get_group().Incl(ranks)"


def hints(value: Any) -> Problem | None:
    """Say what keeps a value from being hints, or None."""
    if value is None or isinstance(value, MPI.Info):
        return None
    return f"info is {argument.shown(value)}", "give an MPI.Info, or none"


@contextmanager
def refusing(method: str) -> Iterator[None]:
    """Turn what mpi4py, not the library, says of arguments into `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as wrong:
        raise UsageError(method, f"{type(wrong).__name__}: {wrong}", _REMEDY) from wrong


def heard_if_left(
    make: Callable[Concatenate[Children, _P], _T],
) -> Callable[Concatenate[Children, _P], _T]:
    """Tell all ranks if an exception of a signal handler leaves a constructor.

    The others would wait in it for this rank, or have what this rank has not.
    """

    @wraps(make)
    def made(self: Children, *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return make(self, *arguments, **named)
        except (Error, MPI.Exception, *UNREADABLE):
            raise
        except BaseException as error:
            self.leave(error)
            raise

    return made  # type: ignore[return-value]


class Children:
    """The communicators that are made from one.

    All methods are collective, as in MPI, and say so on all ranks if one of them
    cannot use its arguments.

    Parameters
    ----------
    handle : Communicator
        By which they are made; they become objects of its class.
    membership : Membership
        Its members.
    """

    def __init__(self, handle: Communicator, membership: Membership) -> None:
        self._handle, self._membership = handle, membership
        self._service, self._family = membership.service, membership.family

    def alias(self) -> MPI.Intracomm:
        """See the parent as mpi4py's own class, if anything may be made from it."""
        self._service.guard.refuse("derive")
        self._family.world.check("derive")
        return self._service.plain

    def leave(self, error: BaseException) -> None:
        """Give the family up, and tell all ranks.  Local."""
        self._family.notices.leave(error)
        self._family.world.revoke()

    def _asked(self, method: str, problem: Problem | None) -> MPI.Intracomm:
        """Refuse on all ranks what cannot be had on one; else give what `alias` does."""
        alias, careful = self.alias(), self._service.careful
        with explaining(method, alias, self._family.world):
            mine = 0.0 if problem is None else 1.0 + careful.rank
            refusing_rank = int(native_handover.agreed_max(careful, [mine])[0]) - 1
            told = careful.bcast(problem, refusing_rank) if refusing_rank >= 0 else None
        if problem is not None:
            raise UsageError(method, *problem)
        if told is not None:
            raise UsageError(method, f"rank {refusing_rank}: {told[0]}", told[1])
        return alias

    def _gathered(self) -> MPI.Intracomm:
        """Give what `alias` does, when all ranks have come: so nobody waits for ever."""
        plain = self.alias()
        if not ulfm.is_on():  # there the library ends who waits for one that does not come
            with explaining("derive", plain, self._family.world):
                self._service.careful.Barrier()
        return plain

    def _derive(
        self,
        made: MPI.Comm,
        color: int | None = MPI.UNDEFINED,
        key: int = 0,
        *,
        counts: bool = True,
    ) -> Communicator:
        """Take a communicator of some of the parent's ranks into the family.

        With a color, or None for one of its ranks' own, it is made again after a
        recovery.  It counts if all ranks have made one.
        """
        lineage = self._membership.lineage
        if made == MPI.COMM_NULL:
            if counts:
                lineage.note(None, MPI.UNDEFINED, 0)
            return MPI.Intracomm(made)  # type: ignore[return-value]
        plain = MPI.Intracomm(made)
        ranks = tuple(ranks_in(plain, self._service.plain))
        topology = self._membership.topology_of(ranks)
        seats = tuple(self._membership.seats[rank] for rank in ranks)
        child = type(self._handle).adopt(
            plain,
            self._family,
            topology,
            chooser=self._chooser_on(topology, plain),
            seats=seats,
            parent=self._membership,
        )
        if counts:
            lineage.note(child.membership, min(ranks) if color is None else color, key)
        else:
            lineage.others.append(child.membership)
        if self._family.timeout_s is not None:
            child.membership.world.arm()
        return self._family.world.own(child)

    def _chooser_on(self, topology: Topology, plain: MPI.Intracomm) -> Chooser:
        """Choose algorithms as the parent does, for ranks that may sit elsewhere.

        Collective over ``plain``, the child.
        """
        was = self._service.chooser
        found = self._agreed_findings(topology, plain)
        pricing = was.pricing.copy() if topology == was.topology else None
        return alike(
            was.numbers, shape(was.topology), topology,
            findings=found, pricing=pricing, is_open=False,
        )  # fmt: skip

    def _agreed_findings(self, topology: Topology, plain: MPI.Intracomm) -> TrialFindings | None:
        """Agree on what was found where ranks sit so; each knows its own communicators.

        Collective over ``plain``.  They are equal if those have done the same so far.
        """
        family = self._family
        if plain.size == 1 or not self._service.chooser.trials:
            return None
        known = family.findings.setdefault(shape(topology), TrialFindings())
        careful, digest = careful_of(plain, family), float(known.digest())
        with explaining("derive", plain, family.world):
            most, least = native_handover.agreed_max(careful, [digest, -digest])
            if most != -least:
                known.take(careful.bcast(known))
        return known

    def met(self, made: Communicator) -> Communicator:
        """Give what all have made: who has it revokes it, and some may have failed."""
        if not ulfm.is_on():
            return made
        try:
            self.alias().Barrier()
        except Exception:
            if made != MPI.COMM_NULL:
                made.membership.forsake(made)  # nobody gets it
            raise
        return made

    @heard_if_left
    def clone(self) -> Communicator:
        """Duplicate it with attributes and hints, see `MPI.Comm.Clone`."""
        return self.met(self._derive(self._gathered().Clone(), 0, self._service.rank))

    @heard_if_left
    def duplicate(self, info: MPI.Info | None) -> Communicator:
        """Duplicate it, see `MPI.Comm.Dup`."""
        alias = self._asked("Dup", hints(info))
        return self.met(self._derive(alias.Dup(info), 0, self._service.rank))

    @heard_if_left
    def duplicate_with_info(self, info: MPI.Info) -> Communicator:
        """Duplicate it with hints, see `MPI.Comm.Dup_with_info`."""
        alias = self._asked("Dup_with_info", hints(info))
        return self.met(self._derive(alias.Dup_with_info(info), 0, self._service.rank))

    @heard_if_left
    def of_group(self, group: MPI.Group) -> Communicator:
        """Make one of a group, called by all, see `MPI.Intracomm.Create`."""
        return self.met(self._derive(self._asked("Create", subgroup(group)).Create(group)))

    @heard_if_left
    def of_callers(self, group: MPI.Group, tag: int) -> Communicator:
        """Make one of a group, called by its members, see `MPI.Intracomm.Create_group`."""
        if problem := subgroup(group) or number("tag", tag, 0):
            raise UsageError("Create_group", *problem)
        plain = self.alias()
        with self._family.notices.inside:
            made = plain.Create_group(group, tag)
        return self._derive(made, counts=False)

    @heard_if_left
    def split(self, color: int, key: int) -> Communicator:
        """Make one of all ranks with the same color, see `MPI.Comm.Split`."""
        alias = self._asked("Split", color_of(color) or number("key", key))
        return self.met(self._derive(alias.Split(color, key), color, key))

    @heard_if_left
    def split_type(self, split_type: int, key: int, info: MPI.Info) -> Communicator:
        """Make one of ranks that share something, see `MPI.Comm.Split_type`."""
        problem = number("split_type", split_type) or number("key", key) or hints(info)
        alias = self._asked("Split_type", problem)
        # Who stays out says so by MPI.UNDEFINED, which is below all types.
        if native_handover.agreed_max(alias, [float(split_type)]) == [float(MPI.COMM_TYPE_SHARED)]:
            node = split_by_node(alias, key, enters=split_type != MPI.UNDEFINED)
            return self.met(self._derive(node, None, key))
        with refusing("Split_type"):
            made = alias.Split_type(split_type, key, info)
        return self.met(self._derive(made, None, key))

    def start_plain(self) -> tuple[MPI.Intracomm, MPI.Request]:
        """Start a duplicate that is mpi4py's own, see `Deriving.start_plain`."""
        return self._membership.followed.started(self.alias(), lambda alias: MPI.Comm.Idup(alias))

    def start_duplicate(
        self, start: Callable[[Communicator], tuple[Communicator, MPI.Request]]
    ) -> tuple[Communicator, MPI.Request]:
        """Start to make a communicator that joins the family at its first use."""
        self.alias()
        parent, family, era = self._membership, self._family, self._family.world
        was, seats, topology = self._service.chooser, parent.seats, parent.topology
        numbers, sat = was.numbers, shape(was.topology)  # of now: ranks come at unlike calls
        made, request = start(self._handle)
        parent.followed.follow(made, request)

        def come() -> None:
            if request != MPI.REQUEST_NULL and not request.Get_status():
                raise UsageError("Idup", "the duplicate is not there yet", "wait for its request")
            chooser = alike(numbers, sat, topology, is_open=False)
            type(self._handle).adopt(
                MPI.Intracomm(made), family, topology,
                chooser=chooser, seats=seats, parent=parent, into=made,
            )  # fmt: skip
            if family.world is era:
                parent.lineage.others.append(made.membership)
                era.own(made)
            else:
                made.membership.service.shut("it was made before a recovery")

        made.adopt_later(come)
        return made, request

    @heard_if_left
    def shaped(self, method: str, *arguments: Any) -> Any:
        """Make a communicator with a topology, which is mpi4py's own."""
        plain = self._gathered()
        with refusing(method):
            make = partial(getattr(plain, method), *arguments)
            return self._membership.followed.made(make, plain.Barrier)

    @heard_if_left
    def between(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int
    ) -> MPI.Intercomm:
        """Make one with other ranks, see `MPI.Intracomm.Create_intercomm`."""
        plain, followed = self.alias(), self._membership.followed
        with self._family.notices.inside:
            return followed.between(plain, local_leader, peer_comm, remote_leader, tag)
