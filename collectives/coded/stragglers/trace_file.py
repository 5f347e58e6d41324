"""The file of a trace: seconds that each rank computed in each round.

HDF5, read by any tool::

    /           attributes: closeranks_trace, the format; n; micro; hosts
    /compute_s  float64 (rounds, n): seconds that a rank computed in a round
    /step_s     float64 (rounds, n): seconds from the begin of a round to the
                begin of the next, 0 where nobody knows

``micro`` is the number of micro-batches of a round, 0 if it is not known;
``hosts`` is one text with a line for each rank, as JSON.  The file is closed
after each block of rounds: whoever is killed between two blocks leaves a file
that can be read.  A reader follows no links, loads no filters, and takes
nothing for granted.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import real_numbers
from closeranks.comms import argument
from closeranks.errors import UsageError

if TYPE_CHECKING:
    import h5py

#: Of the file.
FORMAT: Final = 1
#: Rounds of a chunk.
_CHUNK: Final = 64
#: Ranks and rounds that a file may tell of.
_MOST_RANKS: Final = 1 << 24
_MOST_ROUNDS: Final = 1 << 40
#: Seconds beyond which sums over all ranks, and their squares, would overflow.
_MOST_S: Final = 1e30
#: Bytes of the text with the hosts.
_MOST_TEXT: Final = 1 << 26
#: Bytes of rounds that are read at once.
_AT_ONCE: Final = 1 << 30
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_T = TypeVar("_T")
Seconds = NDArray[np.float64]


class TraceData(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    compute_s : ndarray, shape (rounds, n), dtype float64
        Seconds that a rank computed in a round.
    step_s : ndarray, shape (rounds, n), dtype float64
        Seconds from the begin of a round to the begin of the next; 0 if unknown.
    micro : int
        Micro-batches of a round; 0 if unknown.
    hosts : tuple of str
        Rank -> its host; empty if unknown.
    """

    compute_s: Seconds
    step_s: Seconds
    micro: int
    hosts: tuple[str, ...]


