"""A vector of which few entries are stored: indices, and values or rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closeranks.comms import argument
from closeranks.comms.gpu.array_place import DevicePlace, arrays_on_host, placed, seen
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from typing_extensions import Self

_WHERE: Final = "SparseVector"


class SparseVector:
    """Entries of a vector of ``length`` entries, or of rows of a matrix.

    Local.  Arrays are kept, not copied, where their type allows.  Indices and
    values may lie on a device, each or both; what a call returns lies where that
    of this rank lay.

    Parameters
    ----------
    indices : array_like of int, shape (nnz,)
        Which entries, in any order; of any integer type.  An index may come
        more than once: a call combines such entries by its op.  Of indices on a
        device the host makes a copy, to check them.
    values : array_like, shape (nnz,) or (nnz, width)
        A value of each, or a row.
    length : int
        Entries of the vector, below 2^62.

    Attributes
    ----------
    indices : ndarray of int64, shape (nnz,)
        Which entries.
    values : ndarray
        As given.
    length : int
        Entries of the vector.

    Raises
    ------
    UsageError
        If an index is no integer or outside of the vector, or if there are
        more or fewer values than indices.
    """

    __slots__ = ("indices", "length", "values")

    def __init__(self, indices: ArrayLike, values: ArrayLike, length: int) -> None:
        self.length = argument.whole(_WHERE, "length", length)
        self.values = _kept(values)
        self.indices = _read_indices(indices, self.length)
        shape = self.values.shape
        if len(shape) not in (1, 2):
            raise UsageError(_WHERE, f"values of shape {shape}", "give (nnz,) or (nnz, width)")
        if len(shape) == 2 and not shape[1]:
            raise UsageError(_WHERE, "rows of width 0", "give rows of one value at least")
        if shape[0] != len(self.indices):
            raise UsageError(
                _WHERE,
                f"{len(self.indices)} indices and {shape[0]} values",
                "give one value or row for each index",
            )

    @classmethod
    def of_result(cls, indices: Any, values: Any, length: int) -> Self:
        """Make one of arrays that need no check, on the host or a device.  Local."""
        made = cls.__new__(cls)
        made.indices, made.values, made.length = indices, values, length
        return made

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return len(self.indices)

    @property
    def width(self) -> int:
        """Values of an entry; 1 where it is no row."""
        shape = self.values.shape
        return 1 if len(shape) == 1 else int(shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value."""
        found: np.dtype[Any] = seen(self.values, _WHERE).dtype
        return found

    def __repr__(self) -> str:
        rows = "" if len(self.values.shape) == 1 else f", rows of {self.width}"
        return f"<SparseVector: {self.nnz} of {self.length} entries of {self.dtype}{rows}>"

    def to_dense(self) -> NDArray[Any]:
        """Return the vector, shape (length,) or (length, width).

        Local.  Entries of equal index are added; entries that are not stored
        are 0.  The vector lies where the values lie.
        """
        indices, values, _, place = pairs_on_host(self, "SparseVector.to_dense")
        dense = np.zeros((self.length, *values.shape[1:]), values.dtype)
        if (indices[1:] > indices[:-1]).all():
            dense[indices] = values
        else:
            np.add.at(dense, indices, values)
        found: NDArray[Any] = placed(dense, place)
        return found

    @classmethod
    def from_dense(cls, x: ArrayLike, block: int = 1) -> SparseVector:
        """Store the entries of a vector that are not 0.

        Local.

        Parameters
        ----------
        x : array_like, 1-D
            The vector.  A NaN is not 0.
        block : int
            With 1, each entry that is not 0 is stored.  Else each run of so
            many entries that are not all 0 is one row; the last run is padded
            with 0.

        Returns
        -------
        SparseVector
            Of length ``len(x)``, or of one index a block, with rows; on a device
            where ``x`` lies on one.

        References
        ----------
        Fei and others, Efficient Sparse Collective Communication and its
        Application to Accelerate Distributed Deep Learning, SIGCOMM 2021 (blocks).
        """
        call = "SparseVector.from_dense"
        width = argument.whole(call, "block", block, least=1)
        (given,), (place,) = arrays_on_host([x], call)
        dense = argument.array(call, "x", given)
        if dense.ndim != 1:
            raise UsageError(call, f"x of shape {dense.shape}", "give a 1-D array")
        if width == 1:
            where = np.flatnonzero(dense)
            return cls.of_result(placed(where, place), placed(dense[where], place), len(dense))
        blocks = -(-len(dense) // width)
        padded = dense
        if blocks * width > len(dense):
            padded = np.zeros(blocks * width, dense.dtype)
            padded[: len(dense)] = dense
        rows = padded.reshape(blocks, width)
        where = np.flatnonzero((rows != 0).any(axis=1))
        return cls.of_result(placed(where, place), placed(rows[where], place), blocks)

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseVector:
        """Store what a sparse matrix of SciPy stores.

        Local; matrices on devices are refused.

        Parameters
        ----------
        matrix : scipy.sparse array or matrix
            Of shape (length,) or (1, length): a vector.  Of shape (length, width):
            each row of which an entry is stored is one row, with 0 elsewhere.

        Returns
        -------
        SparseVector
            With explicit zeros where the matrix stores zeros of a vector.
        """
        if not hasattr(matrix, "tocoo") or len(getattr(matrix, "shape", ())) not in (1, 2):
            raise UsageError(
                "SparseVector.from_scipy",
                f"{argument.shown(matrix)} is no sparse matrix",
                "give one of scipy.sparse with one or two dimensions",
            )
        given = matrix.reshape(1, -1).tocoo() if len(matrix.shape) == 1 else matrix.tocoo()
        if not isinstance(given.data, np.ndarray):
            raise UsageError("SparseVector.from_scipy", "a matrix on a GPU", "give matrix.get()")
        rows, columns = given.row.astype(np.int64), given.col.astype(np.int64)
        if given.shape[0] == 1:
            return cls(columns, given.data, given.shape[1])
        where, place = np.unique(rows, return_inverse=True)
        values = np.zeros((len(where), matrix.shape[1]), given.data.dtype)
        np.add.at(values, (place, columns), given.data)
        return cls(where, values, matrix.shape[0])

    def to_scipy(self) -> csr_array:
        """Return a CSR array of SciPy: shape (1, length), or (length, width) for rows.

        Local; vectors on devices are refused.  Needs SciPy.
        """
        if not all(isinstance(one, np.ndarray) for one in (self.indices, self.values)):
            raise UsageError("SparseVector.to_scipy", "a vector on a GPU",
                             "copy its arrays by cupy.asnumpy")  # fmt: skip
        from scipy.sparse import coo_array

        if self.values.ndim == 1:
            place = (np.zeros(self.nnz, np.int64), self.indices)
            return coo_array((self.values, place), shape=(1, self.length)).tocsr()
        rows = np.repeat(self.indices, self.width)
        columns = np.tile(np.arange(self.width), self.nnz)
        shape = (self.length, self.width)
        return coo_array((self.values.reshape(-1), (rows, columns)), shape=shape).tocsr()


class HostPairs(NamedTuple):
    """Arrays of a vector on the host, and where its own ones lie.

    Attributes
    ----------
    indices : ndarray of int64, shape (nnz,)
        Which entries.
    values : ndarray, shape (nnz,) or (nnz, width)
        A value of each, or a row.
    index_place, value_place : DevicePlace or None
        Where the vector has its indices and its values; None for the host.
    """

    indices: NDArray[np.int64]
    values: NDArray[Any]
    index_place: DevicePlace | None
    value_place: DevicePlace | None


def pairs_on_host(vector: SparseVector, where: str) -> HostPairs:
    """Copy to the host what a vector has on a device; the host waits for that.

    Local.

    Parameters
    ----------
    vector : SparseVector
        Any.
    where : str
        The call, for the text of an error.

    Returns
    -------
    HostPairs
        The vector's own arrays where these are the host's.
    """
    arrays, places = arrays_on_host([vector.indices, vector.values], where)
    return HostPairs(*arrays, *places)


def _kept(values: Any) -> Any:
    """Keep values where they are."""
    found = seen(values, _WHERE)
    return values if isinstance(found, DeviceArray) else argument.array(_WHERE, "values", found)


def _read_indices(given: Any, length: int) -> Any:
    """Check indices; keep them where they are if they are int64."""
    (found,), (place,) = arrays_on_host([given], _WHERE)
    indices = _checked_indices(argument.array(_WHERE, "indices", found), length)
    if place is None:
        return indices
    return given if indices is found else placed(indices, place)


def _checked_indices(indices: NDArray[Any], length: int) -> NDArray[np.int64]:
    if indices.size == 0 and indices.ndim == 1:
        return np.empty(0, np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise UsageError(
            _WHERE,
            f"indices of {indices.dtype} and shape {indices.shape}",
            "give whole numbers, shape (nnz,)",
        )
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= length:
        wrong = low if low < 0 else high
        raise UsageError(_WHERE, f"index {wrong} of a vector of length {length}",
                         f"give indices from 0 to {length - 1}")  # fmt: skip
    return indices.astype(np.int64, copy=False)
