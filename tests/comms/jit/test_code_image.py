"""Images of code: linked when they are made, loaded without LLVM."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from closeranks.comms.jit import code_image, code_processor

object_code = pytest.importorskip("closeranks.comms.jit.object_code")

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM links it elsewhere")

#: Calls a function of its own and one of the process, and reads a table.
_TEXT = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
declare i64 @labs(i64)
define i64 @inner(i64 %n) noinline {
  %p = getelementptr [4 x i64], [4 x i64]* @table, i64 0, i64 %n
  %v = load i64, i64* %p
  ret i64 %v
}
define i64 @f(i64 %n) {
  %m = call i64 @labs(i64 %n)
  %v = call i64 @inner(i64 %m)
  ret i64 %v
}
"""
_WRITES = """
@count = internal global i64 0
define i64 @f(i64 %n) {
  %v = load i64, i64* @count
  %w = add i64 %v, %n
  store i64 %w, i64* @count
  ret i64 %w
}
"""


def call(address: int, number: int) -> int:
    found: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(number)
    return found


@x86
def test_an_image_does_what_llvm_makes_of_the_code() -> None:
    code = object_code.emit(_TEXT, "f", kept=True)
    image = code_image.link(code)
    assert image is not None
    assert code_image.is_image(image)
    assert not code_image.is_image(code)
    places = code_image.load(image), code_image.load(image), object_code.load_function(code)
    assert len(set(places)) == 3
    assert [[call(at, n) for n in (0, -1, 2, -3)] for at in places] == [[10, 20, 30, 40]] * 3


def test_code_that_needs_another_linker_is_left_to_llvm() -> None:
    code = object_code.emit(_WRITES, "f")
    for other in (code, code[:70], b"", b"no object at all" * 8, code[:18] + b"\xff" + code[19:]):
        assert code_image.link(other) is None
    address = object_code.load_function(code)
    assert [call(address, 2), call(address, 3)] == [2, 5]


@x86
def test_an_image_that_calls_what_is_not_here_is_refused() -> None:
    text = "declare void @nobody_has_this()\ndefine void @f() {\n"
    code = object_code.emit(text + " call void @nobody_has_this()\n ret void\n}\n", "f")
    image = code_image.link(code)
    assert image is not None
    with pytest.raises(ImportError, match="nobody_has_this"):
        code_image.load(image)


def test_a_processor_is_told_by_what_runs_code(tmp_path: Path) -> None:
    first = "processor : 0\nvendor_id : A\nmodel : 17\nflags : fpu pni sse4_2 abm\ncpu MHz : 2000\n"
    other = first.replace("2000", "2001") + "\nprocessor : 1\nmodel : 18\n"
    less = first.replace(" abm", "")
    recorded = [tmp_path / str(n) for n in range(3)]
    for path, text in zip(recorded, (first, other, less), strict=True):
        path.write_text(text)
    one, same, weaker = map(code_processor.described, recorded)
    assert one == same
    assert one != weaker
    assert code_processor.described(tmp_path / "none") == (platform.machine(),)


def test_code_that_is_kept_uses_only_what_the_kernel_names(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu pni sse4_2 abm avx512_bf16\n")
    has = dict.fromkeys(("sse3", "sse4.2", "crc32", "lzcnt", "avx512bf16", "shstk"), True)
    common = code_processor.common({**has, "avx": False}, tmp_path / "cpuinfo")
    assert common == {**has, "avx": False, "shstk": False}
    (tmp_path / "cpuinfo").write_text("Features : fp asimd\n")  # where LLVM reads this, too
    assert code_processor.common(has, tmp_path / "cpuinfo") == has