class TraceWriter:
    """A new trace, block by block.  Local: one process writes it.

    Parameters
    ----------
    path : str or Path
        The file; one of this name is replaced.
    n : int
        Ranks.
    micro : int, optional
        Micro-batches of a round; 0 if unknown.
    hosts : sequence of str, optional
        Rank -> its host; none if unknown.

    Raises
    ------
    UsageError
        If an argument is not as said, or the file cannot be written.
    """

    def __init__(
        self, path: str | Path, n: int, *, micro: int = 0, hosts: Sequence[str] = ()
    ) -> None:
        where = "TraceWriter"
        self.path = file_path(where, path)
        self.n = argument.whole(where, "n", n, least=1, below=_MOST_RANKS + 1)
        micro = argument.whole(where, "micro", micro)
        self._names = [str(host) for host in hosts]
        if len(self._names) not in (0, self.n):
            raise UsageError(where, f"{len(self._names)} hosts", f"give {self.n}, or none")
        self.rounds = 0
        self._create(micro)

    def append(self, compute_s: Any, step_s: Any = None) -> None:
        """Write some rounds more.

        Parameters
        ----------
        compute_s : array_like, shape (k, n)
            Round, rank -> seconds that it computed.
        step_s : array_like, shape (k, n), optional
            Seconds from the begin of a round to the begin of the next; 0 where
            nobody knows.

        Raises
        ------
        UsageError
            If the shape is another one, a number is negative or above 1e30, or
            the file cannot be written.
        """
        block = self._block("compute_s", compute_s)
        steps = np.zeros_like(block) if step_s is None else self._block("step_s", step_s)
        if len(block) != len(steps):
            problem = f"compute_s has {len(block)} rounds, step_s {len(steps)}"
            raise UsageError("TraceWriter.append", problem, "give as many")
        if not len(block):
            return

        def write() -> None:
            import h5py

            handle = os.open(self.path, os.O_RDWR | _FLAGS)
            try:
                name = f"/proc/self/fd/{handle}"
                with closing(h5py.File(name, "r+", locking=False)) as file:
                    last = self.rounds + len(block)
                    for name, rows in (("compute_s", block), ("step_s", steps)):
                        file[name].resize(last, axis=0)
                        file[name][self.rounds : last] = rows
            finally:
                os.close(handle)

        self._trying(write)
        self.rounds += len(block)

    def _create(self, micro: int) -> None:
        """Make the file, without rounds."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")

        def make() -> None:
            import h5py

            try:
                with closing(h5py.File(temporary, "x", locking=False)) as file:
                    file.attrs["closeranks_trace"] = FORMAT
                    file.attrs["n"] = self.n
                    file.attrs["micro"] = micro
                    # An attribute is limited to 64 KiB, a data set is not.
                    text = np.frombuffer(json.dumps(self._names).encode(), np.uint8)
                    file.create_dataset("hosts", data=text)
                    for name in ("compute_s", "step_s"):
                        file.create_dataset(
                            name, (0, self.n), "f8", maxshape=(None, self.n),
                            chunks=(_CHUNK, self.n),
                        )  # fmt: skip
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)

        self._trying(make)

    def _block(self, name: str, rows: Any) -> Seconds:
        """Read rounds of a caller."""
        where, remedy = "TraceWriter.append", f"give finite seconds of shape (rounds, {self.n})"
        try:
            block = real_numbers(rows)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(where, f"{name} is {argument.shown(rows)}", remedy) from None
        if block.ndim != 2 or block.shape[1] != self.n:
            raise UsageError(where, f"{name} has shape {block.shape}", remedy)
        if not _are_times(block).all():
            raise UsageError(where, f"{name} has a number that is no time", remedy)
        return block

    def _trying(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, RuntimeError, LookupError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            problem = f"{self.path} cannot be written: {why}"
            raise UsageError("TraceWriter", problem, "name another file") from error


def read_trace(path: str | Path) -> TraceData:
    """Read a trace.

    Local.

    Parameters
    ----------
    path : str or Path
        Its file.

    Returns
    -------
    TraceData
        All rounds.

    Raises
    ------
    UsageError
        With the path: if there is no such file, it is no trace, or a newer one,
        or it has a number that is NaN, negative or above 1e30, or it is shorter
        than it says, or has no rounds.
    """
    path = file_path("trace", path)
    handle = _opened(path)
    try:
        return _TraceReader(path, handle).read()
    finally:
        os.close(handle)


class _TraceReader:
    """Reads one open file."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle
        self._nbytes = os.fstat(handle).st_size

    def read(self) -> TraceData:
        """Read all of it."""
        import h5py

        # By its number: what has the name now need not be what was opened.
        name = f"/proc/self/fd/{self._handle}"
        with closing(self._hdf5(lambda: h5py.File(name, "r", locking=False))) as file:
            version = self._whole(file, "closeranks_trace")
            if version > FORMAT:
                raise UsageError(
                    "trace", f"{self._path}: format {version}, newer than {FORMAT}",
                    "use the closeranks that wrote it",
                )  # fmt: skip
            n, micro = self._whole(file, "n"), self._whole(file, "micro")
            if version < 1 or not 1 <= n <= _MOST_RANKS:
                raise self._problem(f"format {version} of {n} ranks")
            compute = self._rows(file, "compute_s", n)
            step = self._rows(file, "step_s", n)
            hosts = self._hosts(file, n)
        if len(compute) != len(step):
            raise self._problem(f"{len(compute)} rounds, but {len(step)} of them with steps")
        if not len(compute):
            raise self._problem("it has no rounds")
        return TraceData(compute, step, micro, hosts)

    def _whole(self, file: h5py.File, name: str) -> int:
        """Read an attribute that is a whole number."""

        def look() -> int:
            from h5py import h5a, h5t

            if not h5a.exists(file.id, name.encode()):
                raise self._problem("no trace of closeranks")
            found = h5a.open(file.id, name.encode())
            if found.get_type().get_class() != h5t.INTEGER or found.shape != ():
                raise self._problem(f"its {name} is no number")
            number = np.zeros((), np.int64)
            found.read(number)
            return int(number)

        return self._hdf5(look)

    def _rows(self, file: h5py.File, name: str, n: int) -> Seconds:
        """Read the seconds of all rounds."""

        def look() -> Seconds:
            data = self._data_set(file, name, "f8", 2)
            rounds, ranks = data.shape
            if ranks != n or rounds > min(_MOST_ROUNDS, _AT_ONCE // (8 * n)):
                raise self._problem(f"{name} of {rounds} rounds and {ranks} ranks")
            if rounds * ranks * 8 > min(self._nbytes, data.id.get_storage_size()):
                raise self._problem(f"it is short: {name} of {rounds} rounds is not in it")
            found: Seconds = np.asarray(data[...], np.float64)
            return found

        found = self._hdf5(look)
        wrong = ~_are_times(found)
        if wrong.any():
            round, rank = (int(axis[0]) for axis in np.nonzero(wrong))
            what = f"{name} of rank {rank} in round {round + 1} is {found[round, rank]}"
            raise self._problem(what)
        return found

    def _hosts(self, file: h5py.File, n: int) -> tuple[str, ...]:
        """Read the names of the hosts."""

        def look() -> tuple[str, ...]:
            data = self._data_set(file, "hosts", "u1", 1)
            if data.size > min(self._nbytes, _MOST_TEXT):
                raise self._problem(f"hosts of {data.size} bytes")
            names = json.loads(np.asarray(data[...], np.uint8).tobytes() or b"[]")
            if not isinstance(names, list) or len(names) not in (0, n):
                raise self._problem("it does not name a host for each rank")
            return tuple(map(str, names))

        return self._hdf5(look)

    def _data_set(self, file: h5py.File, name: str, kind: str, axes: int) -> h5py.Dataset:
        """Open a data set that is in the file itself, without filters."""
        from h5py import Dataset, h5d, h5l

        plain = name.encode()
        if not file.id.links.exists(plain):
            raise self._problem(f"{name} is not there")
        if file.id.links.get_info(plain).type != h5l.TYPE_HARD:
            raise self._problem(f"{name} is a link")
        data = file[name]
        if not isinstance(data, Dataset) or data.ndim != axes:
            raise self._problem(f"{name} is no data set of {axes} axes")
        if data.dtype.newbyteorder("=") != np.dtype(kind):
            raise self._problem(f"{name} has elements of {data.dtype}")
        made = data.id.get_create_plist()
        outside = made.get_layout() == h5d.VIRTUAL or made.get_external_count()
        if outside or made.get_nfilters():
            raise self._problem(f"{name} is in another file, or goes through a filter")
        return data

    def _hdf5(self, look: Callable[[], _T]) -> _T:
        """Ask HDF5; any failure is an error of the file."""
        try:
            return look()
        except UsageError:
            raise
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, RecursionError) as error:
            raise self._problem(f"it cannot be read: {error}") from error

    def _problem(self, what: str) -> UsageError:
        return bad_trace(self._path, what)


def file_path(where: str, given: Any) -> Path:
    """Read the path of a file.

    Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    given : str or Path
        The argument's value.

    Returns
    -------
    Path
        The same.

    Raises
    ------
    UsageError
        If it is no path, or names no file.
    """
    found = Path()
    if isinstance(given, str | os.PathLike):
        with suppress(TypeError):  # a path of bytes
            found = Path(given)
    if not found.name:
        raise UsageError(where, f"path is {argument.shown(given)}", "name a file")
    return found


def _are_times(seconds: Seconds) -> NDArray[np.bool_]:
    return np.asarray((seconds >= 0) & (seconds <= _MOST_S))


def bad_trace(path: Path, what: str) -> UsageError:
    """Give the error for a trace.  Local.

    Parameters
    ----------
    path : Path
        Its file.
    what : str
        The problem.

    Returns
    -------
    UsageError
        To be raised.
    """
    return UsageError("trace", f"{path}: {what}", "record it anew, or name another file")


def _opened(path: Path) -> int:
    """Open a plain file, without following a link."""
    try:
        handle = os.open(path, os.O_RDONLY | _FLAGS)
    except (OSError, ValueError) as error:
        raise bad_trace(path, getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise bad_trace(path, "no plain file")
    return handle
