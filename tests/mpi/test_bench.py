"""The bench suite on real ranks: every operation, every comparison, small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from closeranks.collectives import sparse
from closeranks.collectives.sparse import topk_reduction
from closeranks.comms.buffers import packing
from closeranks.comms.discovery import node_hardware
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches import init_time, overlap, pack, plan_steps, snapshot
from closeranks.jobs.bench.formats import FORMATS, ResultTable
from closeranks.jobs.bench.measuring.collective_facts import as_dtype
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.comparison import measure_setting
from closeranks.jobs.bench.measuring.network import TABLE
from closeranks.jobs.bench.measuring.session import BenchRequest, Session, open_session
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.bench.suite import run
from tests.jobs.bench.keys import BASE

if TYPE_CHECKING:
    import closeranks


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep batches short: these tests look at results, not at times."""
    monkeypatch.setattr("closeranks.jobs.bench.measuring.timing.BATCH", 5)
    monkeypatch.setattr("closeranks.jobs.bench.measuring.timing._ENOUGH_S", 1e-6)
    for name, small in (("_SIDE", 80), ("_COLD_BYTES", 4096)):
        monkeypatch.setattr(pack, name, small)


def session(world: closeranks.Communicator, *names: str, **changes: Any) -> Session:
    request = BenchRequest(names, (24, 5000), effort=Effort(iterations=2, warmup=0))
    return open_session(replace(request, **changes), world)


def lines_and_rows(where: Session) -> tuple[list[str], list[dict[str, Any]]]:
    lines: list[str] = []
    rows = run(where, ResultTable(where), lines.append)
    assert all(set(BASE) <= row.keys() for row in rows)
    return lines, rows


def test_every_collective_is_right(world: closeranks.Communicator) -> None:
    lines, rows = lines_and_rows(session(world, *COLLECTIVES, check=True))
    assert [row["name"] for row in rows if row["asked_bytes"] in (0, 24)] == list(COLLECTIVES)
    for row in rows:
        assert row["wrong"] == 0, row
        assert row["ranks"] == world.Get_size()
        assert 0 < row["time_us_min"] <= row["time_us_p50"] <= row["time_us_max"]
    assert sum(not line.startswith("#") for line in lines) == len(rows)
    assert world.allgather(rows) == [rows] * world.Get_size(), "the same on every rank"


def test_types_and_reductions(world: closeranks.Communicator) -> None:
    kinds = [("int8", "max"), ("bfloat16", "sum"), ("float16", "sum"), ("float64", "mean")]
    for dtype, op in kinds:
        where = session(world, "allreduce", "reduce_scatter", "alltoallv", dtype=dtype, op=op)
        rows = run(where, ResultTable(where), lambda _: None)
        assert [row["wrong"] for row in rows] == [0] * 6, (dtype, op)


