"""A layout: the part of a global array that each rank of a mesh holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.errors import UsageError
from closeranks.partitioning.layout.box import Bounds, shape_of, slices
from closeranks.partitioning.layout.placements import AxisPlacement, Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh


class Layout:
    """The part of a global array that each rank of a mesh holds.

    Immutable and local.  A part may be empty: it is still a part, of length 0.

    Parameters
    ----------
    global_shape : sequence of int
        Shape of the whole array; lengths of 0 are allowed.
    placements : sequence of Split, Broadcast or Partial
        One an axis of the mesh, in its order.  Several mesh axes may split one
        array axis: the outer one first, each as ``np.array_split`` does.
    mesh : Mesh
        The ranks.
    cuts : mapping of int to sequence of int, optional
        Array axis -> where its parts begin and end, instead of equal parts:
        positions from 0 to the length, not descending, one more than parts.
        The parts go to the members in order, row-major over the mesh axes that
        split it.

    Attributes
    ----------
    global_shape : tuple of int
        As given.
    placements : tuple
        As given, array axes counted from 0.
    mesh : Mesh
        As given.
    bounds : tuple of ndarray
        Array axis -> where its parts begin, and the end; shape (parts + 1,).
    splitters : tuple of tuple of int
        Array axis -> indices of the mesh axes that split it, outer first.

    Raises
    ------
    UsageError
        If placements, axes or cuts do not fit.

    Examples
    --------
    >>> mesh = Mesh({"row": 2, "column": 2})
    >>> layout = Layout((6, 5), [Split(0), Split(1)], mesh=mesh)
    >>> layout.box(3), layout.local_shape(3)
    ((slice(3, 6, None), slice(3, 5, None)), (3, 2))
    """

    __slots__ = ("bounds", "cuts", "global_shape", "mesh", "placements", "splitters")

    def __init__(
        self,
        global_shape: Sequence[int],
        placements: Sequence[AxisPlacement],
        *,
        mesh: Mesh,
        cuts: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.global_shape = _checked_shape(global_shape)
        argument.instance("Layout", "mesh", mesh, Mesh, "give a Mesh")
        self.mesh = mesh
        self.placements = _checked_placements(placements, mesh, len(self.global_shape))
        self.splitters = tuple(
            tuple(at for at, how in enumerate(self.placements) if how == Split(axis))
            for axis in range(len(self.global_shape))
        )
        self.cuts = MappingProxyType(_checked_cuts(cuts, self.global_shape, self._parts()))
        self.bounds = tuple(
            self.cuts.get(axis, _even_bounds(length, [mesh.shape[at] for at in splitters]))
            for axis, (length, splitters) in enumerate(
                zip(self.global_shape, self.splitters, strict=True)
            )
        )

    def _parts(self) -> tuple[int, ...]:
        """Give how many parts each array axis has."""
        shape = self.mesh.shape
        return tuple(
            int(np.prod([shape[at] for at in axes], dtype=np.int64)) for axes in self.splitters
        )

    def part(self, rank: int) -> tuple[int, ...]:
        """Give which part of each array axis a rank holds.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            Array axis -> number of the part; 0 for an axis that is not split.
        """
        at = self.mesh.coordinates(rank)
        shape = self.mesh.shape
        found = []
        for axes in self.splitters:
            number = 0
            for axis in axes:
                number = number * shape[axis] + at[axis]
            found.append(number)
        return tuple(found)

    def bounds_of(self, rank: int) -> Bounds:
        """Give the start and stop of a rank's part on each array axis.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of (int, int)
            One pair an array axis.
        """
        return tuple(
            (int(cuts[number]), int(cuts[number + 1]))
            for cuts, number in zip(self.bounds, self.part(rank), strict=True)
        )

    def box(self, rank: int) -> tuple[slice, ...]:
        """Give the index of a rank's part in the global array.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of slice
            One an array axis.

        Raises
        ------
        UsageError
            If there is no such rank.
        """
        return slices(self.bounds_of(rank))

    def offset(self, rank: int) -> tuple[int, ...]:
        """Give where a rank's part starts, as `closeranks.checkpoint.Shard` takes it.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            One an array axis.
        """
        return tuple(start for start, _ in self.bounds_of(rank))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Give the shape of a rank's part.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            One an array axis; 0 is allowed.
        """
        return shape_of(self.bounds_of(rank))

    def __eq__(self, other: object) -> bool:
        """Compare what every rank holds: shape, placements, mesh and bounds."""
        if not isinstance(other, Layout):
            return NotImplemented
        same = self.global_shape == other.global_shape and self.placements == other.placements
        same = same and self.mesh == other.mesh
        pairs = zip(self.bounds, other.bounds, strict=True) if same else ()
        return same and all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        """Hash shape, placements and mesh."""
        return hash((self.global_shape, self.placements, self.mesh))

    def __repr__(self) -> str:
        cuts = (
            f", cuts={ {axis: at.tolist() for axis, at in self.cuts.items()} }" if self.cuts else ""
        )
        said = ", ".join(map(repr, self.placements))
        return f"Layout({self.global_shape}, [{said}], mesh={self.mesh}{cuts})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the layout was made of."""
        cuts = {axis: at.tolist() for axis, at in self.cuts.items()}
        return _remade, (self.global_shape, self.placements, self.mesh, cuts)


