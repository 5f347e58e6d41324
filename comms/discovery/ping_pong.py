"""Time messages between two ranks: ping-pong and a stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from closeranks.comms.discovery.link_estimate import average_rate, is_steady, steady_rate

if TYPE_CHECKING:
    from mpi4py import MPI

_PING, _DATA, _CREDIT = 1, 2, 3
_STOP, _GO = 0, 1


class Limits(NamedTuple):
    """How long and how finely to measure.

    Parameters
    ----------
    ping_s : float
        Length of a ping-pong, seconds.
    stream_s : float
        Shortest time a stream is watched after its burst, seconds.
    longest_s : float
        Longest time a stream may take, seconds.
    chunks : tuple of int
        Sizes of a stream's messages, bytes: the next one is tried where the
        last one arrives faster than every 20 us.
    window : int
        Messages in flight.
    burst_bytes : int
        First bytes of a stream to leave out.
    steady : bool
        Whether to go on until the rate is steady; else its mean will do.
    fewest : int
        Messages to watch at least after the burst.
    repeats : int
        How often to measure each direction; the best counts.
    """

    ping_s: float
    stream_s: float
    longest_s: float
    chunks: tuple[int, ...]
    window: int = 4
    burst_bytes: int = 384 << 10
    steady: bool = True
    fewest: int = 8
    repeats: int = 1


def ping(comm: MPI.Intracomm, peer: int, *, first: bool, span_s: float) -> float | None:
    """Bounce one byte between two ranks.

    **Collective** over the two ranks, one of them with ``first=True``.

    Parameters
    ----------
    comm : Intracomm
        Nobody else uses its tags meanwhile.
    peer : int
        The other rank.
    first : bool
        Whether this rank begins.
    span_s : float
        How long to go on, seconds; at least 4 times, at most 1000.

    Returns
    -------
    float or None
        Half of the shortest round trip, seconds; None if not ``first``.
    """
    ball = np.ones(1, dtype=np.uint8)
    if not first:
        while ball[0] == _GO:
            comm.Recv(ball, peer, _PING)
            comm.Send(ball, peer, _PING)
        return None
    best, turns, end = float("inf"), 0, time.perf_counter() + span_s
    while ball[0] == _GO:
        start = time.perf_counter()
        ball[0] = _GO if turns < 4 or (start < end and turns < 1000) else _STOP
        comm.Send(ball, peer, _PING)
        comm.Recv(ball, peer, _PING)
        # the very first round trips set up the connection
        if turns >= 2:
            best = min(best, time.perf_counter() - start)
        turns += 1
    return best / 2


def send_stream(comm: MPI.Intracomm, peer: int, limits: Limits) -> None:
    """Send until the receiver has seen enough.

    **Collective** with `receive_stream` on the other rank.

    Parameters
    ----------
    comm : Intracomm
        Nobody else uses its tags meanwhile.
    peer : int
        The receiver.
    limits : Limits
        Equal on both ranks.
    """
    credit = np.ones(1, dtype=np.uint8)
    for chunk in limits.chunks:
        data = np.zeros(chunk, dtype=np.uint8)
        requests = [comm.Isend(data, peer, _DATA) for _ in range(limits.window)]
        sent = 0
        while True:
            comm.Recv(credit, peer, _CREDIT)
            if credit[0] == _STOP:
                break
            requests[sent % limits.window].Wait()
            requests[sent % limits.window] = comm.Isend(data, peer, _DATA)
            sent += 1
        for request in requests:
            request.Wait()
        comm.Recv(credit, peer, _CREDIT)
        if credit[0] == _STOP:
            return


def receive_stream(comm: MPI.Intracomm, peer: int, limits: Limits) -> float:
    """Receive a stream and return its steady rate.

    **Collective** with `send_stream` on the other rank.

    Parameters
    ----------
    comm : Intracomm
        Nobody else uses its tags meanwhile.
    peer : int
        The sender.
    limits : Limits
        Equal on both ranks.

    Returns
    -------
    float
        Bytes/s of payload, as the receiver sees it after the burst.
    """
    credit = np.zeros(1, dtype=np.uint8)
    rate, estimate = 0.0, steady_rate if limits.steady else average_rate
    for i, chunk in enumerate(limits.chunks):
        arrivals = _receive(comm, peer, chunk, limits)
        rate = estimate(arrivals, chunk, limits.burst_bytes)
        again = i + 1 < len(limits.chunks) and rate * 20e-6 > chunk
        credit[0] = _GO if again else _STOP
        comm.Send(credit, peer, _CREDIT)
        if not again:
            break
    return rate


def _receive(comm: MPI.Intracomm, peer: int, chunk: int, limits: Limits) -> list[float]:
    """Receive one stream; return when each chunk had arrived."""
    window, credit = limits.window, np.zeros(1, dtype=np.uint8)
    data = np.empty((window, chunk), dtype=np.uint8)
    requests = [comm.Irecv(data[i], peer, _DATA) for i in range(window)]
    arrivals: list[float] = []
    start = time.perf_counter()
    going = True
    while going:
        slot = len(arrivals) % window
        requests[slot].Wait()
        arrivals.append(time.perf_counter())
        going = not _enough(arrivals, start, chunk, limits)
        credit[0] = _GO if going else _STOP
        if going:
            requests[slot] = comm.Irecv(data[slot], peer, _DATA)
        comm.Send(credit, peer, _CREDIT)
    for i in range(window - 1):
        requests[(len(arrivals) + i) % window].Wait()
    return arrivals


def _enough(arrivals: list[float], start_s: float, chunk: int, limits: Limits) -> bool:
    """Say whether a stream was watched long enough."""
    now, burst = arrivals[-1], -(-limits.burst_bytes // chunk)
    if len(arrivals) < 8:
        return False
    if now - start_s > limits.longest_s:
        return True
    if len(arrivals) < burst + limits.fewest or now - arrivals[burst] < limits.stream_s:
        return False
    # looking at every arrival would cost more than the arrivals
    if not limits.steady:
        return True
    return len(arrivals) % 8 == 0 and is_steady(arrivals, chunk, limits.burst_bytes)
