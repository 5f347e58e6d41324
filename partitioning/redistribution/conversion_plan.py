"""What it takes to turn one layout into another: messages, bytes, time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np

from closeranks.comms import argument
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError
from closeranks.partitioning.layout.box import Bounds, cells
from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Partial
from closeranks.partitioning.mesh.mesh_cost import busiest_ranks, priced
from closeranks.partitioning.mesh.traffic import Messages, Traffic, check_links, traffic_of
from closeranks.partitioning.redistribution.part_moves import (
    Copy,
    Fill,
    Move,
    Mover,
    RankPart,
    Reduction,
)

#: Bytes that a rank packs at a time, and that it receives packed.
ROUND_BYTES: Final = 16 << 20
#: But so much of each message, if there are many.
LEAST_PIECE: Final = 1 << 16

Step = Fill | Copy | Reduction | Move


class Conversion:
    """What it takes to turn one layout into another; made by `conversion`.

    Local and immutable.  What one rank does is worked out when it is asked for,
    and for that rank alone.

    Parameters
    ----------
    source, target : Layout
        As checked by `conversion`.
    itemsize : int
        Bytes of an element.
    topology : Topology, optional
        The machine.
    is_direct : bool
        Whether terms go straight to the rank that wants the value.

    Attributes
    ----------
    source, target, itemsize, topology
        As given.
    size : int
        Number of ranks.
    terms : int
        Terms of which a value is reduced; 1 if it is not.
    possible_stages : range
        Numbers that stages may have.
    """

    def __init__(
        self, source: Layout, target: Layout, itemsize: int, topology: Topology | None,
        *, is_direct: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.target = source, target
        self.itemsize, self.topology = itemsize, topology
        self.size = source.mesh.size
        self._machine = topology or Topology.regular(rank=self.size)
        mover = Mover(source, target, self._machine, is_direct=is_direct)
        self.terms = mover.terms
        levels = len(self._machine.levels)
        self.possible_stages = range(0 if is_direct else 1 - levels, levels + 1)
        self._part = lru_cache(maxsize=max(16, min(self.size, 1024)))(mover.part)

    @property
    def nodes(self) -> list[int]:
        """Node of each rank; without such a level its group outside the last level."""
        levels, groups = self._machine.levels, self._machine.groups
        if len(levels) == 1:
            return [0] * self.size
        level = levels.index("node") if "node" in levels[:-1] else len(levels) - 2
        found: list[int] = np.unique(groups[level], return_inverse=True)[1].tolist()
        return found

    def part(self, rank: int) -> RankPart:
        """Give what a rank does.

        Parameters
        ----------
        rank : int
            A rank of the meshes.

        Returns
        -------
        RankPart
            Fills, copies, reductions, sends and receives.

        Raises
        ------
        UsageError
            If there is no such rank.
        """
        return self._part(argument.whole("Conversion", "rank", rank, below=self.size))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps of all ranks, in an order in which they can be executed.

        First fills and copies, then the messages by stage, each stage with the
        reductions of what it has brought.  Made at first use.
        """
        parts = [self._part(rank) for rank in range(self.size)]
        staged: list[Move | Reduction] = [move for part in parts for move in part.receives]
        staged += [reduction for part in parts for reduction in part.reductions]
        staged.sort(key=lambda step: (step.stage, isinstance(step, Reduction), step))
        return (
            *(fill for part in parts for fill in part.fills),
            *(copy for part in parts for copy in part.copies),
            *staged,
        )

    def sent(self, rank: int) -> int:
        """Give the bytes that a rank sends.

        Parameters
        ----------
        rank : int
            A rank of the meshes.

        Returns
        -------
        int
            To all other ranks, in all stages.
        """
        return sum(self._nbytes(move) for move in self.part(rank).sends)

    def received(self, rank: int) -> int:
        """Give the bytes that a rank receives.

        Without `Partial` these are the elements of its target box that are not in
        its source box.

        Parameters
        ----------
        rank : int
            A rank of the meshes.

        Returns
        -------
        int
            From all other ranks, in all stages.
        """
        return sum(self._nbytes(move) for move in self.part(rank).receives)

    def peak_bytes(self, rank: int) -> int:
        """Give the most bytes of packed parts that a rank holds at once.

        Parameters
        ----------
        rank : int
            A rank of the meshes.

        Returns
        -------
        int
            Beside the local arrays of both layouts, in `redistribute` without
            ``limit_bytes``; sums of terms that are sent on included.
        """
        part = self.part(rank)
        least = max(LEAST_PIECE, self.itemsize)

        def held(boxes: Iterable[Bounds]) -> int:
            sizes = [cells(box) * self.itemsize for box in boxes]
            return min(sum(sizes), max(ROUND_BYTES, least * len(sizes)))

        def most(moves: Sequence[Move], last: int) -> int:
            stages = groupby((m for m in moves if m.stage <= last), attrgetter("stage"))
            return max((held(move.box for move in some) for _, some in stages), default=0)

        of_terms, of_all = (
            most(part.sends, n) + most(part.receives, n) for n in (0, self.possible_stages[-1])
        )
        return max(of_terms + held(part.sums), of_all)

    @property
    def stages(self) -> int:
        """Number of stages that carry messages, over all ranks."""
        return len(self._traffic)

    @property
    def total_bytes(self) -> int:
        """Bytes that all ranks send together."""
        return sum(self.sent(rank) for rank in range(self.size))

    @property
    def bytes_per_level(self) -> dict[str, int | float]:
        """Level name -> bytes the busiest rank sends over it.

        Without a topology there is one level, "rank".
        """
        return busiest_ranks(self._machine, self._traffic)

    @property
    def group_bytes_per_level(self) -> dict[str, int | float]:
        """Level name -> bytes that leave or enter its busiest group."""
        return priced_bytes(self._machine, self._traffic)

    @property
    def seconds(self) -> float | None:
        """Predicted time, the sum over the stages; None without a topology.

        A stage is priced as an axis of `Mesh.cost`.

        Raises
        ------
        TopologyError
            If a link has no known latency or rate.
        """
        if self.topology is None:
            return None
        check_links("Conversion.seconds", self.topology)
        return priced(self.topology, self._traffic).seconds

    @cached_property
    def _traffic(self) -> list[Traffic]:
        """What crosses each level, stage by stage."""
        moves = (step for step in self.steps if isinstance(step, Move))
        found = []
        for _, some in groupby(moves, attrgetter("stage")):
            rows = [(move.sender, move.receiver, self._nbytes(move)) for move in some]
            senders, receivers, nbytes = np.array(rows, dtype=np.int64).T
            sent = Messages(senders, receivers, nbytes.astype(np.float64))
            found.append(traffic_of(self._machine, sent))
        return found

    def _nbytes(self, move: Move) -> int:
        return cells(move.box) * self.itemsize

    def __repr__(self) -> str:
        return f"Conversion({self.source} -> {self.target})"

    def __str__(self) -> str:
        """Write a few lines: the layouts, the time, and what crosses each level."""
        shape = "x".join(map(str, self.target.global_shape)) or "one element"
        lines = [
            f"{shape} of {self.itemsize} bytes on {self.size} ranks",
            f"  from {_told(self.source)}",
            f"  to   {_told(self.target)}",
            f"  {self.total_bytes} bytes in {self._stages_shown()}",
        ]
        groups = self.group_bytes_per_level
        lines += [
            f"  {name}: busiest rank {nbytes} bytes, busiest group {groups[name]} bytes"
            for name, nbytes in self.bytes_per_level.items()
        ]
        return "\n".join(lines)

    def _stages_shown(self) -> str:
        """Tell the stages, and the predicted time where it is known."""
        shown = f"{self.stages} stage{'s' * (self.stages != 1)}"
        try:
            seconds = self.seconds
        except TopologyError:
            return shown
        return shown if seconds is None else f"{shown}, {seconds * 1e6:.3g} us predicted"


