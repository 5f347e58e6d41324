"""A program whose ranks leave attempts in every way there is.

    closeranks run --faults -n 4 -- leave.py CASE ...

Each survivor prints what it met, in one line; of several cases each has its name in it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.faults.attempts import Attempt

WATCHDOG_S = 50


def total(comm: cr.Communicator, part: int = 1) -> int:
    """Sum over the members."""
    given, taken = np.full(100, part, np.int64), np.zeros(100, np.int64)
    comm.Allreduce(given, taken)
    assert (taken == taken[0]).all()
    return int(taken[0])


def for_ever(comm: cr.Communicator) -> None:
    """Sum until that fails."""
    while True:
        total(comm)


def die(comm: cr.Communicator, *seats: int) -> None:
    """End these, once the others have ended the call before."""
    if comm.seat in seats:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)


def an_error(comm: cr.Communicator) -> object:
    """One rank meets an error of its own; the others are told which."""
    for attempt in comm.attempts():
        with attempt:
            total(comm)
            if comm.seat == 1:
                raise RuntimeError("no more coffee")
            total(comm)
    return "nothing"


class LastWordsError(RuntimeError):
    """Nobody hears what it says."""

    def __repr__(self) -> str:
        """End the process that was about to tell the others."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def an_error_untold(comm: cr.Communicator) -> object:
    """One rank votes to end it all, and dies before it can say why."""
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
            if comm.seat == 1 and not comm.joined:
                raise LastWordsError
            total(comm)
    return found, attempt.number


def a_named_break(comm: cr.Communicator) -> object:
    """So it is where the loop has a name, which keeps it."""
    loop = comm.attempts()
    return a_break(comm, loop)


def a_break(comm: cr.Communicator, loop: Iterator[Attempt] | None = None) -> object:
    """Leaving a failed attempt by break repeats nothing, and nobody can miss it."""
    for attempt in loop or comm.attempts():
        with attempt:
            total(comm)
            die(comm, 2)
            break
    assert attempt.agreed is False
    with pytest.raises(cr.Revoked, match="was left, not repeated"):
        total(comm)
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
            break
    assert attempt.agreed
    assert attempt.number == 1
    return found


def a_break_alone(comm: cr.Communicator) -> object:
    """Who leaves a failed attempt that others repeat is told so by the next loop."""
    for attempt in comm.attempts():
        with attempt:
            total(comm)
            die(comm, 2)
            if comm.seat == 0:
                break
    found = []
    for attempt in comm.attempts():
        with attempt:
            found = [total(comm, 1 << comm.seat), attempt.number]
    return found


def _using(comm: cr.Communicator) -> None:
    with comm.using(timeout_s=9):
        pass


def a_break_and_a_call(comm: cr.Communicator) -> object:
    """No call that the ranks make together goes on from a failed attempt that was left."""
    calls: list[Callable[[cr.Communicator], object]] = [
        lambda comm: comm.Split(0, 0), lambda comm: comm.Create_cart([comm.size]),
        lambda comm: comm.empty(3), _using, lambda comm: comm.close()]  # fmt: skip
    told = 0
    for call in calls:
        for attempt in comm.attempts():
            with attempt:
                total(comm)
                if attempt.number == 1:
                    if comm.seat == 1:
                        raise cr.Revoked("an attempt on purpose")
                    break
        if comm.seat != 1:
            with pytest.raises(cr.Revoked, match="was left, not repeated"):
                call(comm)
            told += 1
            for attempt in comm.attempts():
                with attempt:
                    total(comm)
    return told


def a_break_at_the_end(comm: cr.Communicator) -> object:
    """Who leaves a failed attempt, and then the communicator, is dead to the others."""
    with comm:
        for attempt in comm.attempts():
            with attempt:
                found = total(comm, 1 << comm.seat)
                die(comm, 2)
                if comm.seat == 0:
                    break
    return found, attempt.number


def no_use(comm: cr.Communicator) -> object:
    """What no recovery brings back ends the loop, on all ranks."""
    taken = np.zeros(comm.size)
    gathered, group = comm.Allgather_init(np.ones(1), taken), comm.Get_group()
    calls: list[Callable[[], object]] = [gathered.start, partial(total, comm.Create(group))]
    met: list[tuple[int, str]] = []
    for number, call in enumerate(calls):
        try:
            for attempt in comm.attempts(limit=9):
                with attempt:
                    die(comm, number + 1)
                    call()
        except cr.PeerError as error:
            met.append((attempt.number, "revoked" if "new one" in str(error) else str(error)))
    with pytest.raises(cr.PeerError, match="close"):
        comm.close()
    for attempt in comm.attempts():
        with attempt:
            met.append((attempt.number, str(total(comm))))
    return met


