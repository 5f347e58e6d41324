"""Links of a topology, measured level by level and pair by pair.

A round measures pairs of groups that share no group.  Two ranks measure
latency by a ping-pong and bandwidth by a stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.discovery.link_estimate import (
    Sample,
    average_rate,
    doubtful,
    is_steady,
    steady_rate,
    with_samples,
)
from closeranks.comms.discovery.node_hardware import cores_of
from closeranks.comms.mpi import ulfm
from closeranks.comms.topology.level_table import Grouping, child_groups
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.comms.wait import settle, wait
from closeranks.errors import TopologyError

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
        Its tags have no other use meanwhile.
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
        Its tags have no other use meanwhile.
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
        Its tags have no other use meanwhile.
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


def tournament(number: int) -> list[list[tuple[int, int]]]:
    """Pair each player with each other player once.

    Parameters
    ----------
    number : int
        Number of players, at least 1.

    Returns
    -------
    list of list of (int, int)
        Rounds of disjoint pairs, the smaller number first: ``number - 1``
        rounds, ``number`` if that is odd.

    Notes
    -----
    The circle method: one player stays, the others move on by one.
    """
    players = list(range(number + number % 2))
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append(sorted((min(p), max(p)) for p in pairs if max(p) < number))
        players.insert(1, players.pop())
    return rounds


def opponents(grouping: Grouping, level: str) -> list[npt.NDArray[np.int64]]:
    """Return for each round the opponent of every group of a level.

    Parameters
    ----------
    grouping : Grouping
        A topology.
    level : str
        One of its levels.

    Returns
    -------
    list of ndarray, shape (groups,), dtype int64
        Group numbers, -1 for a group that rests; every pair inside a parent
        group meets once.  Two pairs of a round share no group.
    """
    families = child_groups(grouping, level)
    plans = {size: tournament(size) for size in {len(family) for family in families}}
    rounds = []
    for r in range(max(len(plan) for plan in plans.values())):
        row = np.full(grouping.count(level), -1, dtype=np.int64)
        for family in families:
            plan = plans[len(family)]
            for a, b in plan[r] if r < len(plan) else ():
                row[family[a]], row[family[b]] = family[b], family[a]
        rounds.append(row)
    return rounds


def first_opponents(grouping: Grouping, level: str) -> npt.NDArray[np.int64]:
    """Return an opponent for every group of a level but an odd one.

    Parameters
    ----------
    grouping : Grouping
        A topology of any size: the work is linear in its groups.
    level : str
        One of its levels.

    Returns
    -------
    ndarray, shape (groups,), dtype int64
        Group numbers, -1 for a group that rests.
    """
    row = np.full(grouping.count(level), -1, dtype=np.int64)
    for family in child_groups(grouping, level):
        for a, b in zip(family[0::2], family[1::2], strict=False):
            row[a], row[b] = b, a
    return row


_MOST_RAILS = 16
_SECOND_LOOKS = 2
_THOROUGH = Limits(0.02, 0.1, 0.8, (32 << 10, 256 << 10, 1 << 20), window=8, fewest=16)
# the lane of a node is memory: nothing shapes it, but neighbours disturb it
_IN_NODE = Limits(0.02, 0.01, 0.2, (256 << 10,), repeats=3)
_COARSE_IN_NODE = Limits(1e-3, 1e-3, 3e-3, (64 << 10,), burst_bytes=128 << 10, steady=False)


def measure(comm: MPI.Intracomm, topology: Topology, *, budget_s: float = 20.0) -> Topology:
    """Measure latency and bandwidth per level and per pair of groups.

    **Collective**: called by every rank of `comm`.  For every pair of groups
    of one parent: a ping-pong between their first members, a stream in both
    directions over each rail alone, then over all rails at once.  Pairs are
    probed at the same time only if they share no group.

    Parameters
    ----------
    comm : Intracomm
        The ranks of the topology; a duplicate of it carries the messages.
    topology : Topology
        Equal on every rank.
    budget_s : float, default 20.0
        After this time no further pair is begun, seconds; the first round of
        each level is always done.  Pairs left out have their level's link.

    Returns
    -------
    Topology
        With measured links, equal on every rank.  Bandwidth is payload as
        MPI delivers it: over Ethernet about 0.957 of the wire's rate.

    Raises
    ------
    TopologyError
        If topology and communicator differ in size.
    """
    return with_samples(topology, survey(comm, topology, budget_s=budget_s))


def survey(comm: MPI.Intracomm, topology: Topology, *, budget_s: float = 20.0) -> list[Sample]:
    """Return the samples that `measure` makes its links of.

    **Collective**: called by every rank of `comm`.

    Parameters
    ----------
    comm : Intracomm
        The ranks of the topology.
    topology : Topology
        Equal on every rank.
    budget_s : float, default 20.0
        As for `measure`.

    Returns
    -------
    list of Sample
        Of all ranks, equal on every rank: each rail alone, all at once.

    Raises
    ------
    TopologyError
        If topology and communicator differ in size.
    """
    with _Survey(comm, topology) as probing:
        end = time.perf_counter() + budget_s
        for name in topology.levels:
            rows = opponents(topology, name)
            for r, row in enumerate(rows):
                if r and probing.agree(time.perf_counter() > end):
                    break
                probing.meet(name, row, _IN_NODE if name == "rank" else _THOROUGH)
            if topology.sizes(name).max() > 1:
                _look_again(probing, name, rows, end)
        return probing.everything()


def _look_again(
    probing: _Survey, level: str, rows: list[npt.NDArray[np.int64]], end: float
) -> None:
    """Measure pairs once more that a disturbance may have slowed."""
    for _ in range(_SECOND_LOOKS):
        pairs = doubtful(probing.everything())
        if not pairs:
            return
        for row in rows:
            doubted = [(level, *sorted((g, int(o)))) in pairs for g, o in enumerate(row)]
            if any(doubted) and not probing.agree(time.perf_counter() > end):
                probing.meet(level, np.where(doubted, row, -1), _THOROUGH)


def quick(comm: MPI.Intracomm, topology: Topology, *, budget_s: float = 0.03) -> Topology:
    """Measure one number per level, coarsely and fast.

    **Collective**: called by every rank of `comm`; one round of disjoint
    pairs a level, all at the same time, and one reduction.

    Parameters
    ----------
    comm : Intracomm
        The ranks of the topology; a duplicate of it carries the messages.
    topology : Topology
        Equal on every rank.
    budget_s : float, default 0.03
        About how long to measure, seconds.  Links slower than about 20 MB/s take
        longer, because messages in flight have to arrive.

    Returns
    -------
    Topology
        With measured links, equal on every rank, right to perhaps a third.
        The bandwidth of a rail is that of all rails at once divided by the
        number of rails, which is not measured but kept.

    Raises
    ------
    TopologyError
        If topology and communicator differ in size.
    """
    share = budget_s / max(1, len(topology.levels) - 1)
    limits = Limits(
        ping_s=share / 20,
        stream_s=share / 3,
        longest_s=share / 1.5,
        chunks=(16 << 10, 256 << 10),
        burst_bytes=144 << 10,
        steady=False,
    )
    with _Survey(comm, topology) as probing:
        for name in topology.levels:
            row = first_opponents(topology, name)
            probing.meet(name, row, _COARSE_IN_NODE if name == "rank" else limits, coarse=True)
        return topology.with_links(_medians(probing))


class _Survey:
    """Probes pairs of groups on a private communicator."""

    def __init__(self, comm: MPI.Intracomm, topology: Topology) -> None:
        if comm.size != topology.size:
            problem = f"the communicator has {comm.size} ranks, the topology {topology.size}"
            raise TopologyError("measure", problem, "use topology.restrict or discover(comm)")
        node = "node" if "node" in topology.levels else "rank"
        here = comm.Split(int(topology.groups[topology.position(node), comm.rank]))
        made: list[MPI.Comm] = [here]
        try:
            self.comm = comm.Dup()
            made.append(self.comm)
            settle(here.size, cores_of(here))
        except Exception:
            for one in made:  # other ranks may wait for this one there
                ulfm.revoke(one, time.monotonic())
            raise
        here.Free()
        self._born_s = time.monotonic()
        self.topology = topology
        self.samples: list[Sample] = []

    def __enter__(self) -> _Survey:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.comm.Free()
        else:  # other ranks may wait for this one
            ulfm.revoke(self.comm, self._born_s)

    def everything(self) -> list[Sample]:
        """Return the samples of all ranks."""
        return [sample for mine in self.comm.allgather(self.samples) for sample in mine]

    def agree(self, mine: bool) -> bool:
        """Take rank 0's answer."""
        flag = np.array([mine], dtype=np.uint8)
        wait(self.comm.Ibcast(flag, 0).Test)
        return bool(flag[0])

    def meet(
        self, level: str, row: npt.NDArray[np.int64], limits: Limits, *, coarse: bool = False
    ) -> None:
        """Probe the pairs of one round; ``row`` has each group's opponent."""
        sizes = self.topology.sizes(level)
        pairs = np.flatnonzero(row > np.arange(len(row)))
        if not pairs.size:
            return
        widest = int(np.minimum(sizes[pairs], sizes[row[pairs]]).max())
        rails = min(widest, _MOST_RAILS)
        meeting = _Meeting(self, level, row)
        self._pause()
        meeting.ping(limits.ping_s)
        if coarse:
            # ranks that share a card share its burst
            cards = min(rails, self.topology.links[level].rails or 1)
            limits = limits._replace(burst_bytes=limits.burst_bytes * cards // rails)
        streams = [("together", range(rails))] if rails > 1 or coarse else []
        if not coarse:
            streams += [("alone", range(k, k + 1)) for k in range(rails)]
        for kind, members in streams:
            for upwards in (True,) if coarse else (True, False) * limits.repeats:
                self._pause()
                meeting.stream(kind, members, limits, upwards=upwards)

    def _pause(self) -> None:
        """Wait for all ranks without taking the probing ones' cores."""
        wait(self.comm.Ibarrier().Test)


class _Meeting:
    """The part of one rank in one round."""

    def __init__(self, survey: _Survey, level: str, row: npt.NDArray[np.int64]) -> None:
        topology, rank = survey.topology, survey.comm.rank
        self._survey = survey
        self._level = level
        mine = int(topology.groups[topology.position(level), rank])
        other = int(row[mine])
        self._a, self._b = min(mine, other), max(mine, other)
        self._mine, self._other, self._first = mine, other, mine < other
        self._rail, self._peer = -1, -1
        if other >= 0:
            theirs = topology.members(level, other)
            self._rail = int(np.searchsorted(topology.members(level, mine), rank))
            self._peer = int(theirs[self._rail]) if self._rail < len(theirs) else -1

    def _note(self, kind: str, value: float) -> None:
        sender = self._mine if kind == "latency" else self._other
        sample = Sample(self._level, self._a, self._b, kind, self._rail, sender, value)
        self._survey.samples.append(sample)

    def ping(self, span_s: float) -> None:
        """Measure latency between the first members."""
        if self._peer >= 0 and self._rail == 0:
            latency = ping(self._survey.comm, self._peer, first=self._first, span_s=span_s)
            if latency is not None:
                self._note("latency", latency)

    def stream(self, kind: str, rails: range, limits: Limits, *, upwards: bool) -> None:
        """Measure one direction over some rails at once."""
        if self._peer < 0 or self._rail not in rails:
            return
        if self._first == upwards:
            send_stream(self._survey.comm, self._peer, limits)
        else:
            self._note(kind, receive_stream(self._survey.comm, self._peer, limits))


def _medians(probing: _Survey) -> dict[str, Link]:
    """Gather one latency and one rate a rank and level; medians of pairs."""
    topology = probing.topology
    mine = np.zeros((len(topology.levels), 2))
    for sample in probing.samples:
        column = 0 if sample.kind == "latency" else 1
        mine[topology.position(sample.level), column] = sample.value
    table = np.empty((topology.size, *mine.shape))
    probing.comm.Allgather(mine, table)
    links = {}
    for i, name in enumerate(topology.levels):
        latencies, rates = table[:, i, 0], np.bincount(topology.groups[i], table[:, i, 1])
        if not rates.any():
            continue
        rails = topology.links[name].rails or 1
        latency, rate = np.median(latencies[latencies > 0]), np.median(rates[rates > 0])
        if name == "rank":
            # pairs inside nodes are alike, and a disturbance only slows them: the best counts
            latency, rate = latencies[latencies > 0].min(), rates.max()
        links[name] = Link(float(latency), float(rate) / rails, rails, "measured")
    return links
