"""One save: how ranks come from a state to a generation that all have.

Its phases: the same state; room for it; copied; coded; committed.  Each ends
with an agreement of all ranks, so no rank goes on where another one could not.
Until the last one the generation before is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.control.save_options import check_step
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.memory.slot_set import SlotSet
from closeranks.checkpoint.placement.coding_tasks import encoding
from closeranks.checkpoint.placement.erasure_groups import Protection
from closeranks.checkpoint.placement.slot_header import COMMITTED, ENCODED, WRITTEN, Header
from closeranks.checkpoint.placement.stripe_layout import Share, Size, StripeLayout, chunk_for
from closeranks.checkpoint.restore.coding_work import Recoding
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.device_staging import Anywhere, DeviceBytes, DeviceCopies, bytes_of
from closeranks.checkpoint.state.rank_image import Extent, describe
from closeranks.checkpoint.state.state_tree import Array, StateLeaf
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel

#: Bytes of an entry that ranks compare before they read the rest: most that differ do there.
_GLANCE: Final = 1 << 16


@dataclass(frozen=True)
class Place:
    """Where this rank stands in its erasure group.

    Parameters
    ----------
    protection : Protection
        Of the job.
    nodes : tuple of int
        Rank -> its node.
    rank : int
        This one.
    """

    protection: Protection
    nodes: tuple[int, ...]
    rank: int

    @property
    def group(self) -> int:
        """Its group."""
        return self.protection.group_of[self.nodes[self.rank]]

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of its group."""
        own = set(self.protection.rings[self.group])
        return tuple(rank for rank, node in enumerate(self.nodes) if node in own)

    def layout(self, sizes: Sequence[Size], most: int) -> StripeLayout:
        """Lay the group out.

        Local; the same on all ranks of the group.

        Parameters
        ----------
        sizes : sequence of Size
            Of all ranks of the job.
        most : int
            Bytes of a chunk at most.

        Returns
        -------
        StripeLayout
            Of this rank's group.
        """
        ring, members = self.protection.rings[self.group], self.members
        ranks = {node: tuple(rank for rank in members if self.nodes[rank] == node) for node in ring}
        own = {rank: sizes[rank] for rank in members}
        lanes = self.protection.lanes[self.group]
        chunk = chunk_for(dict(enumerate(sizes)), most)
        return StripeLayout(self.group, self.protection.parity, lanes, ring, ranks, own, chunk)


class Saving:
    """One save of one rank; `carry_out` does it.

    Parameters
    ----------
    pending : Pending
        Hears of the outcome.
    shape, leaves
        The state, as `closeranks.checkpoint.state.state_tree.flatten` takes it
        apart; empty where that was not possible.
    problem : Exception or None
        Why it was not.
    checks : bool
        Whether to look that the arrays do not change until they are copied.
    """

    def __init__(
        self,
        pending: Pending,
        shape: Any,
        leaves: Sequence[StateLeaf],
        problem: Exception | None,
        *,
        checks: bool,
    ) -> None:
        self.pending, self._problem = pending, problem
        self._shape, self._leaves = shape, leaves
        self._before = _digests(leaves) if checks else None

    @classmethod
    def of(cls, pending: Pending, state: Any, problem: Exception | None, *, checks: bool) -> Saving:
        """Take a state apart.

        Local; raises nothing, for the problem is told to other ranks first.

        Parameters
        ----------
        pending : Pending
            Hears of the outcome; its step becomes a plain integer.
        state : dict, list or tuple
            The state that the caller passes.
        problem : Exception or None
            Why nothing can be.
        checks : bool
            As above.

        Returns
        -------
        Saving
            Of nothing, if there is a problem.
        """
        if problem is None:
            try:
                pending.step = check_step("save", pending.step)
                return cls(pending, *state_tree.flatten(state), None, checks=checks)
            except Exception as error:
                pending.step, problem = 0, error
        return cls(pending, None, (), problem, checks=False)

    def agree(self, channel: ControlChannel) -> tuple[bool, ...]:
        """Make sure that all ranks save the same state; gives the equal leaves.

        Collective.

        Parameters
        ----------
        channel : ControlChannel
            Between the ranks.

        Returns
        -------
        tuple of bool
            For each leaf whether all ranks have the same.

        Raises
        ------
        CheckpointError
            On all ranks, if they differ in steps, paths or kinds, or if one
            has an entry that cannot be saved.
        """

        def words() -> NDArray[np.int64]:
            if self._problem is not None:
                raise self._problem
            return np.array([self.pending.step, *_signature(self._shape, self._leaves)], np.int64)

        if not all(_same(channel, words, 3)):
            here = f"step {self.pending.step} of {_told(self._leaves)}"
            problem = UsageError("save", f"{here}; not all ranks save the same",
                                 "pass the same step and tree on all ranks")  # fmt: skip
            channel.together("save", problem)
        return self._alike(channel)

    def _alike(self, channel: ControlChannel) -> tuple[bool, ...]:
        """Find the leaves that all ranks have alike: by their fronts, then by the rest."""
        shared, before = tuple(not leaf.own for leaf in self._leaves), self._before
        if before is not None:
            return _agreed(channel, shared, lambda: before)
        alike = _agreed(channel, shared, lambda: _digests(self._leaves, shared, _GLANCE))
        longer = [maybe and leaf.array is not None and leaf.array.nbytes > _GLANCE
                  for maybe, leaf in zip(alike, self._leaves, strict=True)]  # fmt: skip
        if not any(longer):
            return alike
        return _agreed(channel, alike, lambda: _digests(self._leaves, longer))

    def extent(self, alike: Sequence[bool], place: Place) -> Extent:
        """Decide which bytes this rank keeps.  Local."""
        members = place.members
        at = members.index(place.rank)
        return describe(self._shape, self._leaves, alike, len(members), at)

    def check_unchanged(self) -> None:
        """Raise if an array has changed since the save began.  Local."""
        if self._before is None:
            return
        for leaf in self._leaves:
            if isinstance(leaf.array, DeviceArray):
                leaf.array.ready = None  # what its stream was given since then counts
        changed = (_digests(self._leaves) != self._before).reshape(-1, 2).any(axis=1)
        paths = [leaf.path for leaf, other in zip(self._leaves, changed, strict=True) if other]
        if paths:
            raise UsageError("save", f"changed while it was copied: {', '.join(paths)}",
                             "wait for pending.copied before you write to arrays")  # fmt: skip

    def forget(self) -> None:
        """Let go of the caller's arrays.  Local."""
        self._leaves = ()


