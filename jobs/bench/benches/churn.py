"""The benchmark ``churn``: jobs whose ranks die, stop and are replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import Benchmark, LoneRun, run_alone
from closeranks.jobs.bench.churn import campaign
from closeranks.jobs.bench.churn.model import FEWEST, MOST
from closeranks.jobs.bench.measuring.number_text import finite
from closeranks.jobs.launch.program import inside_a_job

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import BenchRequest


def _check(request: BenchRequest) -> None:
    del request
    if inside_a_job():
        raise UsageError("bench churn", "called inside an MPI job", "it starts jobs itself")


def _run(request: BenchRequest) -> int:
    own = request.own
    rows = campaign.report(own["minutes"], own["members"], own["spares"], own["seed"], click.echo)
    return run_alone(request, rows, campaign.is_right)


SEED = click.Option(
    ["--seed"],
    default=0,
    show_default=True,
    help="Of churn's first schedule, and of the calls of varied.",
)

_OPTIONS = (
    click.Option(
        ["--minutes"],
        type=click.FloatRange(0, min_open=True),
        callback=finite,
        default=1.0,
        show_default=True,
        help="How long churn goes on.",
    ),
    click.Option(
        ["--members"],
        type=click.IntRange(FEWEST, MOST),
        default=6,
        show_default=True,
        help="Ranks that work in churn.",
    ),
    click.Option(
        ["--spares"],
        type=click.IntRange(0),
        default=6,
        show_default=True,
        help="Ranks that wait in churn.",
    ),
    SEED,
)

BENCHMARKS = (
    Benchmark(
        "churn",
        options=_OPTIONS,
        check=_check,
        lone=LoneRun("ranks are lost", ("json_path",), _run),
    ),
)
