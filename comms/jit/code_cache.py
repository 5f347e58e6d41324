"""A cache of compiled code: one process of a node compiles, all others load.

Numba compiles a function once.  The object code is kept in a file whose name
is a digest of sources, processor and versions.  If the file exists, a process
loads it in a millisecond and never imports Numba.  That import dominates the
start: on ten thousand ranks it takes minutes of a parallel file system.

If the file is missing, the first process of the node takes a lock and
compiles; the others wait for the lock and load.  Compiling needs no other
rank, so this wait cannot deadlock with any wait between ranks.

The folder must not be writable by other users.  A container may be read-only
and a user may have no home; the folder is then among the temporary files.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import platform
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

import numpy as np

from closeranks.comms.jit import code_image, code_processor
from closeranks.comms.settings import PREFIX, setting
from closeranks.comms.shm import shared_folder
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import Unavailable, UsageError

#: Longer names are cut.
MOST: Final = 128
#: Its field in /proc/cpuinfo by architecture, the most telling first.
_KEYS = ("model name", "cpu model", "cpu", "hardware", "cpu part")


def processor(cpuinfo: Path = code_processor.CPUINFO) -> str:
    """Name the processor.

    Local.

    Parameters
    ----------
    cpuinfo : Path
        Linux' description, or a recording.

    Returns
    -------
    str
        Its model, else the architecture.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip().lower(), " ".join(value.split()))
    found = next((said[key] for key in _KEYS if said.get(key)), "")
    return (found or platform.machine() or "unknown")[:MOST]


@cache
def cache_folder() -> Path | None:
    """Give the folder for compiled code, made if need be.

    Local.

    Returns
    -------
    Path or None
        That of ``CLOSERANKS_CODE``, else ``closeranks`` in the user's caches, else
        one in the folder for temporary files.  None if no folder can be trusted:
        another user who may write there could run any code.

    Raises
    ------
    UsageError
        If ``CLOSERANKS_CODE`` cannot be trusted.
    """
    named = setting("CODE")
    if named:
        if _is_safe(Path(named)):
            return Path(named)
        raise UsageError(f"{PREFIX}CODE", f"{named}: no folder, or one that others may write",
                         "chmod go-w it, name another one, or none")  # fmt: skip
    with suppress(RuntimeError):  # a user without a home
        place = user_caches() / "closeranks"
        if _is_safe(place):
            return place
    try:
        return shared_folder.folder(Path(gettempdir()))
    except Unavailable:
        return None


def user_caches() -> Path:
    """Name the user's folder for caches."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()


def _is_safe(place: Path) -> bool:
    """Whether a folder exists, or can be made, that no other user may change."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.stat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid in (0, os.getuid())
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and os.access(place, os.R_OK | os.X_OK)
    )


#: Modules with compiled functions, and modules that these read.
SOURCES: Final = (
    "closeranks.checkpoint.erasure.product_entry",
    "closeranks.checkpoint.erasure.product_layout",
    "closeranks.collectives.reduction.half_precision",
    "closeranks.collectives.reduction.compiled_op_loops",
    "closeranks.collectives.pairs.pair_loops",
    "closeranks.collectives.shm.copies",
    "closeranks.collectives.shm.counters",
    "closeranks.collectives.shm.allreduce_kernels",
    "closeranks.collectives.shm.movement_kernels",
    "closeranks.collectives.shm.data_places",
    "closeranks.collectives.shm.segment_layout",
    "closeranks.collectives.fastpath.shortcut_code",
    "closeranks.collectives.fastpath.shortcut_begun_code",
    "closeranks.collectives.fastpath.shortcut_reading_code",
    "closeranks.collectives.fastpath.shortcut_layout",
    "closeranks.collectives.fastpath.request_wait_code",
    "closeranks.collectives.fastpath.request_wait_layout",
    "closeranks.collectives.coded.transport.word_kernels",
    "closeranks.collectives.engine.compiled_loop",
    "closeranks.collectives.engine.loop_layout",
    "closeranks.collectives.refill.refill_loop",
    "closeranks.collectives.refill.refill_layout",
    "closeranks.collectives.plans.block",
    "closeranks.collectives.plans.count_operations",
    "closeranks.collectives.plans.table_columns",
    "closeranks.partitioning.halo.near_kernels",
    "closeranks.comms.jit.atomics",
    "closeranks.comms.jit.python_builtin_code",
    "closeranks.comms.jit.python_builtin_layout",
    "closeranks.comms.jit.c_calls",
    "closeranks.comms.buffers.copy_loops",
    "closeranks.comms.jit.object_code",
    "closeranks.comms.jit.code_image",
    "closeranks.comms.jit.code_processor",
)
#: How long a process waits for another one to compile.
_LIMIT_S: Final = 120.0
#: How long code is kept that no process has compiled again.
_KEPT_S: Final = 90 * 86400.0
#: Names of files of code, whole or begun: module, function, `_key`.
_OWN: Final = re.compile(r"\w+[.]\w+-[0-9a-f]{32}[.]o([.][0-9a-f]{16})?", re.ASCII)
_OPEN: Final = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_DIGEST: Final = hashlib.blake2b
_DIGEST_BYTES: Final = 16


