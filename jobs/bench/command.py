"""The command ``closeranks bench``, built from registered benchmarks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from closeranks.comms.shm.shared_folder import is_own_folder
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import (
    benchmarks,
    choices,
    collectives_among,
    expand,
    named,
)
from closeranks.jobs.bench.chart import check_drawable, draw
from closeranks.jobs.bench.formats import FORMATS
from closeranks.jobs.bench.measuring import best_settings
from closeranks.jobs.bench.measuring.collective_facts import as_dtype, check_op
from closeranks.jobs.bench.measuring.number_text import finite, parse_sizes
from closeranks.jobs.bench.measuring.session import (
    BenchRequest,
    Row,
    Session,
    open_session,
    write_rows,
    writer,
)
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.bench.suite import run, run_setting
from closeranks.jobs.launch import program, target

_COMPARISONS = ("native", "best", "copy", "plain")
#: Sizes of benchmarks that have no others, if nobody says.
_SIZES = "8:4M"


def _sizes_help() -> str:
    """Say how sizes are typed, and those of each benchmark."""
    names: dict[str, list[str]] = {}
    for name, one in benchmarks().items():
        if one.sizes:
            names.setdefault(one.sizes, []).append(name)
    others = "".join(f", for {' and '.join(some)} {sizes}" for sizes, some in names.items())
    return f"8:64M, 8:64M:4 or 1K,64K,1000; default {_SIZES}{others}."


def _parameters() -> list[click.Parameter]:
    """List what the command line takes, in the order of the help."""
    own = [option for one in benchmarks().values() for option in one.options]
    return [
        click.Argument(["names"], nargs=-1, metavar="NAME..."),
        *_measuring_options(),
        *dict.fromkeys(own),
        *_buffer_options(),
        *_output_options(),
    ]


def _measuring_options() -> list[click.Option]:
    """Make the options that say what is measured, how long, against what."""
    return [
        click.Option(["--sizes"], help=_sizes_help()),
        click.Option(
            ["--algorithms"], default="auto", show_default=True, help="Names, comma-separated."
        ),
        click.Option(
            ["--dtype"], default="float32", show_default=True, help="Type of the elements."
        ),
        click.Option(["--op"], default="sum", show_default=True, help="Reduction."),
        click.Option(
            ["--check/--no-check"], default=True, show_default=True, help="Validate results."
        ),
        click.Option(
            ["--iterations"], type=click.IntRange(1), help="Calls a side instead of the budget."
        ),
        click.Option(["--warmup"], type=click.IntRange(0), help="Calls before the time counts."),
        click.Option(
            ["--budget"],
            type=click.FloatRange(0, min_open=True),
            callback=finite,
            default=3.0,
            show_default=True,
            help="Seconds a size may take, least counts apart.",
        ),
        click.Option(
            ["--vs"], help="Compare with native, best, copy or plain; native,best for both."
        ),
    ]


def _buffer_options() -> list[click.Option]:
    """Make the options that say how a collective is called and looked at."""
    return [
        click.Option(
            ["--empty"], is_flag=True, help="Buffers of comm.empty, which a node's ranks share."
        ),
        click.Option(["--persistent"], is_flag=True, help="Start persistent operations, and wait."),
        click.Option(["--counters"], is_flag=True, help="Read what the NICs sent."),
    ]


def _output_options() -> list[click.Option]:
    """Make the options that say where rows go."""
    path = click.Path(path_type=Path)
    return [
        click.Option(
            ["--format", "form"], default="table", show_default=True, help="table, osu or nccl."
        ),
        click.Option(["--json", "json_path"], type=path, help="Write rows here."),
        click.Option(["--draw", "draw_path"], type=path, help="Draw a chart here."),
    ]


def _bench(form: str, **values: Any) -> None:
    """Measure collectives and point-to-point messages.

    Run it under closeranks run, closeranks lab, mpirun or srun.  Size, times
    and bandwidths are those of nccl-tests; exit status 1 if a result is wrong.
    """
    request = _request(values)
    check_request(request, form)
    _check_typed(request, _typed())
    for benchmark in named(request):
        if benchmark.lone is not None:
            raise SystemExit(benchmark.lone.run(request))
    for benchmark in named(request):
        benchmark.prepare()
    raise SystemExit(execute(request, form))


def build() -> click.Command:
    """Make the command from the benchmarks that have registered.

    Returns
    -------
    click.Command
        ``closeranks bench``.
    """
    return click.Command(
        "bench",
        params=_parameters(),
        callback=_bench,
        help=_bench.__doc__,
        epilog=f"NAMEs: {choices()}",
    )


bench = build()


def _request(values: Mapping[str, Any]) -> BenchRequest:
    """Read the command line.

    Sizes that were typed are those of all benchmarks.
    """
    own = {str(option.name) for one in benchmarks().values() for option in one.options}
    sizes = values["sizes"]
    others = {} if sizes else {name: one.sizes for name, one in benchmarks().items() if one.sizes}
    return BenchRequest(
        names=tuple(expand(values["names"])),
        sizes=parse_sizes(sizes or _SIZES),
        own_sizes={name: parse_sizes(text) for name, text in others.items()},
        own={name: values[name] for name in own},
        algorithms=tuple(dict.fromkeys(values["algorithms"].split(","))),
        dtype=values["dtype"],
        op=values["op"],
        effort=Effort(values["iterations"], values["warmup"], values["budget"]),
        check=values["check"],
        counters=values["counters"],
        empty=values["empty"],
        persistent=values["persistent"],
        **_comparisons(values["vs"]),
        json=values["json_path"],
        draw=values["draw_path"],
    )


def _comparisons(vs: str | None) -> dict[str, Any]:
    """Read ``--vs``: the comparisons that are asked for are true."""
    words = [] if vs is None else vs.split(",")
    unknown = [word for word in words if word not in _COMPARISONS]
    if unknown:
        raise UsageError(
            "bench --vs", f"unknown {', '.join(unknown)}", f"choose {' or '.join(_COMPARISONS)}"
        )
    return {word: word in words for word in _COMPARISONS}


def _typed() -> dict[str, str]:
    """Find the options of the command line: name in Python -> how it is typed."""
    context = click.get_current_context()
    options = [one for one in context.command.params if isinstance(one, click.Option)]
    return {
        str(one.name): "/".join((*one.opts, *one.secondary_opts))
        for one in options
        if context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
    }


def _check_typed(request: BenchRequest, options: Mapping[str, str]) -> None:
    """Refuse options that mean nothing to a benchmark that is named alone."""
    for one in named(request):
        if one.lone is None:
            continue
        understood = (*one.lone.understands, *(option.name for option in one.options))
        unknown = [words for name, words in options.items() if name not in understood]
        if unknown:
            raise UsageError(
                f"bench {one.name}", f"no meaning for {', '.join(unknown)}", "leave that out"
            )


def check_request(request: BenchRequest, form: str) -> None:
    """Refuse a request that cannot end well, before MPI starts; local.

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
    has_collectives = bool(collectives_among(request.names))
    if (request.native or request.best or request.copy) and not has_collectives:
        raise UsageError("bench --vs", "point-to-point has nothing to compare", "leave out --vs")
    if request.empty and not has_collectives:
        raise UsageError("bench --empty", "only collectives have such buffers", "leave it out")
    _check_lone(request)
    if request.persistent and not has_collectives:
        raise UsageError("bench --persistent", "only collectives are persistent", "leave it out")
    if request.plain and not request.persistent:
        raise UsageError("bench --vs plain", "the library's blocking call is what native is",
                         "use --vs native, or add --persistent")  # fmt: skip
    for benchmark in named(request):
        if benchmark.lone is None:
            benchmark.check(request)
    if request.best and best_settings.folder() is None:
        raise UsageError(
            "bench --vs best",
            "the library reads its settings when it starts, so best needs several launches",
            "start it with: closeranks run -n N -- closeranks bench ...",
        )
    target.check("bench", request.json, request.draw)
    if request.draw is not None:
        check_drawable(request.draw)


