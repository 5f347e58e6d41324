"""The benchmark ``erasure``: parity made and blocks rebuilt, on one core.

`Code.encode` and `Code.reconstruct` are timed in place, as users call them.
Three others are timed in turn: the same bound beforehand, a copy of a block,
and ISA-L with the same matrix.  ISA-L is Intel's library of erasure codes; its
shared library comes with the wheel of PyECLib, or with the system.  There is
no MPI here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import numpy as np

from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.generator_matrix import Blocks, Bytes
from closeranks.checkpoint.erasure.matrix_product import aligned_rows
from closeranks.checkpoint.erasure.product_llvm import here
from closeranks.comms.jit.code_cache import processor
from closeranks.jobs.bench.benches.registration import Benchmark, LoneRun, run_alone
from closeranks.jobs.bench.measuring.number_text import aligned, numbers, short
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, Timing

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import BenchRequest


@cache
def library() -> Any | None:
    """Load the library.

    Local.

    Returns
    -------
    CDLL or None
        None where there is none.
    """
    found = find_spec("pyeclib")
    parents = (
        [Path(place).parent for place in (found.submodule_search_locations or [])] if found else []
    )
    wheel = [str(path) for parent in parents for path in parent.glob("pyeclib.libs/libisal*.so*")]
    name = next(iter(wheel), None) or ctypes.util.find_library("isal")
    return ctypes.CDLL(name) if name else None


def isal_product(matrix: Bytes, blocks: Blocks, results: Blocks) -> Callable[[], object]:
    """Prepare a product of its own.

    Local.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (rows, count)
        Factors.
    blocks, results : arrays of uint8, shapes (count, nbytes) and (rows, nbytes)
        Blocks that are multiplied, and the places of the results.

    Returns
    -------
    callable
        Multiplies once.
    """
    isal, (rows, count) = library(), matrix.shape
    assert isal is not None
    factors, tables = np.ascontiguousarray(matrix), np.zeros(32 * matrix.size, np.uint8)
    isal.ec_init_tables(count, rows, *map(_place, (factors, tables)))
    places = [np.array([row.ctypes.data for row in part], np.int64) for part in (blocks, results)]
    length, *kept = ctypes.c_int(len(blocks[0])), tables, *places
    arguments = (length, ctypes.c_int(count), ctypes.c_int(rows), *map(_place, kept))
    multiply = isal.ec_encode_data

    def call() -> object:
        return kept and multiply(*arguments)

    return call


def _place(array: Any) -> ctypes.c_void_p:
    """Give where an array lies."""
    return ctypes.c_void_p(array.ctypes.data)


Row = dict[str, Any]

#: Bytes of a block, if nobody says: in cache, and not.
SIZES: Final = "64K,64M"
#: Parity blocks, if nobody says.
_PARITIES: Final = (2, 3)
#: A sample takes at least so long, and there are so many at least.
_SAMPLE_S: Final = 3e-4
_LEAST: Final = 11
#: Blocks that are lost when some are rebuilt.
_LOSSES: Final = (1, 2)
_WIDTHS: Final = {"data": 6, "parity": 7, "bytes": 10, "what": 11, "us": 10, "bound": 10, "GB/s": 8,
                  "traffic": 9, "/copy": 7, "ISA-L us": 10, "speedup": 9, "wrong": 7}  # fmt: skip


class _Task(NamedTuple):
    """A product that is measured: which blocks are read, and which written."""

    what: str
    matrix: Bytes
    read: tuple[int, ...]
    written: tuple[int, ...]

    def calls(self, code: Code, blocks: Bytes) -> dict[str, Callable[[], object]]:
        """Give what users call, and the same bound."""
        if self.what == "encode":
            data, parity = blocks[: code.data], blocks[code.data :]
            return {"ours": lambda: code.encode(data, parity), "bound": code.encoder(data, parity)}
        present = [number not in self.written for number in range(len(blocks))]
        return {
            "ours": lambda: code.reconstruct(blocks, present, blocks),
            "bound": code.rebuilder(blocks, present),
        }


def _head() -> list[str]:
    """Write the lines above the rows."""
    beside = "ISA-L beside it" if library() else "ISA-L is not here: pip install pyeclib"
    return [
        f"# {processor()}, one core, {here()[0].name}; {beside}",
        "# GB/s of blocks that are read, traffic with those that are written; 1 GB/s = 1e9 bytes/s",
        "#" + aligned(_WIDTHS, _WIDTHS.values())[1:],
    ]


def _measure_codes(
    data: tuple[int, ...], parity: tuple[int, ...], sizes: tuple[int, ...], budget_s: float
) -> Iterator[Row]:
    """Measure all codes: encoding, and rebuilding one and two blocks of the data."""
    for count, more, nbytes in product(data, parity, sizes):
        code, blocks = Code(count, more), aligned_rows(count + more, nbytes)
        rng = np.random.default_rng(nbytes)
        for block in blocks[:count]:
            block[:] = rng.integers(0, 256, nbytes, dtype=np.uint8)
        code.encode(blocks[:count], blocks[count:])
        for task in _tasks(code):
            yield _measure(code, task, blocks, budget_s)


def _tasks(code: Code) -> Iterator[_Task]:
    """List what is measured of a code."""
    everything = range(code.data + code.parity)
    yield _Task(
        "encode", code.matrix, tuple(everything[: code.data]), tuple(everything[code.data :])
    )
    for losses in _LOSSES:
        if losses <= min(code.parity, code.data):
            recipe = code.recipe([number >= losses for number in everything])
            yield _Task(f"rebuild {losses}", recipe.matrix, recipe.read, recipe.lost)


def _measure(code: Code, task: _Task, blocks: Bytes, budget_s: float) -> Row:
    """Measure one product, and check it."""
    nbytes, read = blocks.shape[1], [blocks[number] for number in task.read]
    everything, copied = aligned_rows(len(blocks), nbytes), aligned_rows(1, nbytes)[0]
    everything[:] = blocks
    results = [everything[number] for number in task.written]
    for lost in results:
        lost[:] = 0
    calls = task.calls(code, everything)
    calls["copy"] = lambda: np.copyto(copied, read[0])
    if library():
        theirs = aligned_rows(len(task.written), nbytes)
        calls["isal"] = isal_product(task.matrix, read, theirs)
    taken = _timings(calls, budget_s)
    once_s = {name: 1e-6 * timing.p50_us for name, timing in taken.items()}
    traffic = (len(read) + len(results)) * nbytes / once_s["ours"]
    row: Row = {
        "name": "erasure",
        "algorithm": "auto",
        "ranks": 1,
        "nodes": 1,
        "dtype": "uint8",
        "op": "none",
        "data": code.data,
        "parity": code.parity,
        "size_bytes": nbytes,
        "block_bytes": nbytes,
        "what": task.what,
        "iterations": taken["ours"].calls,
        **taken["ours"].columns(),
        **NO_BANDWIDTH,
        "GBps": len(read) * nbytes / once_s["ours"] / 1e9,
        "traffic_GBps": traffic / 1e9,
        "memcpy_GBps": nbytes / once_s["copy"] / 1e9,
        "over_copy": traffic / (2 * nbytes / once_s["copy"]),
        "isal_GBps": None,
        "bound_us_p50": taken["bound"].p50_us,
        "wrong": int(np.count_nonzero(everything != blocks)),
    }
    if "isal" in once_s:
        row["isal_us_p50"] = taken["isal"].p50_us
        row["isal_GBps"] = len(read) * nbytes / once_s["isal"] / 1e9
        row["speedup_isal"] = once_s["isal"] / once_s["ours"]
        row["wrong"] += int(np.count_nonzero(blocks[list(task.written)] != theirs))
    return row


def _timings(calls: dict[str, Callable[[], object]], budget_s: float) -> dict[str, Timing]:
    """Time calls in turn."""
    for call in calls.values():
        call()
    once_s = {name: max(_time_s(call, 1), 1e-7) for name, call in calls.items()}
    times = {name: max(1, int(_SAMPLE_S / seconds)) for name, seconds in once_s.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end_s = time.perf_counter() + budget_s
    while len(samples["ours"]) < _LEAST or time.perf_counter() < end_s:
        for name, call in calls.items():
            samples[name].append(_time_s(call, times[name]) / times[name])
    return {
        name: Timing(np.array(taken), fmean(taken), len(taken) * times[name], times[name] > 1)
        for name, taken in samples.items()
    }


def _time_s(call: Callable[[], object], times: int) -> float:
    """Time some calls."""
    began_s = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - began_s


def _as_line(row: Row) -> str:
    """Write a row as text."""
    theirs, faster = row.get("isal_us_p50"), row.get("speedup_isal")
    words = (
        row["data"], row["parity"], row["size_bytes"], row["what"], short(row["time_us_p50"]),
        short(row["bound_us_p50"]),
        short(row["GBps"]), short(row["traffic_GBps"]), f"{row['over_copy']:.2f}",
        "-" if theirs is None else short(theirs), "-" if faster is None else f"{faster:.2f}x",
        row["wrong"],
    )  # fmt: skip
    return aligned(words, _WIDTHS.values())


def _report(request: BenchRequest, write: Callable[[str], object]) -> Iterator[Row]:
    """Measure codes, and write what comes of it.

    Gives a row for encoding, and for rebuilding one and two blocks of the data.
    """
    counts = numbers("--data", request.own["data"]), request.own["parity"] or _PARITIES
    for pair in product(*counts):
        Code(*pair)
    for line in _head():
        write(line)
    lengths = request.sizes_of("erasure")
    for row in _measure_codes(*counts, lengths, request.effort.budget_s):
        write(_as_line(row))
        yield row


def _run(request: BenchRequest) -> int:
    return run_alone(request, _report(request, click.echo), lambda row: not row["wrong"])


def _numbers(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Read ``--parity``."""
    return numbers("--parity", text) if text else None


PARITY = click.Option(
    ["--parity"],
    callback=_numbers,
    help="Parity blocks of erasure, default 2,3, and of checkpoint, 1.",
)

BENCHMARKS = (
    Benchmark(
        "erasure",
        options=(
            click.Option(
                ["--data"], default="4,8", show_default=True, help="Data blocks of erasure."
            ),
            PARITY,
        ),
        sizes=SIZES,
        lone=LoneRun("no ranks", ("sizes", "budget", "json_path"), _run),
    ),
)