def beside_starts(comm: cr.Communicator) -> object:
    """Agreements stay true while a thread listens for starts of mpi4py."""
    taken = np.zeros(comm.size)
    gathered = comm.Allgather_init(np.ones(1), taken)
    for _ in range(1200):
        for attempt in comm.attempts():
            with attempt:
                pass
        assert attempt.number == 1
    gathered.start()
    gathered.wait()
    return taken.sum()


def fruitless(comm: cr.Communicator) -> object:
    """Whoever uses what was revoked in every attempt is told at last."""
    ring, attempt = comm.Create_cart([comm.size], [True]), None
    for attempt in comm.attempts():
        with attempt:
            die(comm, 2)
            ring.Barrier()
    return attempt and attempt.number


def a_limit(comm: cr.Communicator) -> object:
    """The last attempt's error is the end."""
    for attempt in comm.attempts(limit=2):
        with attempt:
            die(comm, attempt.number)
            total(comm)
    return "nothing"


def a_limit_of_caught_errors(comm: cr.Communicator) -> object:
    """Where nobody is lost the end names nobody."""
    for attempt in comm.attempts(limit=2):
        with attempt, suppress(cr.PeerError), comm.using(timeout_s=0.3):
            if comm.seat == 1:
                time.sleep(1.5)
            total(comm)
    return "nothing"


def too_few(comm: cr.Communicator) -> object:
    """Who is left may say that they are too few."""
    for attempt in comm.attempts(min_ranks=3):
        with attempt:
            die(comm, 1, 2)  # who is late comes here in the second attempt
            total(comm)
    return "nothing"


def nested(comm: cr.Communicator) -> object:
    """An attempt inside of another one is refused, on all ranks."""
    for attempt in comm.attempts():
        with attempt:
            for inner in comm.attempts():
                with inner:
                    total(comm)
    return "nothing"


def unfinished(comm: cr.Communicator) -> object:
    """A request that nobody waits for is refused."""
    given, taken = np.ones(1 << 20), np.zeros(1 << 20)
    for attempt in comm.attempts():
        with attempt:
            if comm.seat == 0:
                comm.Iallreduce(given, taken)  # the others do not
    return "nothing"


def before_the_loop(comm: cr.Communicator) -> object:
    """What was met before the loop is recovered from when it begins."""
    die(comm, 3)
    with pytest.raises(cr.PeerLost, match="rank 3 lost"):
        for_ever(comm)
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
    return found, attempt.lost, attempt.number


def a_late_start(comm: cr.Communicator) -> object:
    """Who has not begun when the first attempt fails has missed it."""
    met: list[tuple[object, ...]] = []
    for limit in (None, 1):
        if comm.seat == 3:
            time.sleep(1)  # both others have given up before
        try:
            for attempt in comm.attempts(limit):
                with attempt:
                    if attempt.number == 1:
                        die(comm, 1 if limit else 2)
                    met.append((total(comm), attempt.number, attempt.lost))
        except cr.PeerLost as error:
            met.append((error.operation, error.seats))
    return met


def messages(comm: cr.Communicator) -> object:
    """Errors of plain messages are a reason to repeat too."""
    found = np.zeros(1)
    for attempt in comm.attempts():
        with attempt:
            if attempt.number == 1:
                die(comm, 2)
                comm.Recv(found, source=(comm.rank + 1) % comm.size, tag=attempt.number)
            found[0] = comm.allreduce(1)
    return int(found[0])


def many_messages(comm: cr.Communicator) -> object:
    """Requests that are waited for together say of none what it has met."""
    ways: list[Callable[[list[MPI.Request]], object]] = [
        MPI.Request.Waitall, MPI.Request.Waitsome, MPI.Request.waitall]  # fmt: skip
    numbers = []
    for way in ways:
        for attempt in comm.attempts():
            with attempt:
                total(comm)
                if attempt.number == 1:
                    if comm.seat == 1:
                        raise cr.Revoked("an attempt on purpose")
                    way([comm.Irecv(np.zeros(1), source=1, tag=tag) for tag in (8, 9)])
        numbers.append(attempt.number)
    return numbers


