"""NCCL, through CuPy: devices of different ranks exchange data by themselves."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Final

#: ncclDataType_t and ncclRedOp_t by name; their numbers are NCCL's interface.
_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OPS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3, "MEAN": 4}
_BYTE = _TYPES["uint8"]
#: The first version that has bfloat16 and means.
_LEAST: Final = 21000
#: Bytes of one broadcast: CuPy counts those in a C int.
_LONGEST: Final = 1 << 30


def lacks(cuda: Any) -> str:
    """Say why NCCL cannot be used; "" if it can.  Local.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.

    Returns
    -------
    str
        The reason.
    """
    nccl = getattr(cuda, "nccl", None) or _imported()
    if nccl is None or not getattr(nccl, "available", True):
        return "CuPy finds no NCCL"
    found = nccl.get_version()
    return "" if found >= _LEAST else f"NCCL {found} is older than {_LEAST}"


def _imported() -> Any:
    """Load CuPy's NCCL: `cupy.cuda` has it only then; it may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module("cupy.cuda.nccl")
        except ImportError:
            return None


class NcclGroup:
    """A `closeranks.comms.gpu.device_array.DeviceGroup` of NCCL.

    Collective to make.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    identity : object
        From ``get_unique_id`` of one member.
    rank, size : int
        Rank of this member, and number of members.
    device : int
        The device that is current now.
    """

    def __init__(self, cuda: Any, identity: object, rank: int, size: int, device: int) -> None:
        self._on = cuda.Device
        self._device = device
        self._comm = cuda.nccl.NcclCommunicator(size, identity, rank)

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks for all."""
        with self._on(self._device):
            self._comm.allReduce(source, target, count, _TYPES[dtype], _OPS[op], stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        """Combine vectors of all ranks for one."""
        with self._on(self._device):
            self._comm.reduce(source, target, count, _TYPES[dtype], _OPS[op], root, stream)

    def bcast(self, place: int, nbytes: int, root: int, stream: int) -> None:
        """Send bytes of one rank to all."""
        with self._on(self._device):
            for first in range(0, nbytes, _LONGEST):
                at, part = place + first, min(_LONGEST, nbytes - first)
                self._comm.broadcast(at, at, part, _BYTE, root, stream)

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Collect a block of bytes of every rank, on all."""
        with self._on(self._device):
            self._comm.allGather(source, target, nbytes, _BYTE, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks; each gets its block."""
        with self._on(self._device):
            self._comm.reduceScatter(source, target, count, _TYPES[dtype], _OPS[op], stream)

    def close(self) -> None:
        """Leave the communicator after pending work."""
        with self._on(self._device):
            self._comm.destroy()

    def revoke(self) -> None:
        """Give the communicator up: operations that wait for a lost rank end."""
        with self._on(self._device):
            self._comm.abort()
