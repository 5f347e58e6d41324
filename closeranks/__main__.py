"""The command line: one verb per module, each loaded only when it is used.

Exit status: 0 done, 1 failed, 2 wrong usage (one line that says what to
change), 75 recovery timed out.
"""

from __future__ import annotations

import codecs
import importlib
import importlib.util
import io
import os
import sys
import time
from collections.abc import Sequence

import click

from closeranks.errors import Error, UsageError

_VERBS = {
    "topology": "closeranks.jobs.topology_command:topology",
    "run": "closeranks.jobs.launch.run_command:run",
    "lab": "closeranks.jobs.lab.command:lab",
    "bench": "closeranks.jobs.bench.command:bench",
    "tune": "closeranks.jobs.tune.command:tune",
    "plan": "closeranks.jobs.plan.command:plan",
    "stragglers": "closeranks.jobs.stragglers.command:stragglers",
    "checkpoint": "closeranks.jobs.checkpoint_tools.checkpoint_command:checkpoint",
    "doctor": "closeranks.jobs.doctor:doctor",
    "demo": "closeranks.jobs.demo:demo",
}
#: Characters for the lines of a drawing if the output's encoding has none.
_PLAIN = {"─": "-", "│": "|", "├": "|", "└": "`", "·": "-"}
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class Verbs(click.Group):
    """A click group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs of existing modules.

        Parameters
        ----------
        ctx : click.Context
            Not used.

        Returns
        -------
        list of str
            In the order in which a new user meets them.
        """
        del ctx
        return [verb for verb, target in _VERBS.items() if _exists(target.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb.

        Parameters
        ----------
        ctx : click.Context
            Not used.
        cmd_name : str
            The verb.

        Returns
        -------
        click.Command or None
            None if there is no such verb.
        """
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = _VERBS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


def _exists(module: str) -> bool:
    """Say whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="closeranks")
def cli() -> None:
    """Move data along a machine's hierarchy; start, watch, measure jobs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``closeranks``; of this process if not given.
    """
    _write_plainly()
    try:
        status = cli.main(args=arguments, prog_name="closeranks", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as wrong:
        if _rank() == 0:
            wrong.show()
        _leave(2)
    except click.UsageError as wrong:
        place = wrong.ctx.command_path if wrong.ctx else "closeranks"
        _complain(f"{wrong.format_message()} See {place} --help", everywhere=False)
        _leave(2)
    except click.ClickException as wrong:
        _complain(wrong.format_message(), everywhere=False)
        _leave(1)
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted", everywhere=False)
        _leave(130)
    except Error as wrong:
        usage = isinstance(wrong, UsageError)
        _complain(str(wrong), everywhere=not usage)
        _leave(2 if usage else 1, together=usage)
    _leave(status if isinstance(status, int) else 0)


def _write_plainly() -> None:
    """Let outputs replace characters that their encoding lacks."""
    codecs.register_error("closeranks", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="closeranks")


def _plain(wrong: UnicodeError) -> tuple[str, int]:
    """Give a replacement for characters that the encoding lacks."""
    assert isinstance(wrong, UnicodeEncodeError)
    lost = wrong.object[wrong.start : wrong.end]
    return "".join(_PLAIN.get(character, "?") for character in lost), wrong.end


def _rank() -> int:
    """Tell this process's rank from its environment, without MPI."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _complain(problem: str, *, everywhere: bool) -> None:
    """Write one line: on rank 0 only if every rank has the same to say."""
    rank = _rank()
    if rank and not everywhere:
        # Rank 0 writes it; if this rank ended first, the launcher would end rank 0.
        time.sleep(1.0)
        return
    who = f" rank {rank}:" if rank else ""
    click.echo(f"closeranks: error:{who} {' '.join(problem.split())}", err=True)


def _leave(status: int, *, together: bool = True) -> None:
    """End the process; a rank that fails alone takes the others along."""
    mpi = sys.modules.get("mpi4py.MPI")
    if not together and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        sys.stdout.flush()
        sys.stderr.flush()
        if mpi.COMM_WORLD.Get_size() > 1:
            mpi.COMM_WORLD.Abort(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
