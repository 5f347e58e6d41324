"""What ``import closeranks`` costs and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import closeranks

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("mpi4py", "numba", "cupy", "h5py", "scipy", "matplotlib", "sklearn", "numpy")


def _python(code: str, folder: Path) -> str:
    """Run code in a fresh interpreter, in another folder, from this tree."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    command = [sys.executable, "-c", start]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_takes_a_quarter_of_a_second_at_most(tmp_path: Path) -> None:
    walls = []
    for _ in range(5):
        start = time.perf_counter()
        _python("import closeranks", tmp_path)
        walls.append(time.perf_counter() - start)
    assert min(walls) < 0.25


def test_import_starts_nothing_heavy(tmp_path: Path) -> None:
    code = "import closeranks, json, threading; print(json.dumps([sorted(sys.modules), "
    modules, threads = json.loads(_python(code + "threading.active_count()]))", tmp_path))
    assert [name for name in HEAVY if name in modules] == []
    assert threads == 1


def test_a_module_has_one_name(tmp_path: Path) -> None:
    code = (
        "import closeranks.comms.topology.topology as t; print(t.__name__, 'comms' in sys.modules)"
    )
    assert _python(code, tmp_path).split() == ["closeranks.comms.topology.topology", "False"]


def test_every_public_name_is_there(tmp_path: Path) -> None:
    code = "import closeranks as cr; print(*[name for name in cr.__all__ if not hasattr(cr, name)])"
    assert _python(code, tmp_path).split() == []


def test_public_names_are_listed_before_use() -> None:
    assert set(closeranks.__all__) <= set(dir(closeranks))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'allreduce'"):
        closeranks.allreduce  # noqa: B018
