"""A program that ends in every way there is: ``votes.py CASE``.

Its ranks say in one line each what they have met, as far as they live.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.faults import recovery
from closeranks.comms.exit import exit_report

WATCHDOG_S = 50


def total(comm: cr.Communicator) -> int:
    """Sum over the members, as often as it takes."""
    found = np.zeros(100, np.int64)
    for attempt in comm.attempts():
        with attempt:
            comm.Allreduce(np.ones(100, np.int64), found)
    return int(found[0])


def die() -> None:
    """End this rank, once the others have ended the call before."""
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def well() -> None:
    """All end well."""
    with cr.init(on_failure="shrink") as comm:
        say(comm, total(comm))


def survivors() -> None:
    """One is killed, the others go on."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        if comm.seat == 0:
            die()
        while total(comm) == comm.size == 3:
            pass
        say(comm, comm.size)


def one_leaves() -> None:
    """One leaves by an error of its own, the others go on."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        if comm.seat == 1:
            say(comm, "leaves")
            raise RuntimeError("no more coffee")
        while comm.size == 3:
            total(comm)
        say(comm, comm.size)


def all_leave() -> None:
    """One has an error in an attempt, which ends all."""
    with cr.init(on_failure="shrink") as comm:
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 1:
                    raise RuntimeError("no more coffee")
                comm.allreduce(1)


def all_killed() -> None:
    """Nobody is left."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        die()


def exits(status: int = 4, on_failure: str = "shrink") -> None:
    """All exit inside of the block."""
    with cr.init(on_failure=on_failure) as comm:
        total(comm)
        sys.exit(status)


def exits_with_spares() -> None:
    """All do, while spares wait."""
    exits(on_failure="replace")


def exits_well_with_spares() -> None:
    """All do, and nothing was wrong."""
    exits(0, on_failure="replace")


def exits_later() -> None:
    """One exits after the block."""
    with cr.init(on_failure="shrink") as comm:
        seat = comm.seat
        total(comm)
    sys.exit(5 if seat == 2 else 0)


def ends_below_zero() -> None:
    """All exit after the block, with a status that is 255 to the system."""
    well()
    sys.exit(-1)


def dies_later() -> None:
    """One is killed after the block, with what it had still to do."""
    with cr.init(on_failure="shrink") as comm:
        seat = comm.seat
        total(comm)
    if seat == 0:
        die()


def dies_before_close() -> None:
    """One is killed at the end of the block, while a spare waits."""
    with cr.init(on_failure="replace") as comm:
        total(comm)
        if comm.seat == 0:
            die()


def saves_and_leaves() -> None:
    """One is killed, the others make do with what they have, and a spare waits."""
    comm = cr.init(on_failure="replace")
    total(comm)
    if comm.seat == 0:
        die()
    try:
        while True:
            comm.allreduce(1)
    except cr.PeerLost:
        say(comm, "saved")


def first_dies_in_close() -> None:
    """The first is killed as soon as all have met in `close`, while a spare waits."""
    with cr.init(on_failure="replace") as comm:
        total(comm)
        if comm.seat == 0:
            vars(exit_report)["note_closed_family"] = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        say(comm, "closes")


def opens_more() -> None:
    """One is killed in the second block; the others go on."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
    survivors()


def times_out() -> None:
    """One never comes to the recovery."""
    with cr.init(on_failure="shrink", recovery_timeout_s=2) as comm:
        total(comm)
        if comm.seat == 0:
            die()
        if comm.seat == 1:
            vars(recovery)["together"] = lambda *_: time.sleep(WATCHDOG_S)
        while comm.size == 3:
            total(comm)


def has_bad_input() -> None:
    """One meets bad input in the recovery, alone."""

    def refused(*_: object, **__: object) -> None:
        raise cr.UsageError("node", "no more coffee", "make some")

    with cr.init(on_failure="shrink", recovery_timeout_s=3) as comm:
        total(comm)
        if comm.seat == 0:
            die()
        if comm.seat == 1:
            vars(recovery)["ranks_in"] = refused
        while comm.size == 3:
            total(comm)


def aborts() -> None:
    """One aborts; the others wait for it in a collective."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        if comm.seat == 1:
            say(comm, "aborts")
            comm.Abort(9)
        total(comm)
        say(comm, "went on")


def one_exits_at_once(status: int = 3, *, spares: int = 0) -> None:
    """One ends without a word, the others go on."""
    with cr.init(spares=spares, on_failure="replace" if spares else "shrink") as comm:
        total(comm)
        if comm.seat == 1 and not comm.epoch:
            os._exit(status)
        while comm.epoch == 0:
            total(comm)
        say(comm, total(comm))


def takes_its_seat() -> None:
    """Another one takes its seat, and a spare waits to the end."""
    one_exits_at_once(spares=2)


