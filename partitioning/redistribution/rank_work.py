"""One rank's part of a conversion, ready to run on its arrays.

Nothing here talks to other ranks; the two exchanges do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.buffers import packing
from closeranks.partitioning.layout.box import Bounds, cells, shape_of, slices
from closeranks.partitioning.redistribution.box_pieces import cut, piece
from closeranks.partitioning.redistribution.conversion_plan import Conversion
from closeranks.partitioning.redistribution.exchange_rounds import (
    ExchangeRound,
    StageRounds,
    chosen,
)
from closeranks.partitioning.redistribution.local_arrays import Array, combine, neutral, raw
from closeranks.partitioning.redistribution.part_moves import Move, Reduction

Bytes = NDArray[np.uint8]
#: Bytes of a result that second-level caches have no room for.
_LARGE: Final = 4 << 20


class MovePiece(NamedTuple):
    """Elements of a message that travel in one round.

    Attributes
    ----------
    move : Move
        The message.
    place : tuple
        Where they lie in the local array; empty if in none: inputs of a reduction
        that come, and sums that are sent on.
    elements : int
        How many.
    first : int
        Place of the first in the local array, row-major, if they lie side by side
        in an array without gaps; else -1.
    """

    move: Move
    place: tuple[Any, ...]
    elements: int
    first: int


class RankWork:
    """What one rank does in a conversion.

    Parameters
    ----------
    conversion : Conversion
        The conversion.
    rank : int
        The rank.

    Attributes
    ----------
    part : RankPart
        Its steps.
    rank, size, itemsize : int
        The rank, how many there are, and bytes of an element.
    stages : range
        Numbers that stages may have.
    nodes : list of int
        Node of each rank.
    terms : int
        Terms of a reduction at most.
    shape : tuple of int
        Of its part of the target.
    copies : list of (tuple, tuple)
        Where copied elements go to, and come from.
    """

    def __init__(self, conversion: Conversion, rank: int) -> None:
        self.part = conversion.part(rank)
        self.rank, self.size, self.itemsize = rank, conversion.size, conversion.itemsize
        self.stages, self.terms = conversion.possible_stages, conversion.terms
        self.nodes = conversion.nodes
        source, target = conversion.source, conversion.target
        self.shape = target.local_shape(rank)
        self._shapes = source.local_shape(rank), self.shape
        self._origins = source.offset(rank), target.offset(rank)
        self.copies = self.cut_copies(1)

    def index(self, box: Bounds, *, of_target: bool) -> tuple[Any, ...]:
        """Give where a box lies in the rank's array of the source, or of the target.

        It ends with an ellipsis: of an array of no axes, too, it takes a view.
        """
        return *slices(box, self._origins[of_target]), ...

    def cut_copies(self, count: int) -> list[tuple[Any, Any]]:
        """Cut what the rank copies to itself.

        Parameters
        ----------
        count : int
            In so many pieces each, or a few more.

        Returns
        -------
        list of (tuple, tuple)
            Where each goes to, and comes from.
        """
        found = []
        for copy in self.part.copies:
            most = -(-cells(copy.box) // count)
            for number in range(cut(copy.box, most).pieces):
                box = piece(copy.box, most, number)
                assert box is not None
                found.append((self.index(box, of_target=True), self.index(box, of_target=False)))
        return found

    def sends(self, how: StageRounds, which: ExchangeRound) -> list[MovePiece]:
        """Give what the rank sends in a round.

        Parameters
        ----------
        how : StageRounds
            The stage.
        which : ExchangeRound
            The round.

        Returns
        -------
        list of MovePiece
            By receiver.
        """
        moves = chosen([m for m in self.part.sends if m.stage == how.stage], which, self.size)
        found = (
            self._piece(m, how.elements, which.piece, of_target=m.has_arrived,
                        lies=m.stage > 0 or not m.has_arrived)
            for m in moves
        )  # fmt: skip
        return [one for one in found if one is not None]

    def receives(self, how: StageRounds, which: ExchangeRound) -> list[MovePiece]:
        """Give what the rank receives in a round.

        Parameters
        ----------
        how : StageRounds
            The stage.
        which : ExchangeRound
            The round.

        Returns
        -------
        list of MovePiece
            By sender, each sender's in the order in which it sends them.
        """
        moves = chosen([m for m in self.part.receives if m.stage == how.stage], which, self.size)
        found = (
            self._piece(m, how.elements, which.piece, of_target=True, lies=m.stage > 0)
            for m in moves
        )
        return [one for one in found if one is not None]

    def _piece(
        self, move: Move, elements: int, number: int, *, of_target: bool, lies: bool
    ) -> MovePiece | None:
        box = piece(move.box, elements, number)
        if box is None:
            return None
        if not lies:
            return MovePiece(move, (), cells(box), -1)
        index = self.index(box, of_target=of_target)
        return MovePiece(move, index, cells(box), _first(box, index, self._shapes[of_target]))


def _first(box: Bounds, index: tuple[Any, ...], shape: tuple[int, ...]) -> int:
    """Give the place of a box's first element; -1 if its elements have gaps."""
    lengths = shape_of(box)
    lead = next((n for n, length in enumerate(lengths) if length > 1), len(lengths))
    if lengths[lead + 1 :] != shape[lead + 1 :]:
        return -1
    place = 0
    for one, length in zip(index[:-1], shape, strict=True):
        place = place * length + one.start
    return place


