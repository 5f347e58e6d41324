"""Images of code: object code that is linked already, loaded without LLVM.

A linker runs when code is made, once an installation.  What it makes runs at
any address: one block of bytes, and the places in it where the addresses of
functions and objects of the process belong.  To load it is to copy it.

Only what LLVM makes for this layout of code on x86-64 can be linked here;
`link` refuses all else, which LLVM then loads itself, see `object_code`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

#: Name of a function in its object.
ENTRY: Final = "closeranks_entry"
#: Numba's code calls these when Python code raises, and to release objects. Our functions
#: do neither, but the loader wants an address; a call of them ends the process.
_NEVER_CALLED: Final = frozenset(
    {
        "NRT_Free",
        "NRT_MemInfo_call_dtor",
        "numba_do_raise",
        "numba_gil_ensure",
        "numba_gil_release",
        "numba_runtime_build_excinfo_struct",
        "numba_unpickle",
    }
)
#: All code that this process has loaded.
_PROCESS: Final = ctypes.CDLL(None, use_errno=True)
_FIRST: Final = b'{"entry"'
#: See the ELF specification: head of a file, section, symbol, relocation.
_HEAD: Final = struct.Struct("<4sBB10xHHI8x8xQI6xHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_WORD: Final = struct.Struct("<q")
_ELF, _64_BITS, _LITTLE, _RELOCATABLE, _X86_64 = b"\x7fELF", 2, 1, 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWIND = 2, 4, 8, 0x70000001
_WRITABLE, _LOADED = 1, 2
#: The relocations of this layout of code.
_PC, _OFFSET, _PLACE, _TABLE = 24, 25, 27, 29
_TABLE_NAME: Final = b"_GLOBAL_OFFSET_TABLE_"
_ALIGN: Final = 64


class _Section(NamedTuple):
    """One section of an object."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int


class _Unknown(Exception):
    """The object has something in it that this linker does not know."""


def address_in_process(name: str) -> int:
    """Give the address of what code needs from elsewhere.

    Local.

    Parameters
    ----------
    name : str
        Of a function or an object of this process.

    Raises
    ------
    ImportError
        If this process does not have it.
    """
    if name in _NEVER_CALLED:
        name = "abort"
    try:
        found = ctypes.cast(getattr(_PROCESS, name), ctypes.c_void_p).value
    except AttributeError:
        raise ImportError(f"compiled code calls {name}, which is not here") from None
    return found or 0


def link(code: bytes) -> bytes | None:
    """Link object code.

    Local.

    Parameters
    ----------
    code : bytes
        Of `closeranks.comms.jit.object_code.emit`.

    Returns
    -------
    bytes or None
        An image; None if that needs another linker.
    """
    try:
        return _Linker(code).image()
    except (_Unknown, struct.error):
        return None


def is_image(code: bytes) -> bool:
    """Tell an image from object code.  Local."""
    return code.startswith(_FIRST)


def load(image: bytes) -> int:
    """Load an image.

    Local.

    Parameters
    ----------
    image : bytes
        From `link`.

    Returns
    -------
    int
        Address of the function, valid until the process ends.

    Raises
    ------
    ImportError
        If it calls a function that this process does not have.
    OSError
        If this process may have no new code.
    """
    line, _, block = image.partition(b"\n")
    told = json.loads(line)
    linked = bytearray(block)
    for name, at in told["names"].items():
        _WORD.pack_into(linked, at, address_in_process(name))
    return _placed(bytes(linked)) + int(told["entry"])


