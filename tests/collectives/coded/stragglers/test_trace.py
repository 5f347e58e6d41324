"""Files of traces: what is written comes back, and nothing bad is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from closeranks.collectives.coded import Trace
from closeranks.collectives.coded.stragglers.trace_file import TraceWriter, read_trace
from closeranks.errors import UsageError


def written(path: Path, compute_s: Any, **options: Any) -> Path:
    """Write a trace of one block."""
    block = np.asarray(compute_s, float)
    TraceWriter(path, block.shape[1], **options).append(block)
    return path


def test_blocks_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    compute, step = random.random((200, 3)), random.random((200, 3))
    writer = TraceWriter(tmp_path / "t.h5", 3, micro=8, hosts=["a", "b", "ü"])
    for first in range(0, 200, 64):
        writer.append(compute[first : first + 64], step[first : first + 64])
        assert writer.rounds == min(200, first + 64)
        # Whoever is killed here leaves a file that can be read.
        assert len(read_trace(tmp_path / "t.h5").compute_s) == writer.rounds
    writer.append(np.zeros((0, 3)))
    found = read_trace(tmp_path / "t.h5")
    assert (found.compute_s == compute).all()
    assert (found.step_s == step).all()
    assert (found.micro, found.hosts) == (8, ("a", "b", "ü"))
    assert list(tmp_path.iterdir()) == [tmp_path / "t.h5"]


def test_a_new_trace_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    written(tmp_path / "t.h5", [[1, 2]] * 9)
    written(tmp_path / "t.h5", [[1, 2, 3]])
    assert Trace(tmp_path / "t.h5").n == 3


def test_factors_are_multiples_of_the_usual_time(tmp_path: Path) -> None:
    trace = Trace(written(tmp_path / "t.h5", [[2, 2, 4], [2, 6, 2], [2, 2, 0]], micro=4))
    assert (trace.n, trace.rounds, trace.micro, trace.usual_s) == (3, 3, 4, 2)
    assert trace.factors(2, 3).tolist() == [[1, 1, 2], [1, 3, 1]]
    assert 0 < trace.factors(3, 3)[2, 2] < 1e-3
    assert trace.overhead_s == 0
    with pytest.raises(UsageError, match=r"t\.h5: it is short: 3 rounds, not 4"):
        trace.factors(4, 3)
    with pytest.raises(UsageError, match=r"t\.h5: it is of 3 ranks, not 2"):
        trace.factors(3, 2)


def test_what_steps_take_beside_the_slowest_rank(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", 2)
    writer.append([[1, 2]] * 3, [[2.5, 2.5], [2.7, 2.7], [0, 2.5]])
    assert Trace(tmp_path / "t.h5").overhead_s == pytest.approx(0.6)


def change(name: str, value: Any) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        file.attrs[name] = value

    return act


def replace(name: str, **made: Any) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        del file[name]
        if made:
            file.create_dataset(name, **made)

    return act


def put(value: float) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        file["compute_s"][3, 1] = value

    return act


def lead_away(file: h5py.File) -> None:
    del file["compute_s"]
    file["compute_s"] = h5py.ExternalLink("other.h5", "/compute_s")


def soft(file: h5py.File) -> None:
    del file["compute_s"]
    file["compute_s"] = h5py.SoftLink("/step_s")


def store_outside(file: h5py.File) -> None:
    del file["compute_s"]
    file.create_dataset("compute_s", (5, 2), "f8", external=[("/etc/passwd", 0, 80)])


def longer(file: h5py.File) -> None:
    file["compute_s"].resize(10**9, axis=0)
    file["step_s"].resize(10**9, axis=0)


def group(file: h5py.File) -> None:
    del file["hosts"]
    file.create_group("hosts")


def empty(file: h5py.File) -> None:
    for name in ("compute_s", "step_s"):
        file[name].resize(0, axis=0)


def short(file: h5py.File) -> None:
    file["step_s"].resize(4, axis=0)


BAD: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "newer": (change("closeranks_trace", 2), "format 2, newer than 1"),
    "no number": (change("closeranks_trace", "1"), "its closeranks_trace is no number"),
    "format 0": (change("closeranks_trace", 0), "format 0 of 2 ranks"),
    "no ranks": (change("n", 0), "format 1 of 0 ranks"),
    "other ranks": (change("n", 3), "compute_s of 5 rounds and 2 ranks"),
    "none of ours": (lambda file: file.attrs.clear(), "no trace of closeranks"),
    "nan": (put(float("nan")), "compute_s of rank 1 in round 4 is nan"),
    "infinite": (put(float("inf")), "compute_s of rank 1 in round 4 is inf"),
    "negative": (put(-1), "compute_s of rank 1 in round 4 is -1.0"),
    "lacking": (replace("step_s"), "step_s is not there"),
    "pickled": (replace("compute_s", data=b"cos\nsystem"), "no data set of 2 axes"),
    "float32": (replace("compute_s", data=np.ones((5, 2), "f4")), "elements of float32"),
    "group": (group, "no data set"),
    "external link": (lead_away, "compute_s is a link"),
    "soft link": (soft, "compute_s is a link"),
    "external storage": (store_outside, "in another file"),
    "filter": (
        replace("compute_s", data=np.ones((5, 2)), chunks=(5, 2), compression="gzip"),
        "goes through a filter",
    ),
    "longer than it is": (longer, "compute_s of 1000000000 rounds"),
    "short": (short, "5 rounds, but 4 of them with steps"),
    "empty": (empty, "it has no rounds"),
    "hosts": (replace("hosts", data=np.frombuffer(b'["a"]', "u1")), "a host for each rank"),
    "no json": (replace("hosts", data=np.frombuffer(b"[", "u1")), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_path(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.h5", [[1, 2]] * 5)
    act, said = BAD[name]
    with h5py.File(path, "r+") as file:
        act(file)
    with pytest.raises(UsageError) as found:
        Trace(path)
    assert said in str(found.value)
    assert str(path) in str(found.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    good = written(tmp_path / "good.h5", [[1, 2]] * 5)
    (tmp_path / "link.h5").symlink_to(good)
    os.mkfifo(tmp_path / "pipe.h5")
    (tmp_path / "text.h5").write_text("1 2 3")
    (tmp_path / "cut.h5").write_bytes(good.read_bytes()[:900])
    cases = {
        "gone.h5": "No such file", "link.h5": "symbolic link", "pipe.h5": "no plain file",
        "text.h5": "cannot be read", "cut.h5": "cannot be read", ".": "no plain file",
    }  # fmt: skip
    for name, said in cases.items():
        with pytest.raises(UsageError) as found:
            Trace(tmp_path / name)
        assert said in str(found.value)
        assert str(tmp_path / name) in str(found.value)
    with pytest.raises(UsageError, match="most ranks computed for no time"):
        Trace(written(tmp_path / "idle.h5", [[0, 0]] * 5))


def test_a_writer_refuses_what_a_reader_would(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", 2)
    for block, said in (
        ([[1, 2, 3]], "shape (1, 3)"),
        ([1, 2], "shape (2,)"),
        ([[1, float("nan")]], "no time"),
        ([[1, -1]], "no time"),
        ("x", "compute_s is 'x'"),
    ):
        with pytest.raises(UsageError) as found:
            writer.append(block)
        assert said in str(found.value)
    with pytest.raises(UsageError, match="compute_s has 1 rounds, step_s 2"):
        writer.append([[1, 2]], [[1, 2]] * 2)
    bad: list[tuple[Path, int, list[str], str]] = [
        (tmp_path / "t.h5", 0, [], "n is 0"),
        (tmp_path / "t.h5", 2, ["a"], "1 hosts"),
        (tmp_path / "no" / "t.h5", 2, [], "cannot be written"),
        (tmp_path, 2, [], "cannot be written"),
    ]
    for path, n, hosts, said in bad:
        with pytest.raises(UsageError) as refused:
            TraceWriter(path, n, hosts=hosts)
        assert said in str(refused.value)
    (tmp_path / "t.h5").unlink()
    (tmp_path / "t.h5").symlink_to(written(tmp_path / "u.h5", [[1, 2]]))
    with pytest.raises(UsageError, match="cannot be written"):
        writer.append([[1, 2]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.h5", "u.h5"]


@pytest.mark.parametrize("path", [None, 3, b"run.trace", "", "/", "."])
def test_what_names_no_file(path: Any) -> None:
    for make in (Trace, lambda given: TraceWriter(given, 2)):
        with pytest.raises(UsageError, match=r"path is|no plain file"):
            make(path)


def test_seconds_that_overflow(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", 2)
    for wrong in (1e308, 1j):
        with pytest.raises(UsageError):
            writer.append([[1, wrong]])
    writer.append([[5e-324, 5e-324]] * 9)
    with pytest.raises(UsageError, match="for no time"):
        Trace(tmp_path / "t.h5")
