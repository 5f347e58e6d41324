"""Words in node memory, with atomic operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at

_KERNELS: Final = "closeranks.collectives.coded.transport.word_kernels"


@cache
def _kernel(name: str, arguments: int) -> Callable[..., int]:
    return function_at(code_cache.address_of(_KERNELS, name), arguments, "int")


class NodeWords:
    """Atomic operations on int64 words, by their addresses.

    Local to make: loads the compiled code.
    """

    def __init__(self) -> None:
        self.load: Callable[[int], int] = _kernel("load", 1)
        self.store: Callable[[int, int], int] = _kernel("store", 2)
        self.swap_if: Callable[[int, int, int], int] = _kernel("swap_if", 3)
        self.add: Callable[[int, int], int] = _kernel("add", 2)
        self.set_bits: Callable[[int, int], int] = _kernel("set_bits", 2)