def _placed(block: bytes) -> int:
    """Copy code to pages of its own, which nobody ever unmaps: threads may be in it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = _libc().mmap(None, len(block), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory for compiled code")
    ctypes.memmove(place, block, len(block))
    if _libc().mprotect(place, len(block), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "no new code may run in this process")
    return int(place)


@cache
def _libc() -> Any:
    """Tell ctypes what the two functions take."""
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    word, number = ctypes.c_size_t, ctypes.c_int
    found.mmap.argtypes = (ctypes.c_void_p, word, number, number, number, ctypes.c_long)
    found.mprotect.argtypes = (ctypes.c_void_p, word, number)
    return found


class _Linker:
    """Puts the sections of one object in a row, and a table of addresses behind them."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._sections = list(self._read_sections())
        self._placed: dict[int, int] = {}
        self._block = bytearray()
        self._names: dict[bytes, int] = {}

    def image(self) -> bytes:
        """Give the image."""
        for number, section in enumerate(self._sections):
            if section.flags & _LOADED and section.size and not self._is_unwinding(section):
                self._place(number, section)
        self._align(_WORD.size)
        self._table = len(self._block)
        symbols, names = self._symbols()
        for section in self._sections:
            if section.kind == _RELOCATIONS and section.info in self._placed:
                self._relocate(section, symbols, names)
        entry = next(
            (self._address(one) for one in symbols if _name(names, one[0]) == ENTRY.encode()), None
        )
        if entry is None:
            raise _Unknown
        said = {"entry": entry, "names": {k.decode(): at for k, at in self._names.items()}}
        return json.dumps(said).encode() + b"\n" + bytes(self._block)

    def _read_sections(self) -> Iterator[_Section]:
        magic, bits, order, kind, machine, _, first, _, each, count, _ = _HEAD.unpack_from(
            self._code
        )
        if (magic, bits, order, kind, machine) != (_ELF, _64_BITS, _LITTLE, _RELOCATABLE, _X86_64):
            raise _Unknown
        for number in range(count):
            yield _Section(*_SECTION.unpack_from(self._code, first + number * each))

    def _is_unwinding(self, section: _Section) -> bool:
        """Whether it is for exceptions of C++, which this code never meets."""
        return section.kind == _UNWIND

    def _place(self, number: int, section: _Section) -> None:
        if section.flags & _WRITABLE or section.kind == _NO_BITS or section.align > _ALIGN:
            raise _Unknown
        self._align(max(section.align, 1))
        self._placed[number] = len(self._block)
        self._block += self._code[section.offset : section.offset + section.size]

    def _align(self, to: int) -> None:
        self._block += bytes(-len(self._block) % to)

    def _symbols(self) -> tuple[list[tuple[int, ...]], bytes]:
        """Read the table of symbols, and their names."""
        for section in self._sections:
            if section.kind == _SYMBOLS:
                table = self._code[section.offset : section.offset + section.size]
                strings = self._sections[section.link]
                names = self._code[strings.offset : strings.offset + strings.size]
                return list(_SYMBOL.iter_unpack(table)), names
        raise _Unknown

    def _address(self, symbol: tuple[int, ...]) -> int:
        """Place a symbol of this object."""
        _, _, _, section, value, _ = symbol
        if section not in self._placed:
            raise _Unknown
        return self._placed[section] + value

    def _relocate(self, section: _Section, symbols: list[tuple[int, ...]], names: bytes) -> None:
        """Write what relocations of a section tell."""
        told = self._code[section.offset : section.offset + section.size]
        for offset, info, addend in _RELOCATION.iter_unpack(told):
            kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
            at = self._placed[section.info] + offset
            if kind == _PC:
                value = self._address(symbol) - at
            elif kind == _OFFSET:
                value = self._address(symbol) - self._table
            elif kind == _TABLE and _name(names, symbol[0]) == _TABLE_NAME:
                value = self._table - at
            elif kind == _PLACE and symbol[3] == 0:
                value = self._slot(_name(names, symbol[0])) - self._table
            else:
                raise _Unknown
            _WORD.pack_into(self._block, at, value + addend)

    def _slot(self, name: bytes) -> int:
        """Give the place of an address that is known only where the code is loaded."""
        if name not in self._names:
            self._names[name] = len(self._block)
            self._block += bytes(_WORD.size)
        return self._names[name]


def _name(names: bytes, start: int) -> bytes:
    return names[start : names.index(b"\0", start)]
