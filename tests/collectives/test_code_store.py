"""Compiled code is made once a node, and loaded without what it does not need."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from closeranks.collectives import code_store

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("numba")

_ASKS = """
import numpy as np
from closeranks.collectives.combiners import combiner_of
from closeranks.collectives.code_store import spent_s
found = combiner_of("LXOR", np.dtype(np.int16))
assert found is not None and spent_s() > 0
"""
_RUNS = """
import numpy as np
from closeranks.collectives import node_kernels
frame, state = np.zeros(node_kernels.FRAME, np.int64), np.zeros(node_kernels.STATE, np.int64)
memory = np.zeros(4096, np.int64)
frame[node_kernels.SIZE], frame[node_kernels.FLAGS] = 1, memory.ctypes.data
assert node_moves.barrier(frame.ctypes.data, state.ctypes.data, 0, 0, 0)
"""
_LOOKS = """
import sys
from numba.np import arraymath
import scipy
print("scipy.linalg" in sys.modules, arraymath._HAVE_BLAS)
import scipy.linalg.cython_blas
print(hasattr(scipy.linalg, "inv"))
"""


def python(program: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "NUMBA_DEBUG_CACHE": "1",
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, stdout=subprocess.PIPE
    )


def test_one_process_compiles_and_the_others_load(tmp_path: Path) -> None:
    children = [python(_ASKS, tmp_path) for _ in range(3)]
    said = [child.communicate(timeout=100)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    saved = [text.count("data saved") for text in said]
    loaded = [text.count("data loaded") for text in said]
    assert sum(saved) == 2, "a pair of loops, once"
    assert sum(loaded) == 4, "by either of the others"


def test_code_is_made_anew_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    for room in ("closeranks", "collectives", "comms"):
        shutil.copytree(ROOT / room, tmp_path / room, symlinks=True)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
                   "NUMBA_DEBUG_CACHE": "1", "PYTHONPATH": str(tmp_path)}  # fmt: skip
    program = "from closeranks.collectives import node_moves; print(node_moves.__file__)\n" + _RUNS
    changed = tmp_path / "collectives" / "node_kernels.py"
    said = []
    for _ in range(3):
        child = subprocess.run(
            [sys.executable, "-c", program], env=environment, text=True, capture_output=True,
            timeout=100, check=True, cwd=tmp_path,
        )  # fmt: skip
        said.append("data saved" in child.stdout)
        assert str(tmp_path) in child.stdout
        if len(said) == 2:
            os.utime(changed, (1, 1))
    assert said == [True, False, True]


def test_scipy_is_not_stood_in_for_beside_other_threads() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    assert code_store._stubs() == {}
    done.set()
    other.join()


def test_scipy_is_left_alone_and_found_again(tmp_path: Path) -> None:
    pytest.importorskip("scipy.linalg")
    child = python(_ASKS + _LOOKS, tmp_path)
    lines = child.communicate(timeout=100)[0].splitlines()
    assert child.returncode == 0
    assert [line for line in lines if "[cache]" not in line] == ["False True", "True"]


def test_time_spent_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(code_store._Spent, "seconds", 0.0)
    assert gc.isenabled()
    with code_store.loading():
        with code_store.loading():
            pass
        assert not gc.isenabled(), "until all is loaded"
    assert gc.isenabled()
    assert code_store.spent_s() == 2.0


def test_the_lock_is_given_back_by_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "_path", lambda: tmp_path / "lock")
    other = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    taken: list[bool] = []

    def compile_in_vain() -> None:
        with code_store._alone():
            taken.append(code_store._is_taken(other))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_in_vain()
    assert [*taken, code_store._is_taken(other)] == [False, True]
    os.close(other)


def test_without_a_place_for_a_lock_everybody_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "_path", lambda: tmp_path / "nowhere" / "lock")
    with code_store._alone():
        pass
