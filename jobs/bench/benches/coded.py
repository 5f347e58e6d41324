"""The benchmark ``coded``: rounds with slow ranks, with and without a code.

``--real`` runs rounds on these ranks.  A micro-batch is a sleep of 10 ms; a
rank that is slow in a round sleeps longer.  All schemes meet the same
schedule, which `simulate` gets, too.  ``--simulate paper`` computes the
comparison of the paper on sequential gradient codes with 256 workers, without
any sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.churn import SEED
from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, Item, own_table
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, agree

if TYPE_CHECKING:
    from closeranks.collectives.coded import GradientCode, Scheme
    from closeranks.jobs.bench.measuring.session import BenchRequest, Session

Row = dict[str, Any]
Factors = NDArray[np.float64]

#: Micro-batches of a rank in a round, and seconds that one sleeps.
MICRO: Final = 8
MICRO_S: Final = 0.010
#: Of the paper's comparison: seeds, and rounds.
PAPER_SEEDS, PAPER_ROUNDS = 8, 300
_WIDTHS: Final = (26, 8, 10, 11, 9, 6, 6, 6)
_TITLES: Final = ("scheme", "load", "seconds", "simulated", "speedup", "waits", "exact", "wrong")


def schemes_of(n: int) -> dict[str, Scheme | GradientCode]:
    """Give the schemes that are measured, by name.

    Parameters
    ----------
    n : int
        Ranks.

    Returns
    -------
    dict of str to Scheme or GradientCode
        "uncoded" is not among them.
    """
    from closeranks.collectives.coded import Backup, PartialRepetition, Repetition

    s = min(3, n - 1)
    return {
        f"Repetition({n}, {min(1, s)})": Repetition(n, min(1, s)),
        f"PartialRepetition({n}, {s})": PartialRepetition(n, s, MICRO),
        f"Backup({n}, {s})": Backup(n, s),
    }


class _Rounds:
    """Rounds of one schedule on these ranks."""

    def __init__(self, session: Session, factors: Factors) -> None:
        self._session, self._factors = session, factors
        self._rank, n = session.plain.Get_rank(), session.ranks
        values = np.random.default_rng(1).integers(-8, 8, (MICRO * n, 64))
        times = max(1, session.request.own["floats"] // 64)
        self._data = np.repeat(values.astype(np.float32), times, 1)
        self.total = self._data.sum(0)
        self._round = 0

    def _gradient(self, number: int) -> NDArray[np.float32]:
        """Compute a micro-batch: a sleep, then an array."""
        time.sleep(MICRO_S * self._factors[self._round, self._rank])
        found: NDArray[np.float32] = self._data[number]
        return found

    def _timed(self, step: Callable[[], NDArray[np.float32]]) -> tuple[list[float], int]:
        """Run all rounds; gives the seconds of each, and elements that are wrong."""
        seconds, wrong = [], 0
        self._session.plain.Barrier()
        for number in range(len(self._factors)):
            self._round = number
            began = time.perf_counter()
            found = step()
            seconds.append(time.perf_counter() - began)
            wrong += int(np.count_nonzero(found != self.total))
        return seconds, wrong

    def uncoded(self) -> tuple[list[float], int]:
        """Run what a program does without a code, and record it if asked to."""
        from closeranks.collectives.coded import Recorder

        comm, path = self._session.comm, self._session.request.own["record"]
        total: NDArray[np.float32] = np.empty_like(self.total)
        with Recorder(comm, path, micro=MICRO) if path else nullcontext() as recorder:

            def step() -> NDArray[np.float32]:
                gradient = np.zeros_like(self.total)
                with recorder.compute() if recorder is not None else nullcontext():
                    for number in range(MICRO * self._rank, MICRO * (self._rank + 1)):
                        gradient += self._gradient(number)
                comm.Allreduce(gradient, total)
                return total

            return self._timed(step)

    def coded(self, scheme: Any) -> tuple[list[float], int, dict[str, Any]]:
        """Run a scheme."""
        from closeranks.collectives.coded import CodedAllreduce

        with CodedAllreduce(self._session.comm, scheme) as coded:
            found = self._timed(lambda: coded.step(self._gradient, len(self._data)))
            return (*found, coded.statistics())


def measure_real(session: Session) -> Iterator[Row]:
    """Run the same schedule without a code, and with each scheme.

    Collective.

    Parameters
    ----------
    session : Session
        Where; its request holds the seed, the rounds and the slow-down.

    Yields
    ------
    dict
        A row a scheme, the same on every rank; ``seconds`` is that of a round.
    """
    from closeranks.collectives.coded import GilbertElliott, Uncoded, simulate

    own, n = session.request.own, session.ranks
    model = GilbertElliott(0.1, 0.3, own["slowdown"], own["seed"])
    factors = model.factors(own["rounds"], n)
    rounds = _Rounds(session, factors)
    schemes: dict[str, Any] = {"uncoded": Uncoded(n), **schemes_of(n)}
    first = 0.0
    for name, scheme in schemes.items():
        predicted = simulate(scheme, factors, rounds=len(factors), compute_s=MICRO * n * MICRO_S)
        statistics: dict[str, Any] = {"waits": 0}
        if name == "uncoded":
            seconds, wrong = rounds.uncoded()
        else:
            seconds, wrong, statistics = rounds.coded(scheme)
        spent = session.plain.allgather((sum(seconds), wrong, statistics["waits"]))
        mean_s = max(one[0] for one in spent) / len(factors)
        first = first or mean_s
        yield {
            **describe(
                session, "coded", rounds.total.nbytes, agree(session.plain, seconds, 1, False)
            ),
            **NO_BANDWIDTH,
            "algorithm": name,
            "dtype": "float32",
            "op": "sum",
            "wrong": sum(one[1] for one in spent) if scheme.exact else None,
            "scheme": name,
            "load": scheme.load,
            "seconds": mean_s,
            "waits": sum(one[2] for one in spent),
            "simulated_s": predicted.seconds / len(factors),
            "speedup": first / mean_s,
            "exact": scheme.exact,
            "seed": own["seed"],
            "slowdown": own["slowdown"],
        }


def measure_paper(session: Session) -> Iterator[Row]:
    """Simulate the paper's comparison; rank 0 computes.

    Collective.

    Parameters
    ----------
    session : Session
        Where.

    Yields
    ------
    dict
        A row a scheme; ``seconds`` is the mean of a round, over the seeds.
    """
    from closeranks.collectives.coded.prediction.paper_comparison import paper_comparison

    found = None
    if session.plain.Get_rank() == 0:
        found = paper_comparison(range(PAPER_SEEDS), PAPER_ROUNDS)
    rows = session.plain.bcast(found, 0)
    for row in rows:
        timing = agree(session.plain, [row["seconds"]], 1, False)
        yield {
            **describe(session, "coded", 0, timing), **NO_BANDWIDTH, "algorithm": row["scheme"],
            "dtype": "none", "op": "sum", "wrong": None, "exact": True, **row,
        }  # fmt: skip


def as_line(row: Row) -> str:
    """Write a row as a line of the table.

    Parameters
    ----------
    row : dict
        Of either measurement.

    Returns
    -------
    str
        The line.
    """
    wrong = "-" if row["wrong"] is None else str(row["wrong"])
    words = (
        " ".join(filter(None, (row["scheme"], row.get("parameters")))),
        f"{row['load']:.5f}", f"{row['seconds']:.4f}", f"{row['simulated_s']:.4f}",
        f"{row['speedup']:.2f}x", f"{row['waits']:g}", "yes" if row["exact"] else "no", wrong,
    )  # fmt: skip
    cells = [word.rjust(wide) for word, wide in zip(words[1:], _WIDTHS[1:], strict=True)]
    return " ".join((words[0].ljust(_WIDTHS[0]), *cells))


def _head() -> str:
    words = [title.rjust(wide) for title, wide in zip(_TITLES[1:], _WIDTHS[1:], strict=True)]
    return "# " + " ".join((_TITLES[0].ljust(_WIDTHS[0] - 2), *words))


def _items(request: BenchRequest, name: str) -> list[Item]:
    which = request.own["simulate"] or "real"
    return [Item(name, which, 4 * request.own["floats"])]


def _measure(session: Session, item: Item) -> Iterator[Row]:
    return measure_real(session) if item.algorithm == "real" else measure_paper(session)


def _check(request: BenchRequest) -> None:
    own = request.own
    if own["real"] and own["simulate"]:
        raise UsageError("bench coded", "--real and --simulate", "give one of them")


BENCHMARKS = (
    Benchmark(
        "coded",
        items=_items,
        measure=_measure,
        lines=own_table(_head, as_line),
        check=_check,
        options=(
            click.Option(["--real"], is_flag=True, help="Run rounds of coded; default."),
            click.Option(
                ["--simulate"], type=click.Choice(["paper"]),
                help="Compute rounds of coded instead: the comparison of the paper.",
            ),
            click.Option(
                ["--rounds"], type=click.IntRange(1, 100_000), default=40, show_default=True,
                help="Rounds of coded.",
            ),
            click.Option(
                ["--slowdown"], type=click.FloatRange(1, 1000), default=8.0, show_default=True,
                help="How much slower a slow rank of coded is.",
            ),
            click.Option(
                ["--floats"], type=click.IntRange(64, 1 << 28), default=16384, show_default=True,
                help="Elements of a gradient of coded.",
            ),
            click.Option(
                ["--record"], type=click.Path(dir_okay=False),
                help="Record the uncoded rounds of coded, for closeranks stragglers.",
            ),
            SEED,
        ),
    ),
)  # fmt: skip
