"""Object code: functions that Numba compiled earlier, loaded by LLVM alone.

This module imports llvmlite, which takes a tenth of the time that Numba
takes, and opens two files instead of two thousand.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite.binding.object_file import ObjectFileRef

#: Name of a function in its object.
_ENTRY: Final = "closeranks_entry"
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
#: Numba's name of an exception that it has pickled.
_EXCEPTION: Final = ".const.picklebuf."
#: Symbols that the loader makes itself.
_TABLE: Final = "_GLOBAL_OFFSET_TABLE_"
#: A symbol: name, info, other, section (0: none), value, size; see the ELF specification.
_SYMBOL: Final = struct.Struct("<IBBHQQ")
#: All code that this process has loaded.
_PROCESS: Final = ctypes.CDLL(None)
#: Loaded code, never unloaded.
_LOADED: Final[list[Any]] = []


def target_processor() -> str:
    """Name the processor that code is made for; others may not run it.  Local."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


def emit(text: str, function: str) -> bytes:
    """Make object code of one function.

    Local.

    Parameters
    ----------
    text : str
        A module in LLVM's language, optimised.
    function : str
        Its name there; all other functions of the module serve it.

    Returns
    -------
    bytes
        For `load_function`, on this kind of processor.

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
    entry.linkage, entry.name = "external", _ENTRY
    code: bytes = _machine().emit_object(module)
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
        if name in _NEVER_CALLED:
            llvm.add_symbol(name, ctypes.cast(_PROCESS.abort, ctypes.c_void_p).value)
        elif not hasattr(_PROCESS, name):
            raise ImportError(f"compiled code calls {name}, which is not here")
    loader = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    loader.add_object_file(ObjectFileRef.from_data(code))
    loader.finalize_object()
    _LOADED.append((loader, code))
    # Threads run this code to the end of the process, so the loader must never be disposed of.
    # llvmlite sees to that, unless a program's exit handler was the first to import it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loader))
    address: int = loader.get_function_address(_ENTRY)
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
def _machine() -> Any:
    """Describe this processor, and its code layout, to LLVM."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )
