"""Replicated state: whether it is alike on all ranks, and its repair if not.

All ranks compare one digest.  Where it differs, most members are right.  A
rank that is not right gets the leaves that differ, and no others, from the
nearest rank that is right.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from closeranks.collectives.faults.attempts import words_of
from closeranks.collectives.replicated.leaf_bytes import Leaf, to_bytes
from closeranks.collectives.replicated.leaf_transfer import Expected, Placing, Transfer
from closeranks.collectives.replicated.state_leaves import (
    LeafTable,
    State,
    check,
    leaves,
    rebuilt,
    table,
    unhealthy,
)
from closeranks.collectives.selection.call_options import deadline
from closeranks.errors import Corrupted, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.comms.topology.topology import Topology


class StateReport(NamedTuple):
    """A member's report of its state.

    Attributes
    ----------
    digest : bytes
        Of all of it.
    born : int
        Epoch in which the process became a member.
    counts : bool
        Whether an attempt was agreed in which it had the state of the others:
        newcomers are without at first.
    healthy : bool
        Whether all its numbers are finite.
    problem : UsageError or None
        The reason that it is no state.
    """

    digest: bytes
    born: int
    counts: bool
    healthy: bool
    problem: UsageError | None = None


class Digest(NamedTuple):
    """Result of `Communicator.digest` and `synchronize`, the same on all ranks.

    Attributes
    ----------
    value : str
        Of the state that most members have, hexadecimal.
    differing : tuple of (int, str)
        Rank and path of every leaf that was different from that.
    unhealthy : tuple of (int, str, str)
        Rank and path of every leaf that holds "NaN" or "Inf".
    """

    value: str
    differing: tuple[tuple[int, str], ...]
    unhealthy: tuple[tuple[int, str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.value}: {'alike' if not self.differing else 'not alike'}"]
        lines += [f"rank {rank}: {path or 'the state'} differs" for rank, path in self.differing]
        lines += [f"rank {rank}: {path} holds {what}" for rank, path, what in self.unhealthy]
        return "\n".join(lines)


def majority(state_reports: Sequence[StateReport]) -> tuple[int, ...]:
    """Find the members whose state is right.

    The largest group of members with equal states is right.  If several groups are
    as large, it is the one with the process that has been a member for longest; if
    there are several, the lowest rank's.  Newcomers do not count as long as there
    is another member.  If there are only newcomers, the first ones count.

    Parameters
    ----------
    state_reports : sequence of StateReport
        Of every rank.

    Returns
    -------
    tuple of int
        Ranks, ascending; all with the same digest.
    """
    first = min(state_report.born for state_report in state_reports)
    counting = [state_report for state_report in state_reports if state_report.counts] or [
        state_report for state_report in state_reports if state_report.born == first
    ]
    size = Counter(state_report.digest for state_report in counting)
    order = [
        (-size[one.digest], one.born, rank)
        for rank, one in enumerate(state_reports)
        if size[one.digest]
    ]
    right = state_reports[min(order)[2]].digest
    return tuple(
        rank for rank, state_report in enumerate(state_reports) if state_report.digest == right
    )


def sources(right: Sequence[int], topology: Topology) -> dict[int, int]:
    """Choose the ranks that give the state to ranks with another one.

    Parameters
    ----------
    right : sequence of int
        Ranks that have it.
    topology : Topology
        Where the ranks sit.

    Returns
    -------
    dict of int to int
        Rank that lacks it -> rank that gives it: the nearest, of those the one
        with the least to do.
    """
    busy = dict.fromkeys(right, 0)
    chosen = {}
    for rank in sorted(set(range(topology.size)) - busy.keys()):
        giver = min(right, key=lambda one: (topology.distance(rank, one), busy[one], one))
        busy[giver] += 1
        chosen[rank] = giver
    return chosen


class SynchronizedMember(Protocol):
    """The membership of a communicator whose ranks hold a state alike.

    `closeranks.collectives.communicator.membership.Membership`, a package above,
    is one.
    """

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator."""

    @property
    def family(self) -> Family:
        """The family that it is of."""

    @property
    def topology(self) -> Topology:
        """Where the ranks sit."""

    @property
    def world(self) -> World:
        """What serves its calls."""

    @property
    def state_report(self) -> tuple[int, bool]:
        """Since which epoch this process is a member, and whether its state counts."""

    def note_synchronized(self) -> None:
        """Let the state of this process count once an attempt has been agreed."""


def digest(member: SynchronizedMember, state: State) -> Digest:
    """Compare states, see `Communicator.digest`.  Collective."""
    return _Comparison(member, state).report()


def synchronize(member: SynchronizedMember, state: State) -> State:
    """Make states alike, see `Communicator.synchronize`.  Collective."""
    found = _Comparison(member, state)
    report = found.report()
    newcomers = {
        rank for rank, state_report in enumerate(found.state_reports) if not state_report.counts
    }
    for rank, path in report.differing:
        if rank not in newcomers:
            warnings.warn(f"synchronize: rank {rank} had another {path or 'state'}", stacklevel=3)
    for rank, path, what in report.unhealthy:
        warnings.warn(f"synchronize: rank {rank} holds {what} in {path}", stacklevel=3)
    state = found.exchange()
    member.note_synchronized()
    return state


def agreed(problems: Sequence[UsageError | None], mine: Exception | None) -> None:
    """Raise where any rank has a problem.

    Parameters
    ----------
    problems : sequence of UsageError or None
        Of every rank, see `problem_of`.
    mine : Exception or None
        Of this one, raised as it is; others' as UsageError, with the rank.
    """
    if mine is not None:
        raise mine
    for other, problem in enumerate(problems):
        if problem is not None:
            raise UsageError(problem.operation, f"rank {other}: {problem.problem}", problem.remedy)


def problem_of(error: Exception | None) -> UsageError | None:
    """Write the error of a rank so that all others can read it.  Local."""
    if error is None or isinstance(error, UsageError):
        return error
    return UsageError("synchronize", words_of(error), "see what it met")


class _Comparison:
    """The states of all ranks, compared; collective to make."""

    def __init__(self, member: SynchronizedMember, state: State) -> None:
        self._member, self._comm, self._state = member, member.comm, state
        self._mine = LeafTable(b"", {})
        self._sick: tuple[tuple[str, str], ...] = ()
        problem: Exception | None = None
        try:
            self._mine, self._sick = table(state), unhealthy(state)
        except Exception as error:  # told to the others, which would wait
            problem = error
        state_report = StateReport(
            self._mine.digest, *member.state_report, not self._sick, problem_of(problem)
        )
        self.state_reports: list[StateReport] = self._comm.allgather(state_report)
        agreed([state_report.problem for state_report in self.state_reports], problem)
        self._right = majority(self.state_reports)
        self._sources = sources(self._right, member.topology)
        self._theirs = self._tables() if self._sources else self._mine
        self._unlike = self._mine.unlike(self._theirs)
        self._unmakable: Exception | None = None
        self._unmade: list[UsageError | None] = [None] * self._comm.size

    def _tables(self) -> LeafTable:
        """Give the right table: the own one, or a neighbour's."""
        sent = [(target, self._mine) for target in self._targets]
        with self._transfer(sent, [Expected(giver) for giver in self._givers]) as coming:
            return coming.take() if self._givers else self._mine

    def _transfer(
        self, sent: Iterable[tuple[int, object]], expected: Iterable[Expected]
    ) -> Transfer:
        return Transfer(self._member.world, sent, expected, deadline(self._member.family))

    @property
    def _givers(self) -> list[int]:
        """The rank that gives something to this one, if any does."""
        return [giver for rank, giver in self._sources.items() if rank == self._comm.rank]

    @property
    def _targets(self) -> list[int]:
        """Ranks that get something from this one."""
        return [rank for rank, giver in self._sources.items() if giver == self._comm.rank]

    def report(self) -> Digest:
        """Say what is not as it should be; collective where anything is."""
        value = self.state_reports[self._right[0]].digest.hex()
        if not self._sources and all(state_report.healthy for state_report in self.state_reports):
            return Digest(value, (), ())
        paths = list(self._unlike)
        paths += [path for path in self._mine.entries if path not in self._theirs.entries]
        if self._mine.shape != self._theirs.shape and not paths:
            paths = [""]
        self._unmakable = self._checked()
        told = self._comm.allgather((paths, self._sick, problem_of(self._unmakable)))
        self._unmade = [problem for *_, problem in told]
        return Digest(
            value,
            tuple((rank, path) for rank, (differs, *_) in enumerate(told) for path in differs),
            tuple((rank, *sick) for rank, (_, ill, _) in enumerate(told) for sick in ill),
        )

    def _checked(self) -> Exception | None:
        """Tell why the right pytree cannot be made here, if it cannot."""
        try:
            check(self._state, self._theirs.shape)
        except Exception as error:  # told to the others as above
            return error
        return None

    def exchange(self) -> State:
        """Give the leaves that others lack, or get missing ones; after `report`."""
        agreed(self._unmade, self._unmakable)
        if not self._sources:
            return self._state
        givers, targets = self._givers, self._targets
        with self._transfer([(giver, self._unlike) for giver in givers],
                            [Expected(target) for target in targets]) as coming:  # fmt: skip
            wanted = [(target, coming.take()) for target in targets]
        entries, held = self._theirs.entries, dict(leaves(self._state))
        sent = ((target, to_bytes(held[path])) for target, paths in wanted for path in paths)
        expected = [Expected(giver, entries[path].nbytes)
                    for giver in givers for path in self._unlike]  # fmt: skip
        placing = Placing(held, entries, set(self._unlike))
        with self._transfer(sent, expected) as coming:
            came = {path: placing.put(path, coming.take()) for path in self._unlike}
        return self._made(givers[0], held | came) if givers else self._state

    def _made(self, giver: int, found: Mapping[str, Leaf]) -> State:
        """Put the right leaves in their places."""
        parts = iter([found[path] for path in self._theirs.entries])
        new = rebuilt(self._state, self._theirs.shape, parts)
        expected, came = self._theirs.digest.hex(), table(new).digest.hex()
        if came != expected:
            raise Corrupted("synchronize", rank=giver, offset=0, expected=expected, found=came)
        return new