def an_error_of_one(comm: cr.Communicator) -> object:
    """So the others are told what has ended it, not what they have met for it."""
    for attempt in comm.attempts():
        with attempt:
            if comm.seat == 1:
                raise RuntimeError("no more coffee")
            MPI.Request.Waitall([comm.Irecv(np.zeros(1), source=1, tag=tag) for tag in (8, 9)])
    return "nothing"


def kept_quiet(comm: cr.Communicator) -> object:
    """What all members have met, and caught, is no end that they can agree on."""
    for attempt in comm.attempts():
        with attempt, suppress(cr.PeerLate), comm.using(timeout_s=0.3):
            if comm.seat == 1 and attempt.number == 1:
                time.sleep(1.5)
            found = total(comm)
    return found, attempt.number > 1


def children(comm: cr.Communicator) -> object:
    """Splits are made again, of those who are left; what came of a group is not."""
    halves, pairs = comm.Split(comm.rank % 2, -comm.rank), comm.Split(comm.rank // 2, comm.rank)
    inner = halves.Dup()
    group = comm.Get_group()
    lone = comm.Create(group)
    group.Free()
    comm.Split(0, 0).Free()
    for attempt in comm.attempts():
        with attempt:
            die(comm, 2)
            found = [total(one, 1 << comm.seat) for one in (comm, halves, pairs, inner)]
    assert [one.size for one in (halves, pairs, inner)] == [f.bit_count() for f in found[1:]]
    with pytest.raises(cr.Revoked, match="not made again"):
        total(lone)
    assert comm.seat == 0 or halves.alive[halves.rank] in (1, 3)
    later = comm.Split(0, 0)
    found.append(total(later, 1 << comm.seat))
    return found


def first_call_of_a_child(comm: cr.Communicator) -> object:
    """Whoever opens a child meanwhile comes to the vote, too."""
    child = comm.Dup()
    for attempt in comm.attempts():
        with attempt:
            if attempt.number == 1 and comm.seat == 1:
                raise cr.PeerLate("mine", waited_s=1, limit_s=1)
            found = total(child)
    return found, attempt.number


def ring(comm: cr.Communicator) -> MPI.Cartcomm:
    """Arrange the members in a ring; whoever is left without neighbours has none."""
    return comm.Create_cart([comm.size], [True])


def topologies(comm: cr.Communicator) -> object:
    """Who waits in a topology for ranks that live and vote is told; it is made again."""
    comm.Create_cart([2]).Free() if comm.rank < 2 else comm.Create_cart([2])
    cart, epoch = ring(comm), comm.epoch
    part = cart.Sub([True])
    for attempt in comm.attempts():
        with attempt:
            if comm.epoch != epoch:
                for gone in (cart, part):
                    with pytest.raises(MPI.Exception) as caught:
                        gone.Barrier()
                    assert caught.value.Get_error_class() == MPI.ERR_REVOKED
                cart, epoch = ring(comm), comm.epoch
            die(comm, 2)
            found = []
            for step in (1, -1) * 3:
                source, target = cart.Shift(0, step)
                found.append(cart.sendrecv(comm.seat, dest=target, source=source))
    assert comm.Create_cart([1]) != MPI.COMM_NULL or comm.rank
    return found[:2]


def _graph(comm: cr.Communicator) -> MPI.Graphcomm:
    return comm.Create_graph([2, 4, 6, 8], [1, 3, 0, 2, 1, 3, 2, 0])


def _inter(comm: cr.Communicator) -> MPI.Intercomm:
    second = comm.rank // 2
    return comm.Split(second, comm.rank).Create_intercomm(0, comm, 0 if second else 2, tag=3)


def plain_side(comm: cr.Communicator) -> object:
    """The other side of an intercommunicator may be no such program."""
    side, half = comm.rank // 2, comm.Split(comm.rank // 2, comm.rank)
    ours = MPI.Intracomm(half) if side else half
    inter = ours.Create_intercomm(0, MPI.COMM_WORLD, 0 if side else 2, tag=5)
    return inter.Merge(high=bool(side)).allreduce(1)


def _whole(made: tuple[MPI.Comm, MPI.Request]) -> MPI.Comm:
    made[1].Wait()
    return made[0]


def _freed(comm: cr.Communicator) -> MPI.Comm:
    for _ in range(5):
        ring(comm).Free()
    gone, stays = ring(comm), ring(comm)
    if comm.rank % 2:
        gone.Free()
    return stays


def _unmade(comm: cr.Communicator) -> MPI.Comm:
    """One rank fails when the library has made it, and has nothing to revoke."""
    if comm.seat == 1:
        MPI.Intracomm(comm).Create_cart([4])
        raise cr.Revoked("what others have made on purpose")
    return ring(comm)


#: Ways to a communicator whose rank 1 is seat 1, or 3 where there are two groups.
WAYS: dict[str, Callable[[cr.Communicator], MPI.Comm]] = {
    "cart": ring,
    "cart.Sub": lambda comm: ring(comm).Sub([True]),
    "cart.Dup": lambda comm: ring(comm).Dup(),
    "cart.Clone.Sub": lambda comm: ring(comm).Clone().Sub([True]),
    "cart.Split": lambda comm: ring(comm).Split(0, comm.rank),
    "cart.Idup": lambda comm: _whole(ring(comm).Idup()),
    "cart.Create_group": lambda comm: ring(comm).Create_group(comm.Get_group()),
    "graph": _graph,
    "graph.Create_cart": lambda comm: _graph(comm).Create_cart([4]),
    "adjacent": lambda comm: comm.Create_dist_graph_adjacent(
        [(comm.rank + 1) % 4], [(comm.rank - 1) % 4]
    ),
    "dist": lambda comm: comm.Create_dist_graph([comm.rank], [1], [(comm.rank + 1) % 4]),
    "inter": _inter,
    "inter.Dup": lambda comm: _inter(comm).Dup(),
    "inter.Merge": lambda comm: _inter(comm).Merge(comm.rank > 1),
    "Idup": lambda comm: _whole(comm.Idup()),
    "Idup.Dup": lambda comm: _whole(comm.Idup()).Dup(),
    "Idup_with_info": lambda comm: _whole(comm.Idup_with_info(MPI.INFO_NULL)),
    "child": lambda comm: comm.Dup().Create_cart([4]),
    "freed": _freed,
    "unmade": _unmade,
}


def ways(comm: cr.Communicator) -> object:
    """Whatever the way to it, a communicator is revoked when the others repeat."""
    told = 0
    for way, make in WAYS.items():
        print(f"way {way}", file=sys.stderr) if comm.rank == 0 else None  # noqa: T201
        for attempt in comm.attempts():
            with attempt:
                if attempt.number > 1:
                    continue
                try:
                    made = make(comm)
                    if comm.seat and make is not _unmade:
                        raise cr.Revoked("an attempt on purpose")
                    made.recv(source=1)
                except (MPI.Exception, cr.Revoked):
                    told += 1  # of other errors the loop would end
                    raise
    return f"told {told} of {len(WAYS)}" if comm.seat == 0 else comm.size


CASES: dict[str, Callable[[cr.Communicator], object]] = {
    case.__name__: case
    for case in (an_error, an_error_untold, a_break, a_named_break, a_break_alone,
                 a_break_and_a_call, a_break_at_the_end, no_use, beside_starts, a_limit,
                 a_limit_of_caught_errors, too_few, nested, unfinished, before_the_loop,
                 a_late_start, messages, many_messages, an_error_of_one, kept_quiet,
                 children, first_call_of_a_child, topologies,
                 ways, fruitless, plain_side)
}  # fmt: skip


def run(case: str) -> tuple[int, object]:
    """Run one case; gives the seat, and what came of it."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="replace" if "CLOSERANKS_SPARES" in os.environ else "shrink")
    seat = comm.seat
    try:
        said = CASES[case](comm)
    except (cr.Error, RuntimeError) as error:
        comm.abandon()
        said = f"{type(error).__name__} {error}"
    else:
        comm.close()
    return seat, said


def main() -> None:
    """Run the cases one after the other, and say what came of each."""
    for case in sys.argv[1:]:
        seat, said = run(case)
        name = f"{case}, " if len(sys.argv) > 2 else ""
        print(f"{name}seat {seat}: {said}", flush=True)  # noqa: T201 - what the test reads


main()
