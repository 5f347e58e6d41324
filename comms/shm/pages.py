"""Pages of files in node memory: allocated before use, large where possible.

With pages of 4 KiB the first process to touch a page pays for allocating it.
Each process that maps the file later pays nearly as much for finding it.
``/dev/shm`` is normally not mounted with large pages.  Since Linux 6.1 a
process may ask for them where it has mapped a file (MADV_COLLAPSE of
madvise(2)).  If the kernel has none, only the request is lost.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np

from closeranks.errors import Unavailable

_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
#: Larger ones waste too much: processors with small pages of 64 KiB have some of 512 MiB.
_LARGEST: Final = 32 << 20
#: MAP_FIXED and MAP_NORESERVE of Linux, and advice about memory:
#: MADV_COLLAPSE, MADV_POPULATE_READ and _WRITE (5.14), which Python does not know.
_FIXED, _UNRESERVED = 0x10, 0x4000
_COLLAPSE, _FIND, _FILL = 25, 22, 23
_REGION: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED
_BOTH: Final = mmap.PROT_READ | mmap.PROT_WRITE
_WHOLE: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


@cache
def large_page() -> int:
    """Give the bytes of a large page, or of a small one if there are none.  Local."""
    try:
        found = int(_SIZE.read_text())
    except (OSError, ValueError):
        return mmap.PAGESIZE
    return found if found <= _LARGEST else mmap.PAGESIZE


def mapping(handle: FileIO, own: Iterable[tuple[int, int]]) -> mmap.mmap:
    """Map all of a file, and fill parts with zeros.

    Local.  Touching a filled part later need not wait for the kernel.

    Parameters
    ----------
    handle : FileIO
        The file.
    own : iterable of (int, int)
        The parts, as first byte and length; they get their pages before.

    Raises
    ------
    Unavailable
        If node memory is full, or the system refuses.
    """
    parts = [(start, length) for start, length in own if length]
    for start, length in parts:
        reserve(handle, start, length)
    memory = _set_aside(handle, _size(handle))
    with ExitStack() as failed:
        failed.callback(memory.close)
        map_into(handle, memory, 0, whole=False)
        for start, length in parts:
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            _advise(memory, _FILL, first, start + length - first)
        failed.pop_all()
    return memory


def populate(memory: mmap.mmap) -> None:
    """Map pages that other processes have filled, many at once.

    Local.  This takes a tenth of the time of filling them.

    Parameters
    ----------
    memory : mmap
        From `mapping`.
    """
    _advise(memory, _FIND, 0, len(memory))


def _advise(memory: mmap.mmap, what: int, start: int, nbytes: int) -> None:
    """Ask for pages; before Linux 5.14, which cannot, touch them."""
    try:
        memory.madvise(what, start, nbytes)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        touched = np.frombuffer(memory, np.uint8)[start : start + nbytes : mmap.PAGESIZE]
        if what == _FILL:
            touched[:] = 0  # still zeros: no other process has the file yet
        else:
            touched.max()


def region(handle: FileIO) -> tuple[mmap.mmap, int]:
    """Set addresses aside for a file, from a multiple of a large page on.

    Local.

    Parameters
    ----------
    handle : FileIO
        The file.

    Returns
    -------
    memory : mmap
        Unused addresses; closing it gives them back, with any file laid there.
    start : int
        Offset in ``memory`` for the file.

    Raises
    ------
    Unavailable
        If the system refuses.
    """
    memory = _set_aside(handle, _size(handle) + large_page())
    return memory, -_address(memory) % large_page()


def _set_aside(handle: FileIO, nbytes: int) -> mmap.mmap:
    """Set addresses aside for `map_into` to put a file there.

    `mmap` itself would keep a descriptor open for the file; descriptors are few.
    """
    try:
        return mmap.mmap(-1, nbytes, flags=_REGION)
    except OSError as error:
        raise _unmapped(handle, error) from error


def map_into(handle: FileIO, memory: mmap.mmap, start: int, *, whole: bool) -> None:
    """Map a file into addresses that were set aside.

    Local.

    Parameters
    ----------
    handle : FileIO
        The file.
    memory, start
        From `region`.
    whole : bool
        Map all pages now, not each at its first touch.

    Raises
    ------
    Unavailable
        If the system refuses.
    """
    at, flags = _address(memory) + start, _FIXED | (_WHOLE if whole else mmap.MAP_SHARED)
    if _library().mmap(at, _size(handle), _BOTH, flags, handle.fileno(), 0) != at:
        number = ctypes.get_errno()
        raise _unmapped(handle, OSError(number, os.strerror(number)))


def enlarge(handle: FileIO, memory: mmap.mmap, start: int, first: int, last: int) -> None:
    """Ask for large pages for part of a file; some or all may not come.

    Local; the contents stay, and missing pages are zeros.

    Parameters
    ----------
    handle : FileIO
        The file.
    memory, start
        Where `map_into` has put it.
    first, last : int
        The part, in bytes of the file: whole large pages of it.
    """
    size = large_page()
    first, last = -(-first // size) * size, last // size * size
    if size == mmap.PAGESIZE or first >= last or last - first > _free(handle):
        return
    for place in range(first, last, size):  # a large page without contents is left alone
        reserve(handle, place, mmap.PAGESIZE)
    _library().madvise(_address(memory) + start + first, last - first, _COLLAPSE)


def reserve(handle: FileIO, start: int, nbytes: int) -> None:
    """Give part of a file its pages, so that touching them cannot fail later.

    Local.

    Parameters
    ----------
    handle : FileIO
        The file.
    start, nbytes : int
        The part; it may have some already.

    Raises
    ------
    Unavailable
        If node memory is full.
    """
    if not nbytes:
        return
    try:
        os.posix_fallocate(handle.fileno(), start, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENOMEM):
            raise
        raise Unavailable(
            f"node memory {Path(str(handle.name)).parent}: {nbytes} bytes wanted,"
            f" {_free(handle)} free",
            "free /dev/shm or give it more (mount -o remount,size=...; docker --shm-size)",
        ) from error


def _unmapped(handle: FileIO, error: OSError) -> Unavailable:
    """Say that a file was not mapped, and why."""
    return Unavailable(
        f"node memory {handle.name}: {_size(handle)} bytes not mapped, {error.strerror}",
        "give the job more memory or address space (ulimit -v)",
    )


def _size(handle: FileIO) -> int:
    """Give the bytes of a file."""
    return os.fstat(handle.fileno()).st_size


def _free(handle: FileIO) -> int:
    """Give how many bytes are free where a file is."""
    room = os.fstatvfs(handle.fileno())
    return room.f_bavail * room.f_frsize


def _address(memory: mmap.mmap) -> int:
    """Tell where memory lies."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


@cache
def _library() -> ctypes.CDLL:
    """Give the C library, with what it takes; calls are made without the GIL."""
    library = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.madvise.argtypes = [ctypes.c_void_p, size, number]
    return library