def _remade(
    shape: tuple[int, ...], placements: tuple[AxisPlacement, ...], mesh: Mesh,
    cuts: dict[int, list[int]],
) -> Layout:  # fmt: skip
    """Unpickle."""
    return Layout(shape, placements, mesh=mesh, cuts=cuts)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    """Read a global shape."""
    try:
        lengths = tuple(shape)
    except TypeError:
        raise UsageError("Layout", f"global_shape is {argument.shown(shape)}",
                         "give the lengths of the whole array") from None  # fmt: skip
    if len(lengths) > 32:
        raise UsageError("Layout", f"{len(lengths)} axes", "give at most 32")
    return tuple(argument.whole("Layout", "a length of global_shape", n) for n in lengths)


def _checked_placements(
    placements: Any, mesh: Mesh, ndim: int
) -> tuple[AxisPlacement, ...]:  # fmt: skip
    """Read one placement a mesh axis."""
    remedy = f"give one of Split(axis), Broadcast(), Partial(op) for each of {', '.join(mesh.axes)}"
    if isinstance(placements, (Split, Broadcast, Partial)):
        placements = [placements]
    if not isinstance(placements, Sequence):
        raise UsageError("Layout", f"placements are {argument.shown(placements)}", remedy)
    if len(placements) != len(mesh.axes):
        raise UsageError("Layout", f"{len(placements)} placements for {mesh}", remedy)
    found: list[AxisPlacement] = []
    for how in placements:
        argument.instance("Layout", "a placement", how, (Split, Broadcast, Partial), remedy)
        if isinstance(how, Split):
            if not -ndim <= how.axis < ndim:
                raise UsageError("Layout", f"{how} of an array with {ndim} axes",
                                 f"choose an axis of {-ndim}..{ndim - 1}")  # fmt: skip
            how = Split(int(how.axis) % ndim)
        found.append(how)
    ops = sorted({how.op for how in found if isinstance(how, Partial)})
    if len(ops) > 1:
        raise UsageError("Layout", f"Partial ops {' and '.join(ops)} in one layout",
                         "give all Partial the same op")  # fmt: skip
    return tuple(found)


def _checked_cuts(
    cuts: Any, shape: tuple[int, ...], parts: tuple[int, ...]
) -> dict[int, npt.NDArray[np.int64]]:
    """Read uneven parts; refuse positions that do not make up an axis."""
    if cuts is None:
        return {}
    argument.instance("Layout", "cuts", cuts, Mapping, "give array axis -> positions")
    found: dict[int, npt.NDArray[np.int64]] = {}
    for key, positions in cuts.items():
        axis = argument.whole("Layout", "axis of cuts", key, least=-len(shape), below=len(shape))
        axis %= len(shape)
        try:
            at = np.asarray(positions)
        except (TypeError, ValueError):
            at = np.empty(0)
        remedy = (
            f"{parts[axis]} parts: give {parts[axis] + 1} whole numbers from 0 to "
            f"{shape[axis]}, not descending"
            if parts[axis] > 1
            else f"no mesh axis splits array axis {axis}: leave it out"
        )
        right = at.shape == (parts[axis] + 1,) and at.dtype.kind in "iu" and axis not in found
        at = at.astype(np.int64) if right else at
        right = right and at[0] == 0 and at[-1] == shape[axis] and bool((np.diff(at) >= 0).all())
        if not right:
            raise UsageError(
                "Layout", f"cuts of axis {axis} are {argument.shown(positions)}", remedy
            )
        at.setflags(write=False)
        found[axis] = at
    return found


def _even_bounds(length: int, counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Split a length as ``np.array_split`` does, again for each further count."""
    bounds = np.array([0, length], dtype=np.int64)
    for count in counts:
        starts, lengths = bounds[:-1, None], np.diff(bounds)[:, None]
        number = np.arange(count, dtype=np.int64)[None, :]
        inner = starts + number * (lengths // count) + np.minimum(number, lengths % count)
        bounds = np.append(inner.reshape(-1), length)
    bounds.setflags(write=False)
    return bounds
