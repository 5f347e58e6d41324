"""Files in memory that the ranks of a node share.

A file lives in ``/dev/shm/closeranks-<uid>``, a folder of this user alone.
Its pages are allocated before it is mapped: a full /dev/shm is an error with
a number, never a SIGBUS.  Its name goes when all ranks have mapped it.

Until then the process that makes the file holds a lock on it.  If that
process is killed, the kernel releases the lock.  The next process that makes
a file then removes the abandoned one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.shm.pages import enlarge, map_into, mapping, populate, region, reserve
from closeranks.comms.shm.shared_folder import ROOT, folder
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_NAME = re.compile(r"\d+-[0-9a-f]{16}")
#: As many as such a name never has.
_NAME_BYTES = 64
#: How long a file may be without a lock while it is made, seconds; far more than it takes.
_UNLOCKED_S = 60.0


class SharedFile:
    """A mapped file in node memory; all bytes are zero at first.

    Made by `create` and `attach`, or by `share` on all ranks of a node at once.

    Parameters
    ----------
    path : Path
        Its name, which may be gone already.
    memory : mmap
        Its bytes, mapped shared and writable.
    found, start
        Its status from the file system, and its offset in the memory.

    Attributes
    ----------
    path : Path
        As given.
    nbytes : int
        Its size.
    """

    def __init__(
        self, path: Path, memory: mmap.mmap, found: os.stat_result | None = None, start: int = 0
    ) -> None:
        self.path, self._found, self._start = path, found, start
        self.nbytes = len(memory) if found is None else found.st_size
        self._memory: mmap.mmap | None = memory
        self._maker: int | None = None

    @classmethod
    def create(
        cls,
        nbytes: int,
        *,
        root: Path | None = None,
        name: str | None = None,
        whole: bool = True,
        asked: int | None = None,
        front: bytes = b"",
    ) -> SharedFile:
        """Make a new file of ``nbytes`` zero bytes and map it.

        Local.  Removes files whose makers died before all ranks had mapped them.

        Parameters
        ----------
        nbytes : int
            Its size, at least 1.
        root : Path, optional
            The file system in memory; /dev/shm.
        name : str, optional
            Replaces the file of this name; the file then outlives this process.
        whole : bool
            Map all pages now, not each at its first touch.
        asked : int, optional
            How many bytes get their pages now, the others by `ask`.  Default: all.
        front : bytes
            First bytes, instead of zeros; written before the file has its name.

        Raises
        ------
        UsageError
            If ``nbytes`` is not positive.
        Unavailable
            If node memory is full, or the folder cannot be trusted.
        """
        _check_size(nbytes)
        with _new(nbytes, root or ROOT, name, front) as handle, ExitStack() as undone:
            undone.callback(Path(str(handle.name)).unlink)
            made = cls._mapped(handle)
            undone.callback(made.close)
            made.ask(0, nbytes if asked is None else asked)
            if whole:
                map_into(handle, made._addresses, made._start, whole=True)
            undone.pop_all()
        made._maker = os.getpid() if name is None else None
        return made

    @staticmethod
    def reading(path: Path) -> FileIO:
        """Open a file for a look before it is mapped; the caller closes it.

        Local.

        Parameters
        ----------
        path : Path
            Must be a plain file of this user, else `Unavailable` is raised.
        """
        return _old(path, None)

    @classmethod
    def attach(cls, path: Path, nbytes: int, *, whole: bool = True) -> SharedFile:
        """Map a file that another rank of this node has made.

        Local.

        Parameters
        ----------
        path : Path
            Its name.
        nbytes : int
            The size it must have.
        whole : bool
            Map all pages now, not each at its first touch.

        Raises
        ------
        Unavailable
            If it is missing, not this user's, no plain file or of another size.
        """
        with _old(path, nbytes) as handle:
            return cls._mapped(handle, whole=whole)

    @classmethod
    def _mapped(cls, handle: FileIO, *, whole: bool = False) -> SharedFile:
        """Map all of a file, at a place where it may have large pages."""
        memory, start = region(handle)
        map_into(handle, memory, start, whole=whole)
        return cls(Path(str(handle.name)), memory, os.fstat(handle.fileno()), start)

    def ask(self, first: int, last: int) -> None:
        """Give a part its pages, for all processes.  Local; its contents stay.

        Parameters
        ----------
        first, last : int
            Its first byte, and the first byte after it.

        Raises
        ------
        Unavailable
            If node memory is full.
        """
        with _old(self.path, self.nbytes) as handle:
            enlarge(handle, self._addresses, self._start, first, last)
            reserve(handle, first, last - first)  # only pages that are missing

    @property
    def array(self) -> NDArray[np.uint8]:
        """All bytes, as an array of shape (nbytes,) and dtype uint8.

        The memory lives as long as any such array does.
        """
        return np.frombuffer(self._addresses, np.uint8, self.nbytes, self._start)

    @property
    def _addresses(self) -> mmap.mmap:
        """The mapping, with the addresses set aside around it."""
        if self._memory is None:
            raise UsageError("shared memory", f"{self.path} is closed", "use it before close()")
        return self._memory

    def is_named(self) -> bool:
        """Tell whether its name still leads to it.  Local."""
        try:
            return self._found is not None and os.path.samestat(self._found, self.path.lstat())
        except FileNotFoundError:
            return False

    def unlink(self) -> None:
        """Remove the name; the bytes stay for processes that have mapped them.

        Local; harmless twice.  Only the process that made the file removes it, not
        a forked child.
        """
        if self._maker == os.getpid():
            self._maker = None
            self.path.unlink(missing_ok=True)

    def discard(self, start: int) -> None:
        """Give the bytes from ``start`` on back to the system, for all processes.

        Local; they read as zeros afterwards.

        Parameters
        ----------
        start : int
            The first byte, at a whole page.
        """
        if self._memory is not None and start < self.nbytes:
            at = self._start + start
            self._memory.madvise(mmap.MADV_REMOVE, at, self.nbytes - start)

    def close(self) -> None:
        """Release the name and, when no array uses it, the memory.

        Local; harmless twice.
        """
        self.unlink()
        memory, self._memory = self._memory, None
        if memory is not None:
            try:
                memory.close()
            except BufferError:  # arrays still use it: the last one unmaps it
                return

    def __del__(self) -> None:
        if getattr(self, "_maker", None) is not None:
            self.unlink()


def share(
    node: MPI.Intracomm,
    nbytes: int,
    *,
    own: Iterable[tuple[int, int]] | None = None,
    root: Path | None = None,
) -> SharedFile:
    """Map one new file on all ranks of a node; it has no name any more.

    Collective over ``node``.

    Parameters
    ----------
    node : MPI.Intracomm
        Ranks that share memory.
    nbytes : int
        Its size, equal on all ranks.
    own : iterable of (int, int), optional
        Parts, as first byte and length: this rank asks for their pages, which
        come from the memory nearest to it.  Together the ranks name all parts.
        Default: the first rank asks for all.
    root : Path, optional
        The file system in memory; /dev/shm.

    Returns
    -------
    SharedFile
        The same bytes on every rank, zero at first.

    Raises
    ------
    Unavailable
        On all ranks, if any could not make or map it.
    """
    _check_size(nbytes)
    try:
        with ExitStack() as stack:
            return _shared(node, nbytes, own, root or ROOT, stack)
    except Unavailable:
        node.Barrier()  # all have released it: a smaller file has room now
        raise


def _shared(
    node: MPI.Intracomm,
    nbytes: int,
    own: Iterable[tuple[int, int]] | None,
    root: Path,
    stack: ExitStack,
) -> SharedFile:
    """Make a file, ask for its pages, fill own pages, and map those of the others."""
    name, made = np.zeros(_NAME_BYTES, np.uint8), _Step()
    if node.rank == 0:
        with made:
            handle = stack.enter_context(_new(nbytes, root))
            stack.callback(os.unlink, handle.name)
            if own is None:
                reserve(handle, 0, nbytes)
            said = Path(str(handle.name)).name.encode()
            name[: len(said)] = np.frombuffer(said, np.uint8)
    node.Bcast(name)
    if not name[0]:
        made.agree(node)
    asked = _Step()
    with ExitStack() as failed:
        with asked:
            path = folder(root) / name.tobytes().rstrip(b"\0").decode()
            memory = mapping(stack.enter_context(_old(path, nbytes)), own or ())
            failed.callback(memory.close)
        if own is not None:  # else all pages are there
            asked.agree(node)
        if asked.problem is None:
            with asked:
                populate(memory)
        asked.agree(node)
        failed.pop_all()
    return SharedFile(path, memory)


class _Step:
    """What a rank does beside others; they hear of a problem when all agree."""

    def __init__(self) -> None:
        self.problem: Unavailable | None = None

    def __enter__(self) -> None:
        """Begin it."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Note a problem."""
        if isinstance(error, Unavailable):
            self.problem = error.with_traceback(None)  # which keeps the pages
        elif isinstance(error, OSError):
            remedy = "look at the limits of /dev/shm and of the process (ulimit -n)"
            self.problem = Unavailable(f"node memory: {error}", remedy)
        return self.problem is not None

    def agree(self, node: MPI.Intracomm) -> None:
        """Raise the first rank's problem on all ranks, if one has any.  Collective."""
        said = np.empty(node.size, np.uint8)
        node.Allgather(np.array([self.problem is not None], np.uint8), said)
        if said.any():
            problem: Unavailable = node.bcast(self.problem, int(said.argmax()))
            raise problem