def carry_out(
    saving: Saving,
    channel: ControlChannel,
    place: Place,
    slot_set: SlotSet,
    number: int,
    head: Callable[[StripeLayout], Header],
    chunk_bytes: int,
) -> None:
    """Do a save.

    Collective; on any thread.

    Parameters
    ----------
    saving : Saving
        Whose state.
    channel : ControlChannel
        Between the ranks.
    place : Place
        Where this rank stands.
    slot_set : SlotSet
        Its slots.
    number : int
        Which slots it takes.
    head : callable
        Gives a header for a layout.
    chunk_bytes : int
        At most so many in a chunk.

    Raises
    ------
    CheckpointError
        On all ranks alike, the error of one.
    PeerLost, Revoked
        If ranks have died.
    """
    turn = _Turn(saving, channel, place, slot_set, number)
    alike = saving.agree(channel)  # the same state
    held, header = _room(turn, alike, head, chunk_bytes)
    slots = _copied(turn, held, header)
    _coded(turn, header.layout, slots)
    _committed(turn)


class _Turn(NamedTuple):
    """The common arguments of all phases of a save, as of `carry_out`."""

    saving: Saving
    channel: ControlChannel
    place: Place
    slot_set: SlotSet
    number: int


def _room(
    turn: _Turn, alike: Sequence[bool], head: Callable[[StripeLayout], Header], chunk_bytes: int
) -> tuple[list[Extent], Header]:
    """Lay the group out, and have slots for it; gives the extent, in a list.

    The next phase takes it out of the list: nothing else refers to the caller's
    arrays then.
    """
    _, channel, place, slot_set, number = turn
    held = list[Extent]()

    def size() -> Size:
        held.append(turn.saving.extent(alike, place))
        return held[0].size

    said = channel.told("save", size, len(Size._fields), channel.gather)
    header = head(place.layout([Size(*map(int, pair)) for pair in said], chunk_bytes))
    [is_ready] = channel.told("save", lambda: [slot_set.clear(number, header)], 1, channel.least)
    if not is_ready:  # room is taken once all have given theirs back
        channel.taken("save", lambda: slot_set.make(number, header))
    return held, header


def _copied(turn: _Turn, held: list[Extent], header: Header) -> dict[Share, Slot]:
    """Copy the state into slots, and give the caller's arrays back; gives the slots."""
    saving, channel, place, slot_set, number = turn
    layout, here = header.layout, place.nodes[place.rank]
    local = {share for share in layout.shares if layout.ring[share.member] == here}

    def copy() -> dict[Share, Slot]:
        slots = slot_set.map(number, header, local)
        slot_file.write(held.pop(), layout, place.rank, slots)  # the arrays may go then
        saving.check_unchanged()
        saving.forget()
        saving.pending.copied.reach()
        return slots

    return {**channel.taken("save", copy)}


