"""Findings of earlier jobs on real ranks: all begin with the same, and rank 0 writes them."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.engine.init_state import Family
from closeranks.collectives.selection.findings import CallKind, TrialFinding, TrialFindings
from closeranks.collectives.selection.remembered import look_at_folder
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms.jit.code_cache import cache_folder

KIND, RING = CallKind("allreduce", 13), TrialFinding("ring", 2e-5, 3e-5)


@pytest.fixture
def pair(comm: MPI.Intracomm | None) -> Iterator[MPI.Intracomm | None]:
    """The first two ranks, which have a core each; None on others, and on one rank."""
    if comm is None:
        yield None
        return
    part = comm.Split(MPI.UNDEFINED if comm.size == 1 or comm.rank > 1 else 0)
    if part == MPI.COMM_NULL:
        yield None
    else:
        yield MPI.Intracomm(part)
        part.Free()


@pytest.fixture
def place(comm: MPI.Intracomm | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder of findings, as rank 0 sees it; others see one of their own."""
    if comm is None:
        yield Path()
        return
    cache_folder()  # which is kept: compiled code stays where it is
    own = Path(tempfile.mkdtemp())
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "1")
    yield Path(comm.bcast(own)) / "closeranks"
    comm.Barrier()
    shutil.rmtree(own)


def family(world: cr.Communicator) -> Family:
    return world.membership.family


def find(world: cr.Communicator, kind: CallKind = KIND, finding: TrialFinding = RING) -> None:
    """Find something, on all ranks alike."""
    mine = family(world).findings.setdefault(shape(world.hierarchy), TrialFindings())
    mine.by_kind[kind] = finding


def known(world: cr.Communicator) -> dict[CallKind, TrialFinding]:
    """What a communicator begins with, which is the same on all ranks."""
    findings = family(world).findings
    digests = {name: one.digest() for name, one in findings.items()}
    assert world.allgather(digests) == [digests] * world.size
    assert set(findings) == {shape(world.hierarchy)}
    return dict(findings[shape(world.hierarchy)].by_kind)


def files(comm: MPI.Intracomm, place: Path) -> int:
    """How many there are, once all have closed; all can be read."""
    comm.Barrier()
    if comm.rank == 0 and place.exists():
        assert look_at_folder().ignored == {}
    return len(list(place.iterdir())) if place.exists() else 0


def test_a_job_begins_with_what_the_one_before_has_found(
    pair: MPI.Intracomm | None, place: Path
) -> None:
    if pair is None:
        return
    other, settled = CallKind("bcast", 3, False), TrialFinding("native", 1e-6)
    with cr.init(pair) as world:
        assert known(world) == {}
        find(world)
    assert files(pair, place) == 1
    with cr.init(pair) as world:
        assert known(world) == {KIND: RING._replace(is_remembered=True)}
        find(world, other, settled)
    assert files(pair, place) == 1
    with cr.init(pair) as world:
        assert set(known(world)) == {KIND, other}
        find(world, KIND, settled)
    with cr.init(pair) as world:
        assert known(world)[KIND] == settled._replace(is_remembered=True)
    assert not any(Path(os.environ["XDG_CACHE_HOME"]).iterdir()) or pair.rank == 0


