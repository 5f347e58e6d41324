"""The command ``closeranks bench``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from closeranks.comms.settings import setting
from closeranks.comms.shm.shared_folder import is_own_folder
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches import checkpoint, erasure, faults
from closeranks.jobs.bench.benches.init_time import become_fresh
from closeranks.jobs.bench.chart import check_drawable, draw
from closeranks.jobs.bench.churn import campaign
from closeranks.jobs.bench.churn.model import FEWEST, MOST
from closeranks.jobs.bench.formats import NcclFormat, OsuFormat
from closeranks.jobs.bench.measuring import best_settings as launches
from closeranks.jobs.bench.measuring.best_settings import Best
from closeranks.jobs.bench.measuring.collective_facts import as_dtype, check_op, wire
from closeranks.jobs.bench.measuring.session import BenchRequest, Session, ranks_per_node
from closeranks.jobs.bench.measuring.table import ResultTable
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.bench.measuring.typed_options import (
    NAMES,
    check_typed,
    collectives_among,
    expand,
    finite,
    parse_sizes,
    typed,
)
from closeranks.jobs.bench.suite import Format, Row, Write, run, run_setting
from closeranks.jobs.launch import program as alone
from closeranks.jobs.launch import target
from closeranks.jobs.launch.program import inside_a_job

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.communicator.communicator import Communicator

FORMATS: dict[str, Callable[[Session], Format]] = {
    "table": ResultTable,
    "osu": OsuFormat,
    "nccl": NcclFormat,
}
_COMPARISONS = ("native", "best", "copy", "plain")


@click.command(epilog="NAMEs: " + " ".join((*NAMES, "all")))
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--sizes", help="8:64M, 8:64M:4 or 1K,64K,1000; default 8:4M, "
              "for matrix 1M, for overlap 64K:16M:4, for erasure 64K,64M, "
              "for checkpoint and snapshot 64M.")  # fmt: skip
@click.option("--algorithms", default="auto", show_default=True, help="Names, comma-separated.")
@click.option("--dtype", default="float32", show_default=True, help="Type of the elements.")
@click.option("--op", default="sum", show_default=True, help="Reduction.")
@click.option("--check/--no-check", default=True, show_default=True, help="Validate results.")
@click.option("--iterations", type=click.IntRange(1), help="Calls a side instead of the budget.")
@click.option("--warmup", type=click.IntRange(0), help="Calls before the time counts.")
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    default=3.0,
    show_default=True,
    help="Seconds a size may take, least counts apart.",
)
@click.option("--vs", help="Compare with native, best, copy or plain; native,best for both.")
@click.option("--of", "overlapped", default="allreduce", show_default=True,
              help="Collectives that overlap starts, comma-separated.")  # fmt: skip
@click.option("--kinds", default=",".join(faults.KINDS), show_default=True,
              help="What happens to ranks in faults, in turn.")  # fmt: skip
@click.option("--recruits", type=click.IntRange(0), default=0,
              help="Ranks that faults replaces by new processes.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(0, min_open=True), callback=finite, default=1.0,
              show_default=True, help="How long churn goes on.")  # fmt: skip
@click.option("--members", type=click.IntRange(FEWEST, MOST), default=6, show_default=True,
              help="Ranks that work in churn.")  # fmt: skip
@click.option("--spares", type=click.IntRange(0), default=6, show_default=True,
              help="Ranks that wait in churn.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of churn's first schedule.")
@click.option("--data", default="4,8", show_default=True, help="Data blocks of erasure.")
@click.option("--parity", help="Parity blocks of erasure, default 2,3, and of checkpoint, 1.")
@click.option("--empty", is_flag=True, help="Buffers of comm.empty, which a node's ranks share.")
@click.option("--persistent", is_flag=True, help="Start persistent operations, and wait.")
@click.option("--counters", is_flag=True, help="Read what the NICs sent.")
@click.option("--format", "form", default="table", show_default=True, help="table, osu or nccl.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write rows here.")
@click.option("--draw", "draw_path", type=click.Path(path_type=Path), help="Draw a chart here.")
def bench(
    names: tuple[str, ...],
    sizes: str | None,
    algorithms: str,
    dtype: str,
    op: str,
    check: bool,
    iterations: int | None,
    warmup: int | None,
    budget: float,
    vs: str | None,
    overlapped: str,
    kinds: str,
    recruits: int,
    minutes: float,
    members: int,
    spares: int,
    seed: int,
    data: str,
    parity: str | None,
    empty: bool,
    persistent: bool,
    counters: bool,
    form: str,
    json_path: Path | None,
    draw_path: Path | None,
) -> None:
    """Measure collectives and point-to-point messages.

    Run it under closeranks run, closeranks lab, mpirun or srun.  Size, times
    and bandwidths are those of nccl-tests; exit status 1 if a result is wrong.
    """
    request = BenchRequest(
        names=tuple(expand(names)),
        sizes=parse_sizes(sizes or "8:4M"),
        matrix_sizes=parse_sizes(sizes or "1M"),
        overlap_sizes=parse_sizes(sizes or "64K:16M:4"),
        checkpoint_sizes=parse_sizes(sizes or checkpoint.SIZES),
        parities=erasure.numbers("--parity", parity) if parity else (1,),
        overlapped=_collectives(overlapped),
        algorithms=tuple(dict.fromkeys(algorithms.split(","))),
        dtype=dtype,
        op=op,
        effort=Effort(iterations, warmup, budget),
        check=check,
        counters=counters,
        empty=empty,
        persistent=persistent,
        **_comparisons(vs),
        json=json_path,
        draw=draw_path,
    )
    check_request(request, form)
    check_typed(request.names, typed())
    if "faults" in request.names:
        raise SystemExit(lose_ranks(request, faults.check_kinds(kinds), recruits))
    if "churn" in request.names:
        end_alone(request, campaign.report(minutes, members, spares, seed, click.echo))
    if "erasure" in request.names:
        end_alone(request, erasure.report(data, parity or "2,3", sizes, budget, click.echo))
    if "init" in request.names:
        become_fresh(sys.argv[1:])
    raise SystemExit(execute(request, form))


def check_request(request: BenchRequest, form: str) -> None:
    """Refuse what cannot end well, before MPI starts; local.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    form : str
        Name of an output format.

    Raises
    ------
    UsageError
        If the parts do not fit together, or a file cannot be written.
    Unavailable
        If a chart is wanted without matplotlib.
    """
    if form not in FORMATS:
        raise UsageError("bench --format", f"unknown {form!r}", f"choose {', '.join(FORMATS)}")
    as_dtype(request.dtype)
    check_op(request.op, request.dtype)
    collectives = collectives_among(request.names)
    if (request.native or request.best or request.copy) and not collectives:
        raise UsageError("bench --vs", "point-to-point has nothing to compare", "leave out --vs")
    if request.empty and not collectives:
        raise UsageError("bench --empty", "only collectives have such buffers", "leave it out")
    for name in {"faults", "churn"} & set(request.names):
        if len(request.names) > 1 or request.draw is not None:
            raise UsageError(f"bench {name}", "ranks are lost", "name it alone, without --draw")
    if "erasure" in request.names and (len(request.names) > 1 or request.draw is not None):
        raise UsageError("bench erasure", "no ranks", "name it alone, without --draw")
    if "churn" in request.names and inside_a_job():
        raise UsageError("bench churn", "called inside an MPI job", "it starts jobs itself")
    if request.persistent and not collectives:
        raise UsageError("bench --persistent", "only collectives are persistent", "leave it out")
    if request.plain and not request.persistent:
        raise UsageError("bench --vs plain", "the library's blocking call is what native is",
                         "use --vs native, or add --persistent")  # fmt: skip
    if request.op == "mean" and {"scan", "exscan"} & set(collectives):
        raise UsageError("bench --op", "a scan has no mean", "name other operations, or --op sum")
    if request.best and launches.folder() is None:
        raise UsageError(
            "bench --vs best",
            "the library reads its settings when it starts, so best needs several launches",
            "start it with: closeranks run -n N -- closeranks bench ...",
        )
    target.check("bench", request.json, request.draw)
    if request.draw is not None:
        check_drawable(request.draw)


def execute(request: BenchRequest, form: str) -> int:
    """Run a request on all ranks; collective over MPI.COMM_WORLD.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    form : str
        Name of an output format.

    Returns
    -------
    int
        Exit status: 1 if a result was wrong, else 0.
    """
    import closeranks

    alone.begin()
    with closeranks.init() as comm:
        session = open_session(request, comm)
        launch = launches.launch()
        folder = launches.folder()
        if launch is not None and folder is not None:
            return _execute_setting(session, launch, folder)
        rows = run(session, FORMATS[form](session), _writer(session.plain))
        if session.plain.Get_rank() == 0:
            write_files(session, rows)
            if request.best and folder is not None and is_own_folder(folder, launches.PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
        return 1 if any(row["wrong"] for row in rows) else 0


def lose_ranks(request: BenchRequest, kinds: tuple[str, ...], recruits: int) -> int:
    """Run ``faults``; collective over those who are left.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    kinds : tuple of str
        What happens to ranks.
    recruits : int
        How many new processes replace some, when the spares are used up.

    Returns
    -------
    int
        Exit status: 1 if a result was wrong, else 0.

    Raises
    ------
    UsageError
        On every rank, if there are too few or too many.
    """
    alone.begin()
    from mpi4py import MPI

    import closeranks

    spares, is_started = _spares(), setting("JOINS") is not None
    if not is_started:
        faults.check_ranks(MPI.COMM_WORLD.size, spares, recruits)
    mode = "spawn" if is_started else "replace"
    on_failure = "replace" if spares or recruits else "shrink"
    with closeranks.init(on_failure=on_failure, recruits=bool(recruits)) as comm:
        session = open_session(replace(request, dtype="int64", op="sum"), comm)
        write = _writer(comm)
        if not comm.joined:
            for line in (*(f"# {words}" for words in session.describe()), faults.head()):
                write(line)
        rows = []
        for row in faults.measure_faults(session, kinds, mode, spares + recruits):
            rows.append(row)
            write(faults.as_line(row))
        if comm.rank == 0:
            write_files(session, rows)
        return 1 if any(row["wrong"] for row in rows) else 0


def _spares() -> int:
    """Read how many ranks wait."""
    text = setting("SPARES") or "0"
    if not text.isdecimal():
        raise UsageError("CLOSERANKS_SPARES", f"is {text!r}", "a number")
    return int(text)


def end_alone(request: BenchRequest, rows: Iterable[Row]) -> NoReturn:
    """Write rows that need no session, each as soon as it is there, and end; local.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    rows : iterable of dict
        With status 1 if one of them is not right.
    """
    written = list[Row]()
    for row in rows:
        written.append(row)
        if request.json is not None:  # who knows how it will end
            target.write("bench", request.json, json.dumps(written, indent=1) + "\n")
    raise SystemExit(int(not all(map(campaign.is_right, written))))


def open_session(request: BenchRequest, comm: Communicator) -> Session:
    """Find out where a request runs; collective.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    comm : Communicator
        What is measured.

    Returns
    -------
    Session
        The same on every rank; one that joins later asks nobody.
    """
    from mpi4py import MPI

    plain = MPI.Intracomm(comm)
    folder = launches.folder()
    known = launches.read(folder) if folder is not None and plain.Get_rank() == 0 else []
    return Session(
        request=request,
        comm=comm,
        plain=plain,
        library=MPI.Get_library_version().splitlines()[0].strip(" \0"),
        per_node=ranks_per_node(comm),
        best=Best([] if comm.joined else plain.bcast(known)),
        wire=wire(),
    )


def write_files(session: Session, rows: Sequence[Row]) -> None:
    """Write rows and chart as asked for; local, one rank.

    Parameters
    ----------
    session : Session
        Holds the request.
    rows : sequence of dict
        What was measured.
    """
    request = session.request
    if request.json is not None:
        target.write("bench", request.json, json.dumps(list(rows), indent=1) + "\n")
    if request.draw is not None:
        draw(request.draw, rows, ", ".join(session.describe()))


def _execute_setting(session: Session, launch: int, folder: Path) -> int:
    """Measure with one of the library's settings and leave the result."""
    effort = replace(session.request.effort, budget_s=session.request.effort.budget_s / 6)
    alone = replace(session, request=replace(session.request, effort=effort))
    results = run_setting(alone, launch)
    if session.plain.Get_rank() == 0:
        launches.write(folder, launch, results)
        labels = dict.fromkeys(result.setting for result in results)
        for label in labels:
            click.echo(f"# measured for best: {label}", err=True)
    return 0


def _collectives(words: str) -> tuple[str, ...]:
    """Read ``--of``."""
    names = words.split(",")
    found = collectives_among(names)
    if len(found) < len(names):
        raise UsageError(
            "bench --of", f"not all collectives: {words}", "as in --of allreduce,bcast"
        )
    return tuple(found)


def _comparisons(vs: str | None) -> dict[str, Any]:
    """Read ``--vs``: what is asked for is true."""
    words = [] if vs is None else vs.split(",")
    unknown = [word for word in words if word not in _COMPARISONS]
    if unknown:
        raise UsageError(
            "bench --vs", f"unknown {', '.join(unknown)}", f"choose {' or '.join(_COMPARISONS)}"
        )
    return {word: word in words for word in _COMPARISONS}


def _writer(plain: MPI.Intracomm) -> Write:
    """Return what writes a line on rank 0 and nothing elsewhere."""
    return click.echo if plain.Get_rank() == 0 else lambda _line: None
