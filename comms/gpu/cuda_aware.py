"""Whether the MPI library takes device memory as it takes the host's.  Local."""

from __future__ import annotations

import ctypes
import os
from functools import cache

#: MPIX_GPU_SUPPORT_CUDA of MPICH.
_MPICH_CUDA = 0
#: Libraries without such a call: the variable with which a job turns it on.
_SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")


@cache
def reaches_devices() -> bool:
    """Tell whether the MPI library reads and writes CUDA device memory.

    Local; after MPI has been initialised.  Open MPI and MPICH are asked.  For Cray
    MPICH and MVAPICH2 the variables that turn it on are read.

    Returns
    -------
    bool
        False unless the library or a variable says yes.
    """
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if any(os.environ.get(name) == "1" for name in _SWITCHES):
        return True
    if hasattr(library, "MPIX_GPU_query_support"):
        found = ctypes.c_int(0)
        failed = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(found))
        return not failed and bool(found.value)
    return False