@pytest.mark.parametrize("options", [{}, {"deterministic": True}])
def test_it_can_be_turned_off(
    pair: MPI.Intracomm | None,
    place: Path,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if pair is None:
        return
    with cr.init(pair) as world:
        find(world)
    assert files(pair, place) == 1
    before = [path.read_bytes() for path in place.iterdir()]
    pair.Barrier()
    if not options and pair.rank == 0:
        monkeypatch.setenv("CLOSERANKS_REMEMBER", "0")
    with cr.init(pair, **options) as world:
        assert known(world) == {}
        find(world, CallKind("bcast", 3))
    assert files(pair, place) == 1
    assert [path.read_bytes() for path in place.iterdir()] == before


def test_a_setting_that_means_nothing_is_refused(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "perhaps")
    with pytest.raises(cr.UsageError, match="REMEMBER: is 'perhaps'"):
        cr.init(comm)


def test_one_rank_tries_and_remembers_nothing(comm: MPI.Intracomm, place: Path) -> None:
    with cr.init(MPI.COMM_SELF) as world:
        find(world)
    assert files(comm, place) == 0


@pytest.mark.parametrize("end", ["abandon", "an error", "another handle", "a derived one"])
def test_only_an_orderly_end_of_the_first_writes(
    pair: MPI.Intracomm | None, place: Path, end: str
) -> None:
    if pair is None:
        return
    world = cr.init(pair)
    find(world)
    if end == "abandon":
        world.abandon()
    elif end == "an error":
        with pytest.raises(ZeroDivisionError), world:
            raise ZeroDivisionError
    elif end == "another handle":
        MPI.Intracomm(world).Free()
    else:
        world.Dup().close()
    assert files(pair, place) == 0
    pair.Barrier()
    world.close()
    assert files(pair, place) == (end == "a derived one")


def test_after_a_failure_nothing_is_written(pair: MPI.Intracomm | None, place: Path) -> None:
    if pair is None:
        return
    with cr.init(pair) as world:
        find(world)
        family(world).world.epoch = 1
    assert files(pair, place) == 0


def test_what_calls_have_found_is_not_tried_again(pair: MPI.Intracomm | None, place: Path) -> None:
    if pair is None:
        return
    x, y = np.ones(2048), np.empty(2048)
    with cr.init(pair) as world:
        world.membership.chooser.note_kernels("allreduce", None)
        world.membership.chooser.pricing.kernels.clear()  # which may be surely faster
        for _ in range(5000):
            world.Allreduce(x, y)
            if family(world).findings[shape(world.hierarchy)].by_kind:
                break
        first = world.explain("allreduce", x.nbytes, "float64")
        assert first.source == "tried"
    assert files(pair, place) == 1
    with cr.init(pair) as world:
        world.membership.chooser.pricing.kernels.clear()
        again = world.explain("allreduce", x.nbytes, "float64")
        assert (again.source, again.algorithm) == ("remembered", first.algorithm)
        assert again.calls_to_settle == 0
        world.Allreduce(x, y)
        assert (y == pair.size).all()
        assert world.statistics().algorithms == {"allreduce": {first.algorithm: 1}}


def test_a_revoked_world_is_no_orderly_end(
    pair: MPI.Intracomm | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pair is None:
        return
    world = cr.init(pair)
    find(world)
    family(world).world.revoke()
    world.close()
    assert files(pair, place) == 0


def test_what_was_only_remembered_is_not_written(pair: MPI.Intracomm | None, place: Path) -> None:
    if pair is None:
        return
    with cr.init(pair) as world:
        find(world)
    pair.Barrier()
    before = [path.stat() for path in place.iterdir()]
    pair.Barrier()
    with cr.init(pair) as world:
        assert known(world)
    pair.Barrier()
    assert [path.stat() for path in place.iterdir()] == before


def test_two_communicators_that_close_at_once_leave_a_whole_file(
    comm: MPI.Intracomm, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size != 4:
        return
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.parent))
    half = MPI.Intracomm(comm.Split(comm.rank // 2))
    for number in range(3):
        world = cr.init(half)
        find(
            world,
            CallKind(("gather", "scatter")[comm.rank // 2], number),
            TrialFinding("native", 1e-6),
        )
        comm.Barrier()
        world.close()
        assert files(comm, place) == 1
    with cr.init(half) as world:
        kinds = comm.allgather(known(world))
        assert kinds == kinds[:1] * 4, "both halves sit alike"
        assert {kind.size_class for kind in kinds[0]} >= {2}
    half.Free()


def test_a_slow_disk_keeps_no_rank(
    pair: MPI.Intracomm | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pair is None:
        return
    answers, real = threading.Event(), os.replace

    def late(*given: Any, **more: Any) -> None:
        answers.wait(30)
        real(*given, **more)

    monkeypatch.setattr(os, "replace", late)
    world = cr.init(pair)
    find(world)
    began = time.monotonic()
    world.close()
    took_s = time.monotonic() - began
    assert took_s < 10
    assert pair.rank or took_s > 0.5, "rank 0 gives it a moment"
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "closeranks findings":
            thread.join()
    assert files(pair, place) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ranks_begin_whatever_stands_in_the_files_place(
    pair: MPI.Intracomm | None, place: Path
) -> None:
    if pair is None:
        return
    with cr.init(pair) as world:
        find(world)
    pair.Barrier()
    if pair.rank == 0:
        (path,) = place.iterdir()
        path.unlink()
        os.mkfifo(path)
    began = time.monotonic()
    with cr.init(pair) as world:
        assert known(world) == {}
    assert time.monotonic() - began < 10
