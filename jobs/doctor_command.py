"""``closeranks doctor``: checks that everything a job needs works here."""

from __future__ import annotations

import json
from pathlib import Path

import click

from closeranks.errors import UsageError
from closeranks.jobs import machine_checks, software_checks
from closeranks.jobs.check_result import Finding
from closeranks.jobs.launch import program, target

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command()
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the findings to this file.",
)  # fmt: skip
def doctor(json_path: Path | None) -> None:
    """Check this environment and say what to do about what is wrong.

    Starts two ranks and an emulated cluster for a moment.  The exit status
    is 1 if something that must work does not.
    """
    if program.inside_a_job():
        raise UsageError("doctor", "called inside an MPI job", "call it outside")
    target.check("doctor", json_path)
    findings = [*software_checks.look(), *machine_checks.look()]
    show(findings)
    if json_path is not None:
        rows = [finding.row() for finding in findings]
        target.write("doctor", json_path, json.dumps(rows, indent=1) + "\n")
    if any(finding.state == "fail" for finding in findings):
        raise SystemExit(1)


def show(findings: list[Finding]) -> None:
    """Write the findings as a table.

    Parameters
    ----------
    findings : list of Finding
        What was found.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "", "found", "way out", box=None, header_style="bold")
    for finding in findings:
        colour = _COLOURS[finding.state]
        state = f"[{colour}]{finding.state}[/{colour}]"
        table.add_row(finding.check, state, escape(finding.found), escape(finding.remedy))
    Console().print(table)