def tidy(root: Path = ROOT) -> None:
    """Remove files of makers that died before all ranks had mapped them.

    Local.

    Parameters
    ----------
    root : Path
        The file system in memory.
    """
    for path in folder(root).iterdir():
        try:
            if _NAME.fullmatch(path.name) and path.lstat().st_ctime < time.time() - _UNLOCKED_S:
                with FileIO(str(path), "r+", opener=_opening) as handle:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
        except OSError:
            continue  # another process holds it, or has removed it


def _new(nbytes: int, root: Path, name: str | None = None, front: bytes = b"") -> FileIO:
    """Make a file with pages for its front only; a nameless one is locked."""
    tidy(root)
    path = (place := folder(root)) / f"{os.getpid()}-{secrets.token_hex(8)}"
    handle = FileIO(str(path), "r+", opener=partial(_opening, more=os.O_CREAT | os.O_EXCL))
    with ExitStack() as undone:
        undone.callback(handle.close)
        undone.callback(path.unlink)
        fcntl.flock(handle, fcntl.LOCK_SH)
        reserve(handle, 0, len(front))
        os.pwrite(handle.fileno(), front, 0)
        os.truncate(handle.fileno(), nbytes)
        if name is not None:  # a process that finds the name finds the front
            path.replace(place / name)
            handle.name = str(place / name)
            fcntl.flock(handle, fcntl.LOCK_UN)  # else it lasts for as long as the mapping
        undone.pop_all()
    return handle


def _check_size(nbytes: int) -> None:
    if nbytes < 1:
        raise UsageError("shared memory", f"{nbytes} bytes", "ask for at least 1")


def _opening(path: str, _: int, more: int = 0) -> int:
    return os.open(path, _FLAGS | more, 0o600)


def _old(path: Path, nbytes: int | None) -> FileIO:
    """Open a file that another rank has made, of this size if it is known."""
    try:
        handle = FileIO(str(path), "r+", opener=_opening)
    except OSError as error:
        raise Unavailable(
            f"node memory {path}: {error.strerror}", "let the ranks of a node share /dev/shm"
        ) from error
    found = os.fstat(handle.fileno())
    problem = ""
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        problem = "not a file of this user"
    elif nbytes is not None and found.st_size != nbytes:
        problem = f"{found.st_size} bytes, not {nbytes}"
    if problem:
        handle.close()
        raise Unavailable(f"node memory {path}: {problem}", "remove it")
    return handle