class Arrays:
    """The arrays of one rank while they are converted.

    Parameters
    ----------
    work : RankWork
        What the rank does.
    array, out : ndarray
        What it has, and what it makes.
    """

    def __init__(self, work: RankWork, array: Array, out: Array) -> None:
        self._work, self.out, self.array = work, out, array
        self.raw = raw(array), raw(out)
        self._sums: dict[Bounds, Array] = {}

    def fill(self) -> None:
        """Fill what holds no value.  Local."""
        for step in self._work.part.fills:
            self.out[...] = neutral(step.op, self.out.dtype)

    def copy(self, places: Sequence[tuple[Any, Any]]) -> None:
        """Copy elements that the rank has, at any time.  Local.

        Parameters
        ----------
        places : sequence of (tuple, tuple)
            Where they go to, and come from: of `RankWork.copies`.
        """
        array, out = self.raw
        for to, at in places:
            self._copy(out[to], array[at])

    def _copy(self, target: Array, source: Array) -> None:
        """Copy elements; past the caches if they have no room for all that is made."""
        if self.out.nbytes >= _LARGE:
            packing.copy_past(target, source)
        else:
            np.copyto(target, source)

    def pack(self, one: MovePiece, data: Bytes, *, past: bool = False) -> None:
        """Copy the elements of a piece side by side.  Local.

        Parameters
        ----------
        one : MovePiece
            What is sent.
        data : ndarray of uint8
            Takes them.
        past : bool
            Whether past the caches.
        """
        move = one.move
        if move.stage <= 0 and move.has_arrived:
            source = raw(self._sums[move.box][: one.elements])
        else:
            source = self.raw[move.has_arrived][one.place]
        if past:
            packing.copy_past(data.view(source.dtype).reshape(source.shape), source)
        else:
            packing.pack(source, 0, one.elements, data)

    def unpack(self, data: Bytes, one: MovePiece) -> None:
        """Copy elements that have come to their places.  Local.

        Parameters
        ----------
        data : ndarray of uint8
            The elements side by side.
        one : MovePiece
            What was received.
        """
        target = self.raw[True][one.place]
        if self.out.nbytes >= _LARGE:
            packing.copy_past(target, data.view(target.dtype).reshape(target.shape))
        else:
            packing.fill(data, target, 0, one.elements)

    def reduce(
        self, pieces: list[tuple[Bytes, MovePiece]], how: StageRounds, which: ExchangeRound
    ) -> None:
        """Combine the terms, or sums of terms, that have come in a round.  Local.

        Parameters
        ----------
        pieces : list of (ndarray of uint8, MovePiece)
            Terms, and what they are; undefined afterwards, if the rank had some.
        how : StageRounds
            The stage.
        which : ExchangeRound
            The round.
        """
        come = {(one.move.box, one.move.term): data for data, one in pieces}
        for step in self._work.part.reductions:
            if step.stage != how.stage:
                continue
            box = piece(step.box, how.elements, which.piece)
            if box is None:
                continue
            target = self._result(step, box, how.elements)
            inputs = [
                data.view(target.dtype).reshape(target.shape) if data is not None else None
                for data in (come.get((step.box, term)) for term in range(len(step.senders)))
            ]
            if step.has_reduced:
                _add_around(step.op, target, inputs, step.senders.index(self._work.rank))
                continue
            for term, (sender, value) in enumerate(zip(step.senders, inputs, strict=True)):
                if value is not None:
                    combine(step.op, target, value, first=term == 0)
                elif sender == self._work.rank and which.term < 0:
                    self._own(step, term, box, target)

    def _result(self, step: Reduction, box: Bounds, elements: int) -> Array:
        """Give where a reduction of a piece goes to: the target, or aside."""
        if not step.goes_on:
            target: Array = self.out[self._work.index(box, of_target=True)]
            return target
        kept = self._sums.get(step.box)
        if kept is None:
            count = min(elements, cells(step.box))
            kept = self._sums[step.box] = np.empty(count, self.out.dtype)
        return kept[: cells(box)].reshape(shape_of(box))

    def forget_sums(self) -> None:
        """Free what was kept aside: all terms are added.  Local."""
        self._sums.clear()

    def reduce_own(self, term: int) -> None:
        """Combine the rank's own terms, whole, where terms come one after the other.

        Local.

        Parameters
        ----------
        term : int
            Which term is due.
        """
        for step in self._work.part.reductions:
            if step.senders[term] == self._work.rank:
                target = self.out[self._work.index(step.box, of_target=True)]
                self._own(step, term, step.box, target)

    def _own(self, step: Reduction, term: int, box: Bounds, target: Array) -> None:
        value = self.array[self._work.index(box, of_target=False)]
        combine(step.op, target, value, first=term == 0)


def _add_around(op: str, target: Array, inputs: Sequence[Array | None], own: int) -> None:
    """Add others' sums before and after the rank's own, which lies in the target.

    In this order, and without more memory: those before are added in the first of
    them.
    """
    found = [value for value in inputs if value is not None]
    if own:
        before = found[0]
        for value in found[1:own]:
            combine(op, before, value, first=False)
        combine(op, target, before, first=False, is_left=True)
    for value in found[own:]:
        combine(op, target, value, first=False)


def whole_bytes(array: Array) -> Bytes | None:
    """Give the bytes of an array without gaps.

    Parameters
    ----------
    array : ndarray
        Any array.

    Returns
    -------
    ndarray of uint8 or None
        None if it has gaps, or more bytes than a displacement counts.
    """
    if not array.flags.c_contiguous or array.nbytes >= 2**31 or not prod(array.shape):
        return None
    return array.reshape(-1).view(np.uint8)