class _Spent:
    """Seconds that this process has spent on compiled code."""

    seconds = 0.0
    depth = 0


def spent_s() -> float:
    """Return the seconds this process has spent to get compiled code.  Local."""
    return _Spent.seconds


@contextmanager
def loading() -> Iterator[None]:
    """Count the time of a block as spent on compiled code; blocks may nest.  Local."""
    began = time.perf_counter()
    _Spent.depth += 1
    try:
        yield
    finally:
        _Spent.depth -= 1
        if not _Spent.depth:
            _Spent.seconds += time.perf_counter() - began


def is_possible() -> bool:
    """Whether this process can compile functions.  Local."""
    return not _is_off() and all(find_spec(name) for name in ("numba", "llvmlite"))


def _is_off() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


@cache
def address_of(module: str, name: str) -> int:
    """Load a function; compile it if the cache lacks it.

    Local.  Waits while another process of this node compiles any function.

    Parameters
    ----------
    module : str
        One of `SOURCES` that has a function ``exported``, which takes a name
        and returns a Python function and the signature for which Numba makes
        a C function of it.
    name : str
        A name that this ``exported`` knows.

    Returns
    -------
    int
        The function's address, valid until the process ends.

    Raises
    ------
    ImportError
        If it must be compiled and Numba is missing, or switched off
        (``NUMBA_DISABLE_JIT``).
    """
    with loading():
        if _is_off():
            raise ImportError("NUMBA_DISABLE_JIT is set")
        code = _read(module, name)
        if code is None:
            with _alone():
                code = _read(module, name) or _compile(module, name)
        return _loaded(code)


def is_stored(module: str, name: str) -> bool:
    """Whether the disk holds a function, whole, see `address_of`.  Local."""
    return _read(module, name) is not None


def _loaded(code: bytes) -> int:
    """Load code by whoever can."""
    if code_image.is_image(code):
        return code_image.load(code)
    from closeranks.comms.jit import object_code

    return object_code.load_function(code)


def _read(module: str, name: str) -> bytes | None:
    """Return a function's code from the disk; None if missing or incomplete."""
    path = _path(module, name)
    if path is None:
        return None
    try:
        kept = path.read_bytes()
    except OSError:  # missing, or not readable
        return None
    digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    return code if digest == _digest(code) else None


def _write(module: str, name: str, code: bytes) -> None:
    """Keep a function for other processes; a reader never sees half of it."""
    path = _path(module, name)
    if path is None:
        return
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with suppress(OSError):  # a full or read-only disk: it is compiled again
        try:
            part.write_bytes(_digest(code) + code)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        for other in path.parent.iterdir():  # it may be a folder of the user
            if _OWN.fullmatch(other.name) and other.lstat().st_mtime < time.time() - _KEPT_S:
                other.unlink(missing_ok=True)  # of old versions


def _compile(module: str, name: str) -> bytes:
    """Compile a function and keep its code."""
    numba: Any = importlib.import_module("numba")
    from closeranks.comms.jit import object_code

    function, signature = importlib.import_module(module).exported(name)
    made = numba.cfunc(signature, error_model="numpy")(getattr(function, "py_func", function))
    code = object_code.emit(made.inspect_llvm(), made.native_name, kept=True)
    code = code_image.link(code) or code
    _write(module, name, code)
    return code


def _path(module: str, name: str) -> Path | None:
    folder = cache_folder()
    short = module.rpartition(".")[2]
    return None if folder is None else folder / f"{short}.{name}-{_key()}.o"


@cache
def _key() -> str:
    """Digest all that compiled code depends on."""
    digest = _DIGEST(digest_size=_DIGEST_BYTES)
    digest.update(repr((sys.version, np.__version__, code_processor.described())).encode())
    for path in _sources():
        digest.update(_source(path))
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    """List the files that code is made of, and that name its makers' versions."""
    for module in SOURCES:
        package, *path = module.split(".")
        yield _folder(package).joinpath(*path).with_suffix(".py")
    for maker in ("llvmlite", "numba"):
        yield _folder(maker) / "_version.py"


@cache
def _folder(package: str) -> Path:
    """Find a package without importing it."""
    spec = find_spec(package)
    return Path((spec and spec.origin) or "/nowhere/at all").parent


def _source(path: Path) -> bytes:
    """Read a file; empty where it is not there."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(code: bytes) -> bytes:
    return _DIGEST(code, digest_size=_DIGEST_BYTES).digest()


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of this user on this node from compiling meanwhile."""
    try:
        lock = os.open(_lock(), _OPEN, 0o600)
    except (OSError, Unavailable):  # no place for a lock: each process compiles for itself
        yield
        return
    try:
        wait(lambda: _is_taken(lock), deadline=Deadline(_LIMIT_S), polite=True)
        yield
    finally:
        os.close(lock)  # gives the lock up, as the end of a process does


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock() -> Path:
    """Name the lock: a file in memory, so that it belongs to this node alone."""
    return shared_folder.folder() / "compiling"