def _check_lone(request: BenchRequest) -> None:
    """Let a benchmark that is named alone refuse company, a chart, and others."""
    for one in named(request):
        if one.lone is None:
            continue
        if len(request.names) > 1 or request.draw is not None:
            raise UsageError(f"bench {one.name}", one.lone.reason, "name it alone, without --draw")
        one.check(request)


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

    program.begin()
    with closeranks.init() as comm:
        session = open_session(request, comm)
        launch, folder = best_settings.launch(), best_settings.folder()
        if launch is not None and folder is not None:
            return _execute_setting(session, launch, folder)
        rows = run(session, FORMATS[form](session), writer(session.plain))
        if session.plain.Get_rank() == 0:
            _write_files(session, rows)
            if request.best and folder is not None and is_own_folder(folder, best_settings.PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
        return 1 if any(row["wrong"] for row in rows) else 0


def _write_files(session: Session, rows: Sequence[Row]) -> None:
    """Write rows and chart as asked for; local, one rank."""
    write_rows(session.request, rows)
    if session.request.draw is not None:
        draw(session.request.draw, rows, ", ".join(session.describe()))


def _execute_setting(session: Session, launch: int, folder: Path) -> int:
    """Measure with one of the library's settings and leave the result."""
    effort = replace(session.request.effort, budget_s=session.request.effort.budget_s / 6)
    alone = replace(session, request=replace(session.request, effort=effort))
    results = run_setting(alone, launch)
    if session.plain.Get_rank() == 0:
        best_settings.write(folder, launch, results)
        labels = dict.fromkeys(result.setting for result in results)
        for label in labels:
            click.echo(f"# measured for best: {label}", err=True)
    return 0