def test_a_wrong_result_is_counted(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = type(world).Allreduce

    def almost(self: Any, x: Any, y: Any, **keywords: Any) -> None:
        right(self, x, y, **keywords)
        if self.Get_rank() == self.Get_size() - 1:
            y[-1] += 1

    monkeypatch.setattr(type(world), "Allreduce", almost)
    where = session(world, "allreduce", sizes=(64,))
    lines, rows = lines_and_rows(where)
    assert rows[0]["wrong"] == 1
    assert lines[-1].endswith("1 wrong elements")
    unchecked = session(world, "allreduce", sizes=(64,), check=False)
    assert run(unchecked, ResultTable(unchecked), lambda _: None)[0]["wrong"] is None


def test_packing(world: closeranks.Communicator) -> None:
    lines, rows = lines_and_rows(session(world, "pack", sizes=(64,)))
    assert len({row["face"] for row in rows}) == len(rows) > 10
    for row in rows:
        assert set(row) >= {"face", "native_us", "numpy_us", "ours_us"}
        assert row["wrong"] == 0, row
        assert row["speedup"] == pytest.approx(row["native_us"] / row["ours_us"])
        assert row["speedup_better"] <= row["speedup"]
    assert sum(not line.startswith("#") for line in lines) == len(rows)
    assert world.allgather(rows) == [rows] * world.Get_size(), "the same on every rank"


def test_a_wrong_pack_is_counted(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = packing.Packer(lambda *_: None, lambda *_: None)
    monkeypatch.setattr(packing, "packer", lambda *_: nothing)
    faces = pack.shapes()[2:3]
    monkeypatch.setattr(pack, "shapes", lambda: faces)
    _, rows = lines_and_rows(session(world, "pack"))
    assert [row["wrong"] for row in rows] == [80 * 80 * world.Get_size()]


def test_against_the_library(world: closeranks.Communicator) -> None:
    where = session(
        world, "allreduce", native=True, best=True, counters=TABLE.exists(), sizes=(64, 1 << 20)
    )
    for row in run(where, ResultTable(where), lambda _: None):
        assert row["iterations"] >= 11
        assert row["speedup"] == pytest.approx(row["native_us_p50"] / row["time_us_p50"])
        assert row["native_vs_native"] > 0
        assert row["best_settings"] == "defaults", "no other launch measured anything"
        assert row["best_us_p50"] == pytest.approx(row["native_us_p50"])
        assert row.get("nic_tx_bytes_max", 0) >= 0
        assert 0 < row.get("nic_even_percent", 100) <= 100
    results = measure_setting(where, COLLECTIVES["allgather"], "auto", 64, 1)
    assert any(not result.key.batched for result in results)
    for result in results:
        assert result.p50_us > 0
        assert result.ours_us is not None, "such short calls meet ours in their own launch"
        assert result.speedup(1e9) == result.p50_us / result.ours_us
    assert not measure_setting(where, COLLECTIVES["allgather"], "auto", 64, 99)


def test_persistent_operations_meet_both_of_the_library(world: closeranks.Communicator) -> None:
    names = [name for name in COLLECTIVES if name != "barrier"]
    where = session(world, *names, persistent=True, native=True, plain=True, sizes=(1 << 12,))
    assert where.describe()[2].endswith(", persistent")
    for row in run(where, ResultTable(where), lambda _: None):
        assert row["wrong"] == 0
        assert row["speedup_plain"] == pytest.approx(row["plain_us_p50"] / row["time_us_p50"])
        assert row["speedup"] > 0


@pytest.mark.parametrize("form", ["table", "osu", "nccl"])
def test_one_rank_is_told_that_nothing_is_sent(world: closeranks.Communicator, form: str) -> None:
    begun = FORMATS[form](session(world, "allreduce")).begin()
    assert any("nothing is sent" in line for line in begun) is (world.size == 1)


def test_against_a_copy(world: closeranks.Communicator) -> None:
    where = session(world, "gather", "barrier", copy=True, sizes=(1 << 16,))
    for row in run(where, ResultTable(where), lambda _: None):
        assert row["wrong"] == 0, "a copy overwrites the result, which is made again"
        assert row["over_copy"] == pytest.approx(row["time_us_p50"] / row["copy_us_p50"])


def test_buffers_that_the_node_shares(world: closeranks.Communicator) -> None:
    where = session(world, "gather", "allreduce", "barrier", empty=True, sizes=(1 << 16,))
    assert "comm.empty buffers" in where.describe()[2]
    assert [row["wrong"] for row in run(where, ResultTable(where), lambda _: None)] == [0, 0, 0]


def test_between_points(world: closeranks.Communicator) -> None:
    names = ("pingpong", "bandwidth", "bibandwidth", "pairs", "matrix")
    where = session(world, *names, own_sizes={"matrix": (1000,)})
    ranks = world.Get_size()
    if ranks == 1:
        with pytest.raises(UsageError, match="it needs 2 ranks and has 1"):
            run(where, ResultTable(where), lambda _: None)
        return
    rows = run(where, ResultTable(where), lambda _: None)
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    pairs = [(row["source"], row["target"]) for row in rows if row["name"] == "matrix"]
    assert pairs == [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    assert {row["pairs"] for row in rows if row["name"] == "pairs"} == {ranks // 2}


def test_steps(world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_steps, "_RUNS", 3)
    monkeypatch.setattr(plan_steps, "_MOST", 1)
    monkeypatch.setattr(plan_steps, "_FEWEST", 1)
    where = session(world, "steps")
    rows = run(where, ResultTable(where), lambda _: None)
    assert [row["algorithm"] for row in rows] == ["python", "compiled"]
    for row in rows:
        assert ("busy_over_quiet" in row) == (world.Get_size() > 1)
        assert row["wrong"] == 0
        assert row["time_us_min"] > 0


def test_overlap(world: closeranks.Communicator) -> None:
    where = session(world, "overlap", sizes=(2000,), own={"overlapped": ("allreduce", "bcast")})
    lines, rows = lines_and_rows(where)
    started = [(row["operation"], row["started"], row["computed"]) for row in rows]
    assert started == [
        (operation, name, kind)
        for operation, name in (
            ("allreduce", "Iallreduce"), ("allreduce", "bucketed"), ("bcast", "Ibcast"),
        )
        for kind in ("long", "short")
    ]  # fmt: skip
    for row in rows:
        assert set(row) >= {"overlap_percent", "pure_us", "compute_us", "overall_us"}
        assert row["wrong"] == 0, row
        assert row["iterations"] == 2
        assert row["overall_us"] > row["compute_us"] > 0
        bound = 1.15 * (row["alone_us"] + row["cpu_us"] / node_hardware.usable_cores())
        assert row["bound_us"] == pytest.approx(bound)
    assert sum(not line.startswith("#") for line in lines) == len(rows)
    assert world.allgather(rows) == [rows] * world.Get_size(), "the same on every rank"


def test_checkpoints(world: closeranks.Communicator) -> None:
    where = session(world, "checkpoint", sizes=(100_000,), own={"parity": (1, 2)})
    lines, rows = lines_and_rows(where)
    assert [row["parity"] for row in rows] == [1, 2]
    for row in rows:
        assert row["wrong"] == 0, row
        assert 0 < row["copied_s"] <= row["committed_s"]
        assert all(row[key] > 0 for key in ("memcpy_s", "lazy_s", "restored_s", "rebuilt_s"))
        assert all(row[key] > 0 for key in ("slowdown", "slowdown_busy", "encoded_s"))
        assert row["state_bytes"] == 100_000
    assert sum(not line.startswith("#") for line in lines) == len(rows)


def test_snapshots(world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("_ENTRIES", 20), ("_FIRST", 1), ("_SAMPLES", 1)):
        monkeypatch.setattr(snapshot, name, number)
    where = session(world, "snapshot", sizes=(100_000,))
    lines, rows = lines_and_rows(where)
    assert {row["state"]: row["entries"] for row in rows} == {
        "one": 1, "many": 20, "gaps": 4, "shards": 4, "alike": 4, "not marked": 4,
    }  # fmt: skip
    for row in rows:
        assert row["wrong"] == 0, row
        assert row["copied_s"] > 0 <= row["entry_s"]
        assert 90_000 < row["state_bytes"] <= 100_000, row
    assert sum(not line.startswith("#") for line in lines) == len(rows)


def test_calls_that_change(world: closeranks.Communicator) -> None:
    own = {"patterns": ("kinds", "comms", "fresh", "odd"), "seed": 3}
    effort = Effort(iterations=27, warmup=1)
    lines, rows = lines_and_rows(session(world, "varied", own=own, effort=effort))
    assert [row["pattern"] for row in rows] == [
        name for name in ("kinds", "comms", "fresh-4K", "fresh-256K", "odd") for _ in range(2)
    ]
    for first, settled in zip(rows[::2], rows[1::2], strict=True):
        assert (first["block"], settled["block"]) == ("first", "settled")
        assert (first["calls"], settled["calls"]) == (3, 27)
        assert first["wrong"] == settled["wrong"] == 0, (first, settled)
        assert first["time_us_min"] > 0
    assert sum(not line.startswith("#") for line in lines) == len(rows)
    assert world.allgather(rows) == [rows] * world.Get_size(), "the same on every rank"


SPARSE: dict[str, Any] = {"density": "0.01,0.5", "nnz": None, "topk": "0.1"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sparse_sums(world: closeranks.Communicator, dtype: str) -> None:
    where = session(world, "sparse", sizes=(4000,), own=SPARSE, dtype=dtype, algorithms=("split",))
    lines, rows = lines_and_rows(where)
    assert [row["algorithm"] for row in rows] == ["split", "split", "topk"]
    for row, share in zip(rows, (0.01, 0.5, 0.1), strict=True):
        assert row["wrong"] == 0, row
        assert row["density"] == pytest.approx(share, rel=0.1)
        assert row["nnz"] == round(share * 4000 / as_dtype(dtype).itemsize)
        assert row["speedup"] == pytest.approx(row["dense_us"] / row["time_us_p50"])
        assert (row["bytes_sent"] > 0) == (world.size > 1)
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert sum(not line.startswith("#") for line in lines) == len(rows)
    assert world.allgather(rows) == [rows] * world.size, "the same on every rank"


@pytest.mark.parametrize("what", ["indices", "values", "residual"])
def test_wrong_largest_entries_are_counted(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    right = topk_reduction.topk_allreduce

    def almost(*arguments: Any) -> Any:
        found, residual = right(*arguments)
        array = residual if what == "residual" else getattr(found, what)
        array[-1] += 1  # the last index leaves the vector, or is another
        return found, residual

    monkeypatch.setattr(sparse, "topk_allreduce", almost)
    where = session(world, "sparse", sizes=(4000,), own=SPARSE)
    assert [row["wrong"] for row in lines_and_rows(where)[1]] == [0, 0, world.size]


def test_rows_and_chunks_on_their_way(world: closeranks.Communicator) -> None:
    own = {"tokens": 50, "experts": 16, "choices": 3}
    _, rows = lines_and_rows(session(world, "route", "chunks", sizes=(64,), own=own))
    assert [(row["name"], row["algorithm"]) for row in rows] == [
        ("route", "dispatch"), ("route", "combine"),
        ("chunks", "allgather"), ("chunks", "reduce_scatter"),
    ]  # fmt: skip
    for row in rows:
        assert row["wrong"] == 0, row
        assert row["speedup"] == pytest.approx(row["native_us_p50"] / row["time_us_p50"])


def test_wrong_results_beside_a_computation_are_counted(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = ((overlap.Single, "_case"), (overlap.Gradients, "_arrays"))
    for kind, _ in pairs:
        monkeypatch.setattr(kind, "run", lambda _self, compute: compute(0, 1))
    where = session(world, "overlap", sizes=(6400,))
    for row in run(where, ResultTable(where), lambda _: None):
        alone_is_right = world.Get_size() == 1 and row["started"] == "bucketed"
        assert (row["wrong"] > 1000 * world.Get_size()) != alone_is_right, row


def test_a_start_needs_a_fresh_process(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = session(world, "init")
    with pytest.raises(UsageError, match="MPI has started already; start it as a command"):
        run(where, ResultTable(where), lambda _: None)
    rank, ranks = world.Get_rank(), world.Get_size()
    laps = dict.fromkeys(init_time.PARTS, 0.25) | {"load_s": float(rank)}
    monkeypatch.setattr(init_time._Taken, "laps", laps)
    monkeypatch.setattr(init_time._Taken, "wrong", 3)
    lines, (row,) = lines_and_rows(where)
    assert row["seconds"] == pytest.approx(1 + ranks - 1)
    assert (row["mpi_init_s"], row["load_s"]) == (0.25, ranks - 1)
    assert row["wrong"] == 3 * ranks
    assert set(row) >= set(BASE)
    assert f"from MPI_Init to the end, {3 * ranks} wrong elements" in "\n".join(lines)


def test_what_cannot_be_measured(world: closeranks.Communicator) -> None:
    where = session(world, "bcast", algorithms=("auto", "magic"))
    with pytest.raises(UsageError, match=r"unknown: magic; choose from bcast: auto, native"):
        run(where, ResultTable(where), lambda _: None)
    without = session(world, "allreduce", native=True, dtype="bfloat16")
    with pytest.raises(UsageError, match="no allreduce of bfloat16"):
        run(without, ResultTable(without), lambda _: None)