def _coded(turn: _Turn, layout: StripeLayout, slots: Mapping[Share, Slot]) -> None:
    """Say that the data are there, and make the parities."""
    saving, channel, place, slot_set, number = turn

    def prepared() -> Recoding:
        slot_set.mark(number, WRITTEN)
        return recoding_of(layout, slots, place, channel)

    recoding = channel.taken("save", prepared)
    recoding.run(channel.pace(saving.pending.committed.is_awaited))
    channel.taken("save", lambda: slot_set.mark(number, ENCODED))


def _committed(turn: _Turn) -> None:
    """Say that all ranks have it: a fact by now, for each has said that it is coded.

    A header that cannot be written says no less: evidence counts.
    """
    with suppress(CheckpointError):
        turn.slot_set.mark(turn.number, COMMITTED)


def recoding_of(
    layout: StripeLayout, slots: Mapping[Share, Slot], place: Place, channel: ControlChannel
) -> Recoding:
    """Prepare to make the parities of a group.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of the group.
    slots : mapping of Share to Slot
        All that are on this rank's node.
    place : Place
        Where this rank stands.
    channel : ControlChannel
        Between the ranks.

    Returns
    -------
    Recoding
        All ranks of the group run theirs.
    """
    code = Code(layout.data, layout.parity)
    tasks = encoding(layout, code, apart=len(set(layout.ring)) > 1)

    def reaches(rank: int, share: Share) -> bool:
        return layout.ring[share.member] == place.nodes[rank]

    return Recoding(tasks, layout, slots, layout.keeper, reaches, channel)


def _signature(shape: Any, leaves: Sequence[StateLeaf]) -> tuple[int, int]:
    """Give 126 bits of a digest of a tree and the kinds of its entries."""
    kinds = [(leaf.path, leaf.own, leaf.described.get("global_shape")) for leaf in leaves]
    digest = xxhash.xxh3_128(repr((shape, kinds)).encode()).intdigest()
    return digest >> 65, digest & (1 << 63) - 1


def _agreed(
    channel: ControlChannel, alike: tuple[bool, ...], digests: Callable[[], NDArray[np.int64]]
) -> tuple[bool, ...]:
    """Give the leaves that are still alike by their digests.  Collective."""
    same = np.all(_same(channel, digests, 2 * len(alike)).reshape(-1, 2), axis=1)
    return tuple(maybe and bool(equal) for maybe, equal in zip(alike, same, strict=True))


def _same(
    channel: ControlChannel, words: Callable[[], NDArray[np.int64]], count: int
) -> NDArray[np.bool_]:
    """Tell which of so many numbers all ranks have alike.  Collective."""

    def both() -> NDArray[np.int64]:
        found = words()
        return np.concatenate([found, ~found])

    least, greatest = np.split(channel.told("save", both, 2 * count, channel.least), 2)
    return np.asarray(least == ~greatest)


def _digests(
    leaves: Sequence[StateLeaf], chosen: Sequence[bool] | None = None, most: int | None = None
) -> NDArray[np.int64]:
    """Give 128 bits of each leaf, or of its front; zeros if it is not chosen."""
    found = np.zeros((len(leaves), 2), np.int64)
    compared = [at for at in range(len(leaves)) if chosen is None or chosen[at]]
    arrays = (leaves[at].array for at in compared)
    arrivals = DeviceCopies(
        _device_front(array, most) for array in arrays if isinstance(array, DeviceArray)
    )
    for at in compared:
        described, array = leaves[at].described, leaves[at].array
        digest = xxhash.xxh3_128(repr(described).encode())
        for piece in () if array is None else arrivals.of(_front(array, most)):
            digest.update(piece.data)
        found[at] = np.frombuffer(digest.digest(), np.int64)
    return found.reshape(-1)


def _front(array: Array, most: int | None) -> Anywhere:
    """Give about so many of the first bytes of an array, all if not said."""
    if isinstance(array, DeviceArray):
        return _device_front(array, most)
    if most is None or array.nbytes <= most:
        return bytes_of(array)
    count = most // array.itemsize
    return bytes_of(array.reshape(-1)[:count] if array.flags.c_contiguous else array.flat[:count])


def _device_front(array: DeviceArray, most: int | None) -> DeviceBytes:
    """Give as many of the first bytes of an array on a device."""
    size = array.dtype.itemsize
    return DeviceBytes(array)[: None if most is None else most // size * size]


def _told(leaves: Sequence[StateLeaf]) -> str:
    """Name some entries."""
    names = [leaf.path for leaf in leaves[:4]]
    return ", ".join(names) + (", ..." if len(leaves) > len(names) else "")
