"""Object code: made by LLVM of what Numba compiled, and loaded by LLVM alone.

This module imports llvmlite, which takes a tenth of the time that Numba
takes, and opens two files instead of two thousand.  A process that finds an
image of the code on disk needs neither, see `closeranks.comms.jit.code_image`.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite.binding.object_file import ObjectFileRef

from closeranks.comms.jit import code_image, code_processor
from closeranks.comms.jit.code_image import ENTRY

#: Numba's name of an exception that it has pickled.
_EXCEPTION: Final = ".const.picklebuf."
#: Symbols that the loader makes itself.
_TABLE: Final = "_GLOBAL_OFFSET_TABLE_"
#: A symbol: name, info, other, section (0: none), value, size; see the ELF specification.
_SYMBOL: Final = struct.Struct("<IBBHQQ")
#: Loaded code, never unloaded.
_LOADED: Final[list[Any]] = []


def emit(text: str, function: str, *, kept: bool = False) -> bytes:
    """Make object code of one function.

    Local.

    Parameters
    ----------
    text : str
        A module in LLVM's language, optimised.
    function : str
        Its name there; all other functions of the module serve it.
    kept : bool
        Whether it is for all processors that the kernel describes like this
        one, see `closeranks.comms.jit.code_processor`; else for this process.

    Returns
    -------
    bytes
        For `load_function`.

    Raises
    ------
    ImportError
        If it may raise a Python exception: no caller could catch that.
    """
    if _EXCEPTION in text:
        raise ImportError(f"compiled code raises exceptions, in {function}")
    module = llvm.parse_assembly(text)
    for other in module.functions:
        if not other.is_declaration:
            other.linkage = "internal"
    entry = module.get_function(function)
    entry.linkage, entry.name = "external", ENTRY
    code: bytes = _machine(kept=kept).emit_object(module)
    return code


def load_function(code: bytes) -> int:
    """Load object code.

    Local.

    Parameters
    ----------
    code : bytes
        From `emit`.

    Returns
    -------
    int
        Address of the function, valid until the process ends.

    Raises
    ------
    ImportError
        If it calls a function that this process does not have.
    """
    for name in _undefined(code):
        llvm.add_symbol(name, code_image.address_in_process(name))
    loader = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    loader.add_object_file(ObjectFileRef.from_data(code))
    loader.finalize_object()
    _LOADED.append((loader, code))
    # Threads run this code to the end of the process, so the loader must never be disposed of.
    # llvmlite sees to that, unless a program's exit handler was the first to import it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loader))
    address: int = loader.get_function_address(ENTRY)
    return address


def _undefined(code: bytes) -> set[str]:
    """List the symbols that object code needs from elsewhere."""
    found = ObjectFileRef.from_data(code)
    parts = {section.name(): section.data() for section in found.sections()}
    names = parts.get(b".strtab", b"")
    symbols = _SYMBOL.iter_unpack(parts.get(b".symtab", b""))
    starts = [start for start, _, _, section, _, _ in symbols if section == 0 and start]
    return {names[start : names.index(b"\0", start)].decode() for start in starts} - {_TABLE}


@cache
def _machine(*, kept: bool = False) -> Any:
    """Describe this processor, and its code layout, to LLVM."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if kept:
        features.update(code_processor.common(features))
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten(),
        opt=3,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )
