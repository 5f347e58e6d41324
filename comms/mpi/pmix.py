"""Reports of dead processes, sent by PMIx to this library and the daemons.

An MPI library and its launcher talk to each other by PMIx; Open MPI has
loaded it already.  Names are from the PMIx Standard, version 4.
"""

from __future__ import annotations

import os
from ctypes import (  # fmt: skip
    CDLL,
    Structure,
    byref,
    c_bool,
    c_char,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_void_p,
)
from functools import cache
from typing import Final, NamedTuple

_PROC_TERMINATED_WITHOUT_SYNC: Final = -200
_RANGE_NAMESPACE, _RANGE_PROCESS = c_uint8(3), c_uint8(7)
_BOOL, _PROC = c_uint16(1), c_uint16(22)


class Name(NamedTuple):
    """PMIx's name of a process.

    Attributes
    ----------
    namespace : str
        Of its job.
    rank : int
        Its rank in the namespace.
    """

    namespace: str
    rank: int


class _Process(Structure):
    """``pmix_proc_t``."""

    _fields_ = (("nspace", c_char * 256), ("rank", c_uint32))


class _Array(Structure):
    """``pmix_data_array_t``."""

    _fields_ = (("type", c_uint16), ("size", c_size_t), ("array", c_void_p))


@cache
def own_name() -> Name:
    """Give the name of this process; KeyError if no launcher has named it.

    Read once: a program may change its environment later.
    """
    return Name(os.environ["PMIX_NAMESPACE"], int(os.environ["PMIX_RANK"]))


def announce(dead: Name, *, widely: bool) -> bool:
    """Tell the MPI library that a process has died.

    Local; the library acts on it in its next progress.  Harmless twice.

    Parameters
    ----------
    dead : Name
        The process; if it still runs, its MPI library aborts it.
    widely : bool
        Whether the daemons are to tell all other processes of this job, too.

    Returns
    -------
    bool
        False where PMIx would not take it: MPI is not up, or over.
    """
    library = _library()
    source, affected = _process(own_name()), _process(dead)
    listed = c_void_p(library.PMIx_Info_list_start())
    library.PMIx_Info_list_add(listed, b"pmix.evproc", byref(affected), _PROC)
    library.PMIx_Info_list_add(listed, b"pmix.evnocache", byref(c_bool(True)), _BOOL)
    info = _Array()
    library.PMIx_Info_list_convert(listed, byref(info))
    library.PMIx_Info_list_release(listed)
    status: int = library.PMIx_Notify_event(
        _PROC_TERMINATED_WITHOUT_SYNC,
        byref(source),
        _RANGE_NAMESPACE if widely else _RANGE_PROCESS,
        c_void_p(info.array),
        c_size_t(info.size),
        None,
        None,
    )
    library.PMIx_Info_free(c_void_p(info.array), c_size_t(info.size))
    return status == 0


def _process(name: Name) -> _Process:
    return _Process(name.namespace.encode(), name.rank)


@cache
def _library() -> CDLL:
    """Find the PMIx that the MPI library has loaded; OSError if it has none."""
    found = CDLL("libpmix.so.2", mode=os.RTLD_NOLOAD)
    found.PMIx_Info_list_start.restype = c_void_p
    return found
