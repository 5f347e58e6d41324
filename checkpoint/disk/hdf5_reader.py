"""Reading the file of one node, and nothing that leads elsewhere.

HDF5 can send a reader to other files and through code that it loads: links,
virtual data sets, external storage, filters.  Here a data set is a run of
bytes of the file itself, of which nothing is read before its kind, its place
and its length are checked.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from closeranks.checkpoint.disk.hdf5_writer import (
    BLOCK,
    FORMAT,
    About,
    blocks,
    complete,
    parts,
    sums_of,
)
from closeranks.checkpoint.erasure.crc32c import Sums, crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.state import rank_image
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    import h5py

_T = TypeVar("_T")
#: Longest text that is read.
_MOST_TEXT: Final = 1 << 30
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Blocks that are read at a time.
_AT_ONCE: Final = 32 * BLOCK


class _Run(NamedTuple):
    """A data set: its place in a rank's data and in the file, and its check sums."""

    name: str
    at: int
    nbytes: int
    where: int
    sums: Sums


class _Rank(NamedTuple):
    """The description and the data sets of a rank."""

    text: bytes
    runs: list[_Run]


class Archive:
    """A file, open.  Local; close it.

    Parameters
    ----------
    path : Path
        Its name.

    Attributes
    ----------
    path : Path
        As given.
    about : About
        The header of the file.
    nbytes : int
        Its size.

    Raises
    ------
    CheckpointError
        If it is not complete, damaged, of a newer format, or no such file.
    """

    def __init__(self, path: Path) -> None:
        import h5py

        self.path = path
        self._handle = _opened(path)
        self._file: h5py.File | None = None
        self._ranks: dict[int, _Rank] = {}
        try:
            self.nbytes = os.fstat(self._handle).st_size
            # By its number: what has the name now need not be what was checked.
            name = f"/proc/self/fd/{self._handle}"
            self._file = self._hdf5(lambda: h5py.File(name, "r", locking=False))
            self._groups: dict[str, Any] = {"": self._file.id}
            self._check_format()
            self.about = self._said("about", About.decode, text := self._text("about"))
            self._sums = {rank: self._sums_of(rank) for rank, _, _ in self.about.ranks}
            self._check_complete(text)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it.  Local, harmless twice."""
        file, self._file = self._file, None
        self._groups, self._ranks = {}, {}
        if file is not None:
            file.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def text(self, rank: int) -> bytes:
        """Give the description of a rank.

        Local.

        Parameters
        ----------
        rank : int
            One of the file's.

        Returns
        -------
        bytes
            As `closeranks.checkpoint.state.rank_image.parse` takes it.

        Raises
        ------
        CheckpointError
            If it, or a data set that it names, is not as it says.
        """
        return self._rank(rank).text

    def read(self, rank: int, start: int, target: Bytes) -> None:
        """Read bytes of a rank's data, and check them.

        Local; reads whole blocks of check sums where they begin or end inside of one.

        Parameters
        ----------
        rank : int
            One of the file's.
        start : int
            Where they start in its data.
        target : ndarray of uint8
            Target of the bytes, as many as there is room; bytes in no data set
            are left as they are.

        Raises
        ------
        CheckpointError
            If they are damaged.
        """
        runs, stop = self._rank(rank).runs, start + target.size
        number = max(0, bisect_right(runs, start, key=attrgetter("at")) - 1)
        for run in runs[number:]:
            if run.at >= stop:
                break
            first, last = max(start, run.at), min(stop, run.at + run.nbytes)
            if first < last:
                self._checked(run, first - run.at, target[first - start : last - start])

    def damaged(self) -> list[str]:
        """Look at all check sums.

        Local.

        Returns
        -------
        list of str
            The damaged data sets.
        """
        wrong = []
        scratch = np.empty(_AT_ONCE, np.uint8)
        for rank, _, _ in self.about.ranks:
            try:
                runs = self._rank(rank).runs
            except CheckpointError as error:
                wrong.append(error.problem)
                continue
            for run in runs:
                try:
                    for start in range(0, run.nbytes, _AT_ONCE):
                        self._checked(run, start, scratch[: min(_AT_ONCE, run.nbytes - start)])
                except CheckpointError as error:
                    wrong.append(error.problem)
        return wrong

    def _check_format(self) -> None:
        """Refuse a file that is none of ours, or newer."""
        from h5py import h5a, h5t

        def look() -> int:
            root = self._groups[""]
            if not h5a.exists(root, b"closeranks_format"):
                raise self._problem("no file of closeranks")
            found = h5a.open(root, b"closeranks_format")
            if found.get_type().get_class() != h5t.INTEGER or found.shape != ():
                raise self._problem("a format that is no number")
            number = np.zeros((), np.uint64)
            found.read(number)
            return int(number)

        version = self._hdf5(look)
        if not 1 <= version <= FORMAT:
            problem = f"{self.path}: format {version}, newer than {FORMAT}"
            raise CheckpointError("restore", problem, "use the closeranks that wrote it")

    def _check_complete(self, about: bytes) -> None:
        """Refuse a file that was never finished, or has other sums than it says."""
        mark = self._bytes("complete", 16)
        if not mark.any():
            raise self._problem("not complete: its writer was stopped")
        total = crc32c(about)
        for rank, _, _ in self.about.ranks:
            total = crc32c(self._sums[rank], total)
        if mark.tobytes() != complete(total).tobytes():
            raise self._problem("what it says of itself is damaged")

    def _rank(self, rank: int) -> _Rank:
        """Give the record of a rank, looked up when first asked for."""
        if rank not in self._ranks:
            _, head, body = next(of for of in self.about.ranks if of[0] == rank)
            text = self._text(f"descriptions/{rank:06d}", head)
            every = self._sums[rank].view("<u4")
            if not np.array_equal(sums_of(np.frombuffer(text, np.uint8)), every[: blocks(head)]):
                raise self._problem(f"descriptions/{rank:06d} is damaged")
            name, members = f"descriptions/{rank:06d}", self.about.members
            description = self._said(name, rank_image.parse, text, body)
            found = self._said(name, parts, description, len(members), members.index(rank))
            runs, at = [], blocks(head)
            for part in found:
                of, stop = f"ranks/{rank:06d}/{part.name}", at + blocks(part.nbytes)
                where, _ = self._place(of, part.nbytes)
                runs.append(_Run(of, part.at, part.nbytes, where, every[at:stop]))
                at = stop
            if at != len(every):
                raise self._problem(f"sums/{rank:06d} has {len(every)} sums, not {at}")
            self._ranks[rank] = _Rank(text, runs)
        return self._ranks[rank]

    def _checked(self, run: _Run, start: int, target: Bytes) -> None:
        """Read bytes of a data set, whole blocks at once into the target."""
        stop = start + target.size
        for first in range(start - start % BLOCK, stop, _AT_ONCE):
            last = min(first + _AT_ONCE, -(-stop // BLOCK) * BLOCK, run.nbytes)
            inside = start <= first and last <= stop
            data = (
                target[first - start : last - start] if inside else np.empty(last - first, np.uint8)
            )
            self._read(run.where + first, data)
            if not np.array_equal(sums_of(data), run.sums[first // BLOCK : blocks(last)]):
                raise self._problem(f"{run.name} is damaged")
            if not inside:
                low, high = max(first, start), min(last, stop)
                target[low - start : high - start] = data[low - first : high - first]

    def _sums_of(self, rank: int) -> Bytes:
        """Read the check sums of a rank."""
        _, head, body = next(of for of in self.about.ranks if of[0] == rank)
        name = f"sums/{rank:06d}"
        where, nbytes = self._place(name, None)
        # Data are here but for what lies between them: 63 bytes for each leaf at most.
        if nbytes % 4 or body > self.nbytes + 3 * head:
            raise self._problem(f"{name} of {nbytes} bytes for {body} of data")
        found = np.empty(nbytes, np.uint8)
        self._read(where, found)
        return found

    def _text(self, name: str, nbytes: int | None = None) -> bytes:
        """Read a text."""
        where, found = self._place(name, nbytes)
        if found > _MOST_TEXT:
            raise self._problem(f"{name} of {found} bytes")
        return self._bytes_at(where, found).tobytes()

    def _bytes(self, name: str, nbytes: int) -> Bytes:
        """Read a data set that is so long."""
        return self._bytes_at(self._place(name, nbytes)[0], nbytes)

    def _bytes_at(self, where: int, nbytes: int) -> Bytes:
        """Read some bytes."""
        found = np.empty(nbytes, np.uint8)
        self._read(where, found)
        return found

    def _read(self, at: int, target: Bytes) -> None:
        """Read bytes of the file."""
        left = target.data
        try:
            while left:
                done = os.preadv(self._handle, [left], at)
                if not done:
                    raise self._problem("it ends too early")
                left, at = left[done:], at + done
        except OSError as error:
            raise self._problem(error.strerror or str(error)) from error

    def _place(self, name: str, nbytes: int | None) -> tuple[int, int]:
        """Give place and length of a data set; refuse one stored elsewhere."""
        where, found = self._hdf5(lambda: self._looked_up(name, nbytes))
        return int(where), int(found)

    def _looked_up(self, name: str, nbytes: int | None) -> tuple[int, int]:
        from h5py import h5d, h5t

        found = self._entry(name)
        if not isinstance(found, h5d.DatasetID):
            raise self._problem(f"{name} is no data set")
        plist, kind = found.get_create_plist(), found.get_type()
        for at in range(plist.get_nfilters()):
            raise self._problem(f"{name} goes through filter {plist.get_filter(at)[0]}")
        if plist.get_layout() != h5d.CONTIGUOUS:
            what = {h5d.COMPACT: "compact", h5d.CHUNKED: "in chunks"}
            raise self._problem(f"{name} is {what.get(plist.get_layout(), 'virtual')}")
        if plist.get_external_count():
            raise self._problem(f"{name} is in another file")
        if any(kind.detect_class(of) for of in (h5t.REFERENCE, h5t.VLEN)) or _varies(kind):
            raise self._problem(f"{name} has elements that are references")
        size = found.get_space().get_simple_extent_npoints() * kind.get_size()
        where = found.get_offset()
        if nbytes not in (None, size):
            raise self._problem(f"{name} has {size} bytes, not {nbytes}")
        if size and (where is None or where + size > self.nbytes):
            raise self._problem(f"{name} of {size} bytes ends after the file")
        return where or 0, size

    def _entry(self, name: str) -> Any:
        """Open an object by its name, by plain links alone."""
        from h5py import h5g, h5l, h5o

        above, _, last = name.rpartition("/")
        if above not in self._groups:
            self._groups[above] = self._entry(above)
        group, plain = self._groups[above], last.encode()
        if not isinstance(group, h5g.GroupID) and above:
            raise self._problem(f"{above} is no group")
        if not group.links.exists(plain):
            raise self._problem(f"{name} is not there")
        if group.links.get_info(plain).type != h5l.TYPE_HARD:
            raise self._problem(f"{name} is a link")
        return h5o.open(group, plain)

    def _hdf5(self, look: Callable[[], Any]) -> Any:
        """Ask HDF5; any failure is an error of the file."""
        try:
            return look()
        except CheckpointError:
            raise
        except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
            raise self._problem(f"HDF5 says: {error}") from error

    def _said(self, name: str, read: Callable[..., _T], *arguments: Any) -> _T:
        """Read a text."""
        try:
            return read(*arguments)
        except CheckpointError as error:
            raise self._problem(f"{name}: {error.problem}") from error

    def _problem(self, what: str) -> CheckpointError:
        """Give the error for a problem of the file."""
        return CheckpointError("restore", f"{self.path}: {what}", "it is left out")


def _opened(path: Path) -> int:
    """Open a plain file of this user's, without following a link."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        raise CheckpointError("restore", f"{path}: {error.strerror}", "it is left out") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(handle)
        raise CheckpointError("restore", f"{path}: not a file of this user", "it is left out")
    return handle


def _varies(kind: Any) -> bool:
    """Tell whether elements are texts that lie elsewhere."""
    from h5py import h5t

    return kind.get_class() == h5t.STRING and bool(kind.is_variable_str())
