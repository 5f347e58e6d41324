"""Compiled code as a node keeps it: made by one process, loaded by the others.

Numba keeps what it compiled on disk.  Where a process finds it there, it loads
it at once.  Else the first process of the node to come takes a lock and
compiles, and the others wait and load what it left: compiling needs nothing of
them, so that it does not matter who waits for whom otherwise.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from closeranks.comms import shared_file
from closeranks.comms.code_folder import settle_code_folder
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import Unavailable

#: How long a process waits for another one to compile.
_LIMIT_S: Final = 120.0
_OPEN: Final = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: What Numba imports to know whether it may call it.  It takes as long as all the rest,
#: and no code here multiplies matrices.
_UNUSED: Final = ("scipy.linalg", "scipy.linalg.cython_blas")


#: Name of the engine's thread, which imports nothing.
THREAD: Final = "closeranks"


class _Spent:
    """Seconds that this process has spent on compiled code."""

    seconds = 0.0
    depth = 0


def spent_s() -> float:
    """Return the seconds this process has spent to get compiled code.  Local."""
    return _Spent.seconds


@contextmanager
def loading() -> Iterator[None]:
    """Count the time of a block as spent on compiled code; blocks may nest.

    Local.  Numba starts in here: it is kept from importing SciPy's linear
    algebra, which it does not need before somebody multiplies matrices, and asks
    for again then.
    """
    began = time.perf_counter()
    _Spent.depth += 1
    collects = gc.isenabled()
    gc.disable()  # many new objects, no garbage: it would look through them all
    stubs = _stubs()
    sys.modules.update(stubs)
    try:
        with suppress(ImportError):
            settle_code_folder()
        yield
    finally:
        for name, stub in stubs.items():
            if sys.modules.get(name) is stub:
                del sys.modules[name]
        if collects:
            gc.enable()
        _Spent.depth -= 1
        if not _Spent.depth:
            _Spent.seconds += time.perf_counter() - began


def compiled(code: Any, signature: Any) -> Any:
    """Compile a function for a signature, or load it.

    Local.  Waits while another process of this node compiles, whatever it is.

    Parameters
    ----------
    code : numba dispatcher or callback
        Cached on disk.
    signature : tuple of numba types, or a signature
        What it is compiled for; of a callback its own.

    Returns
    -------
    numba dispatcher or callback
        As given.
    """
    with loading():
        if is_stored(code, signature):
            _make(code, signature)
        else:
            with _alone():
                _make(code, signature)  # loads it if another process was faster
    return code


def address_of(code: Any) -> int:
    """Return the address of a function, to be called as one of C.

    Local.

    Parameters
    ----------
    code : numba dispatcher
        Compiled for one signature of numbers, by `compiled`.

    Returns
    -------
    int
        Good as long as the function is there.
    """
    (overload,) = code.overloads.values()
    address: int = overload.library.get_pointer_to_function(overload.fndesc.llvm_cfunc_wrapper_name)
    return address


def stale_with(code: Any, *names: str) -> None:
    """Let what is stored of a function be stale when other files have changed.

    Local.  Numba looks only at the file in which a function stands, and what it
    calls elsewhere is compiled into it.

    Parameters
    ----------
    code : numba dispatcher or callback
        Cached on disk, not compiled yet.
    *names : str
        Modules that it uses, imported already.
    """
    found = [Path(str(sys.modules[name].__file__)).stat() for name in names]
    stamps = tuple((one.st_mtime, one.st_size) for one in found)
    file = code._cache._cache_file
    file._source_stamp = (file._source_stamp, stamps)


def all_stale_with(module: str, *names: str) -> None:
    """Do so for all functions of a module; called at its end."""
    for value in vars(sys.modules[module]).values():
        function = getattr(value, "py_func", None)
        if function is not None and function.__module__ == module:
            stale_with(value, *names)


def types_of(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Return the signature that a call with these arguments has.  Local."""
    from numba.core.typing.typeof import typeof

    typed: Callable[[Any], Any] = typeof
    return tuple(typed(one) for one in arguments)


def is_stored(code: Any, signature: Any) -> bool:
    """Whether the disk holds a function for a signature; False if it cannot be told."""
    try:
        cache = code._cache
        target = getattr(code, "targetctx", None) or code._targetdescr.target_context
        key = cache._index_key(signature, target.codegen())
        return key in cache._cache_file._load_index()
    except Exception:  # another Numba: then everybody asks for the lock
        return False


def _make(code: Any, signature: Any) -> None:
    if hasattr(code, "overloads"):
        code.compile(signature)
    else:
        code.compile()


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of this user on this node from compiling meanwhile."""
    try:
        lock = os.open(_path(), _OPEN, 0o600)
    except (OSError, Unavailable):  # nowhere to agree: each for itself
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


def _path() -> Path:
    """Name the lock: in memory, so that it is this node's, and nobody else's."""
    return shared_file.folder() / "compiling"


def _stubs() -> dict[str, ModuleType]:
    """Stand in for what Numba only looks for, if nobody has imported it."""
    if _UNUSED[0] in sys.modules or "numba.np.linalg" in sys.modules:
        return {}
    if any(thread.name != THREAD for thread in threading.enumerate()[1:]):
        return {}  # it might import the real one meanwhile
    if find_spec("scipy") is None:
        return {}
    return {name: ModuleType(name) for name in _UNUSED}