def all_exit_at_once() -> None:
    """Nobody is left."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        os._exit(3)


def survivors_exit() -> None:
    """One of the others fails later, with a status of its own."""
    one_exits_at_once()
    sys.exit(5 if MPI.COMM_WORLD.rank == 3 else 0)


def survivors_of_a_kill_exit() -> None:
    """One is killed; one of the others fails later, with a status of its own."""
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        if comm.seat == 1 and not comm.epoch:
            die()
        while comm.epoch == 0:
            total(comm)
        say(comm, total(comm))
    sys.exit(5 if MPI.COMM_WORLD.rank == 3 else 0)


def one_more_exits_later() -> None:
    """One of the others ends without a word when all have closed."""
    one_exits_at_once()
    if MPI.COMM_WORLD.rank == 3:
        os._exit(4)


def exits_last() -> None:
    """One ends without a word when all have closed."""
    with cr.init(on_failure="shrink") as comm:
        seat = comm.seat
        total(comm)
    if seat == 3:
        time.sleep(1)
        os._exit(3)


def nobody_recovers() -> None:
    """One ends without a word, and the others make do with what they have."""
    comm = cr.init(on_failure="shrink")
    total(comm)
    if comm.seat == 1:
        os._exit(3)
    try:
        while True:
            comm.allreduce(1)
    except cr.PeerLost:
        say(comm, "lost")


def exits_first() -> None:
    """One exits before it opens anything; the others go on without another one, too."""
    rank = MPI.COMM_WORLD.rank
    own = part(int(rank == 1))
    if rank == 1:
        time.sleep(1)
        os._exit(3)
    with cr.init(own, on_failure="shrink") as comm:
        total(comm)
        if rank == 2:
            die()
        while comm.epoch == 0:
            total(comm)
        say(comm, total(comm))


def part(color: int) -> MPI.Intracomm:
    """Give the ranks of one group."""
    made = MPI.COMM_WORLD.Split(color, MPI.COMM_WORLD.rank)
    assert isinstance(made, MPI.Intracomm)
    return made


def of_groups(fails: int, how: Callable[[], None]) -> None:
    """Two groups: one loses a rank and goes on, all of the other fail."""
    rank = MPI.COMM_WORLD.rank
    with cr.init(part(rank // 2), on_failure="shrink") as comm:
        total(comm)
        if rank // 2 == fails:
            time.sleep(1)
            how()
        elif comm.seat == 1:
            die()
        while comm.size == 2:
            total(comm)
        say(comm, comm.size)


def gives_up() -> None:
    """What a rank of a group that fails does."""
    raise RuntimeError("no more coffee")


def group_fails() -> None:
    """The second group fails, the first goes on."""
    of_groups(1, gives_up)


def first_group_fails() -> None:
    """The other way round."""
    of_groups(0, gives_up)


def group_killed() -> None:
    """Nobody of the second group is left, the first goes on."""
    of_groups(1, lambda: os.kill(os.getpid(), signal.SIGKILL))


def groups_well() -> None:
    """Both lose a rank and go on."""
    of_groups(2, gives_up)


def newcomer_ends_well() -> None:
    """Of the second group a spare is left at last."""
    rank = MPI.COMM_WORLD.rank
    own = part(int(rank > 0))
    with cr.init(own, spares=int(rank > 0), on_failure="replace") as comm:
        while rank and comm.epoch < 2:
            total(comm)
            if comm.epoch == comm.seat and not comm.joined:
                die()
        say(comm, comm.epoch)


def node_lost(first: int = 2) -> None:
    """All who were in a communicator of their own are killed; those of the whole go on."""
    rank = MPI.COMM_WORLD.rank
    node = cr.init(part(rank // 2), on_failure="shrink")
    total(node)
    with cr.init(on_failure="shrink") as comm:
        total(comm)
        if rank // 2 == first // 2:
            die()
        while comm.size > 2:
            total(comm)
        say(comm, comm.size)


def first_node_lost() -> None:
    """Those are the first."""
    node_lost(0)


def say(comm: cr.Communicator, what: object) -> None:
    """Print a line; the test reads it."""
    sys.stdout.write(f"seat {comm.seat}: {what}\n")
    sys.stdout.flush()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (well, survivors, one_leaves, all_leave, all_killed, exits, exits_with_spares,
                 exits_well_with_spares, exits_later, ends_below_zero, dies_later,
                 dies_before_close, saves_and_leaves, first_dies_in_close, opens_more,
                 times_out, has_bad_input, aborts, group_fails, first_group_fails, group_killed,
                 groups_well, newcomer_ends_well, node_lost, first_node_lost, one_exits_at_once,
                 takes_its_seat, all_exit_at_once, survivors_exit, survivors_of_a_kill_exit,
                 one_more_exits_later, exits_last, nobody_recovers, exits_first)
}  # fmt: skip

if __name__ == "__main__":
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    CASES[sys.argv[1]]()
