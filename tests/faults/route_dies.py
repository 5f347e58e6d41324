"""A program whose ranks route rows, and that loses one of them meanwhile.

    closeranks run --faults -n 4 -- tests/faults/route_dies.py WHEN

WHEN says in what seat 1 is killed: "dispatch", "combine", "chunks" or the making of
the "route".  The survivors go on with a route of their own.  That of the first world
is refused.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

import closeranks as cr
from closeranks.collectives.plans.apply_kernels import KERNELS
from closeranks.collectives.sparse import Route, allgather_chunks

TOKENS, WATCHDOG_S = 300, 50


def killed(call: Callable[..., object], *arguments: object) -> object:
    """End this process in place of a kernel."""
    del call, arguments
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def there_and_back(comm: cr.Communicator, when: str) -> Route:
    """Send each token to two ranks, and add what they give back."""
    if comm.seat == 1 and when == "route":
        os.kill(os.getpid(), signal.SIGKILL)
    token = np.arange(TOKENS)[:, None]
    route = Route(comm, np.hstack([token, token + 1 + comm.rank]) % comm.size)
    x = np.hstack([np.full((TOKENS, 1), comm.rank), token]) * np.ones(100)[:, None, None]
    x = np.ascontiguousarray(x.transpose(1, 0, 2))
    if comm.seat == 1 and when in ("dispatch", "combine"):
        kernel = "row_pick" if when == "dispatch" else "row_combine"
        KERNELS[kernel] = partial(killed, KERNELS[kernel])  # type: ignore[assignment]
    y = route.dispatch(x)
    assert (y[:, 0, 0] == route.sources).all()
    assert (y[:, 0, 1] == route.tokens).all()
    copies = np.where((1 + comm.rank) % comm.size, 2, 1)
    assert (route.combine(y) == copies * x).all()
    if comm.seat == 1 and when == "chunks":
        KERNELS["run_pick"] = partial(killed, KERNELS["run_pick"])  # type: ignore[assignment]
    chunk = {comm.rank: np.full(1000, comm.seat)}
    everything = np.ones((comm.size, comm.size), np.bool_)
    found = allgather_chunks(comm, chunk, np.arange(comm.size), everything)
    assert [int(found[rank][0]) for rank in found] == list(comm.alive)
    return route


def refused(route: Route) -> bool:
    """Tell whether a route of an earlier world says so."""
    try:
        route.dispatch(np.zeros(TOKENS))
    except cr.Revoked as error:
        return error.for_good and "recovery" in str(error)
    return False


def main() -> None:
    """Lose a rank, and go on."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="shrink") as comm:
        first = there_and_back(comm, "never")
        comm.Barrier()  # nobody dies while another rank is in there still
        for _ in range(3):
            for attempt in comm.attempts():
                with attempt:
                    if comm.epoch:
                        assert refused(first)
                    there_and_back(comm, sys.argv[1])
        seats = ", ".join(map(str, comm.alive))
        sys.stdout.write(f"seat {comm.seat}: of {seats}\n")


main()
