"""Compiled code: made once a node, kept whole, loaded without Numba, never from a stranger."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from closeranks.comms.jit import code_cache

ROOT = Path(__file__).resolve().parents[3]
numba: Any = pytest.importorskip("numba")

#: Loads one function and says whether Numba was there for it.
_ASKS = """
import sys
from closeranks.comms.jit import code_cache as code_store
loops = "closeranks.collectives.reduction.compiled_op_loops"
place = code_store.address_of(loops, "LXOR.int16.pair")
assert code_store.spent_s() > 0
print("numba" in sys.modules, place != 0)
"""


def python(program: str, folder: Path, root: Path = ROOT) -> subprocess.Popen[str]:
    environment = {**os.environ, "CLOSERANKS_CODE": str(folder), "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, stdout=subprocess.PIPE,
        cwd=root,
    )  # fmt: skip


def answer(program: str, folder: Path, root: Path = ROOT) -> list[str]:
    child = python(program, folder, root)
    said = child.communicate(timeout=100)[0]
    assert child.returncode == 0
    return said.split()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled code."""
    monkeypatch.setattr(code_cache, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_one_process_compiles_and_the_others_load(tmp_path: Path) -> None:
    children = [python(_ASKS, tmp_path) for _ in range(3)]
    said = [child.communicate(timeout=100)[0].split() for child in children]
    assert sorted(said) == [["False", "True"], ["False", "True"], ["True", "True"]]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM links and loads it elsewhere")
def test_who_finds_code_imports_no_compiler_and_no_room_for_it(tmp_path: Path) -> None:
    asks = _ASKS + 'print("llvmlite" in sys.modules, "closeranks.checkpoint" in sys.modules)\n'
    assert answer(_ASKS, tmp_path) == ["True", "True"]
    assert answer(asks, tmp_path) == ["False", "True", "False", "False"]


def test_code_is_made_anew_when_a_source_has_changed(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "code"
    for room in ("closeranks", "checkpoint", "collectives", "comms"):
        shutil.copytree(ROOT / room, root / room, symlinks=True)
    assert [answer(_ASKS, folder, root)[0] for _ in range(2)] == ["True", "False"]
    changed = root / "comms" / "jit" / "atomics.py"
    changed.write_text(changed.read_text() + "\n")
    assert answer(_ASKS, folder, root)[0] == "True"


def test_code_that_is_not_whole_is_made_anew(tmp_path: Path) -> None:
    answer(_ASKS, tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    for broken in (whole[:-1], whole[:5], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        kept.write_bytes(broken)
        assert answer(_ASKS, tmp_path) == ["True", "True"]
        assert kept.read_bytes()[-100:] == whole[-100:]


def test_a_full_disk_or_one_that_only_reads_is_no_obstacle(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    code_cache._write("some.module", "name", b"code")
    assert list(store.iterdir()) == []


def test_code_of_long_ago_is_cleared_away_and_nothing_else(store: Path) -> None:
    key = "0af4" * 8
    old, half, new = (store / f"sweep.{end}" for end in (
        f"wide-{key}.o", f"wide-{key}.o.{'0a' * 8}", f"narrow-{key}.o"
    ))  # fmt: skip
    others = [store / name for name in (
        "thesis.odt", "job.out", "main.o", "run.old", "a.ogg", "keep.txt", "sweep.wide-0.o",
        f"sweep.wide-{key}.old", f"sweep.wide-{key}.o.bak", f"{key}.o", f"my sweep.wide-{key}.o",
    )]  # fmt: skip
    for path in (old, half, new, *others):
        path.write_bytes(b"")
    for path in (old, half, *others):
        os.utime(path, (1, 1))
    code_cache._write("some.module", "name", b"code")
    assert not old.exists()
    assert not half.exists()
    assert new.exists()
    assert all(path.exists() for path in others)
    assert code_cache._read("some.module", "name") == b"code"


def test_code_that_raises_is_refused() -> None:
    from closeranks.comms.jit import object_code

    def divide(a: int, b: int) -> int:
        if b == 0:
            raise ZeroDivisionError
        return a // b

    made = numba.cfunc("int64(int64, int64)")(divide)
    with pytest.raises(ImportError, match="raises exceptions"):
        object_code.emit(made.inspect_llvm(), made.native_name)


def test_all_that_is_compiled_is_a_source() -> None:
    """Else code that was compiled from an older file would be taken for new."""
    for module in code_cache.SOURCES:
        path = ROOT / Path(*module.split(".")[1:]).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for found in names:
                inside = ROOT / (found.partition(".")[2].replace(".", "/") + ".py")
                if found.startswith("closeranks.") and inside.is_file():
                    assert found in code_cache.SOURCES, f"{module} reads {found}"


def test_numba_that_is_switched_off_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT"):
        code_cache.address_of.__wrapped__("closeranks.collectives.engine.compiled_loop", "wide")


def test_code_that_calls_what_is_not_here_is_refused() -> None:
    from closeranks.comms.jit import object_code

    text = "declare void @nobody_has_this()\ndefine void @f() {\n"
    code = object_code.emit(text + " call void @nobody_has_this()\n ret void\n}\n", "f")
    with pytest.raises(ImportError, match="nobody_has_this"):
        object_code.load_function(code)


def test_time_spent_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(code_cache._Spent, "seconds", 0.0)
    with code_cache.loading(), code_cache.loading():
        pass
    assert code_cache.spent_s() == 2.0


def test_the_lock_is_given_back_by_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "_lock", lambda: tmp_path / "lock")
    other = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    taken: list[bool] = []

    def compile_in_vain() -> None:
        with code_cache._alone():
            taken.append(code_cache._is_taken(other))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_in_vain()
    assert [*taken, code_cache._is_taken(other)] == [False, True]
    os.close(other)


def test_without_a_place_for_a_lock_everybody_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "_lock", lambda: tmp_path / "nowhere" / "lock")
    with code_cache._alone():
        pass