def priced_bytes(topology: Topology, stages: list[Traffic]) -> dict[str, int | float]:
    """Give the bytes that leave or enter the busiest group of each level.

    Parameters
    ----------
    topology : Topology
        The machine; its links need not be known.
    stages : list of Traffic
        Added up.

    Returns
    -------
    dict of str to int or float
        Level name -> bytes.
    """
    found: dict[str, int | float] = {}
    for level, name in enumerate(topology.levels):
        flows = [sum(getattr(one, way)[level] for one in stages) for way in ("leaving", "entering")]
        found[name] = int(max(float(np.max(flow)) for flow in flows)) if stages else 0
    return found


def _told(layout: Layout) -> str:
    pairs = zip(layout.mesh.axes.items(), layout.placements, strict=True)
    return ", ".join(f"{name}={size}: {how}" for (name, size), how in pairs)


def conversion(
    source: Layout, target: Layout, *, itemsize: int = 8, topology: Topology | None = None
) -> Conversion:
    """Plan how one layout turns into another.

    Local.  Every rank receives what it lacks, and nothing else.  Of several ranks
    that hold an element the nearest sends it: the rank itself, else the one that
    shares the innermost level of the topology; equal ones share the work, at
    least 1024 elements each.  With a topology an element enters each group of
    each level once and is passed on inside, in a stage of its own.

    `Partial` axes of the source are reduced first: each rank that wants a part of
    a value reduces a share of it.  With a topology one rank of each group adds the
    terms of its group, and sends their sum to the group outside, so that elements
    leave a group once.  Terms of a group are added in the order of coordinates,
    and so are the sums of groups, by their first terms.  Axes that are
    `Partial` in both layouts of one mesh keep their terms.  For other `Partial`
    axes of the target the first member keeps the value, the others get the
    neutral element.

    Parameters
    ----------
    source, target : Layout
        Of one global shape, on as many ranks; the meshes may differ.
    itemsize : int
        Bytes of an element.
    topology : Topology, optional
        The machine; if not given that of the meshes, if one has any.

    Returns
    -------
    Conversion
        Printable; ``.steps``, ``.sent(rank)``, ``.received(rank)``,
        ``.bytes_per_level``, ``.peak_bytes(rank)``, ``.seconds``.

    Raises
    ------
    UsageError
        If shapes or numbers of ranks differ, or both layouts are partial with
        different ops.

    Examples
    --------
    >>> from closeranks.partitioning import Layout, Mesh, Split
    >>> mesh = Mesh({"row": 2})
    >>> rows = Layout((4, 6), [Split(0)], mesh=mesh)
    >>> columns = Layout((4, 6), [Split(1)], mesh=mesh)
    >>> conversion(rows, columns).received(0)
    48
    """
    check_layouts("conversion", source, target)
    itemsize = argument.whole("conversion", "itemsize", itemsize, least=1)
    machine: Any = topology or source.mesh.topology or target.mesh.topology
    if machine is not None:
        argument.instance("conversion", "topology", machine, Topology, "give a Topology, or none")
        if machine.size != source.mesh.size:
            problem = f"{machine.size} ranks in the topology, {source.mesh.size} in the layouts"
            raise UsageError("conversion", problem, "give the topology of these ranks")
    return Conversion(source, target, itemsize, machine)


def check_layouts(where: str, source: Any, target: Any) -> None:
    """Refuse layouts that do not turn into each other.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    source, target : Layout
        The layouts.

    Raises
    ------
    UsageError
        If one is none, shapes or numbers of ranks differ, or ops are mixed.
    """
    for name, layout in (("source", source), ("target", target)):
        argument.instance(where, name, layout, Layout, "give a Layout")
    if source.global_shape != target.global_shape:
        raise UsageError(where, f"global shapes {source.global_shape} and {target.global_shape}",
                         "give layouts of one global shape")  # fmt: skip
    if source.mesh.size != target.mesh.size:
        raise UsageError(where, f"{source.mesh} and {target.mesh} differ in ranks",
                         "give meshes of as many ranks")  # fmt: skip
    ops = [
        next((how.op for how in layout.placements if isinstance(how, Partial)), None)
        for layout in (source, target)
    ]
    if None not in ops and ops[0] != ops[1]:
        raise UsageError(where, f"Partial ops mixed: {ops[0]} and {ops[1]}",
                         "reduce by a conversion to Split or Broadcast first")  # fmt: skip
