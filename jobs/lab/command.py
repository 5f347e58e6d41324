"""``closeranks lab``: the same as ``run``, on an emulated cluster."""

from __future__ import annotations

from dataclasses import replace

import click

from closeranks.comms.discovery.node_hardware import usable_cores
from closeranks.errors import UsageError
from closeranks.jobs.lab import control, supervisor
from closeranks.jobs.lab.plan import LabPlan, parse_rate, parse_slots
from closeranks.jobs.launch import mpi_library, program
from closeranks.jobs.launch.launch import Launch, launch_all
from closeranks.jobs.launch.launcher_choice import check_survives, choose
from closeranks.jobs.launch.run_command import OPTIONS_FIRST, check_settings, settings_of


class LabVerbs(click.Group):
    """A group whose first verb, ``start``, need not be written."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``start`` before anything that is not another verb.

        Parameters
        ----------
        ctx : click.Context
            The context to fill.
        args : list of str
            The words after ``lab``.

        Returns
        -------
        list of str
            Arguments that are left for the verb.
        """
        if not args or args[0] not in self.commands:
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=LabVerbs)
def lab() -> None:
    """Start a program on an emulated cluster on this machine."""


@lab.command(
    context_settings={"allow_interspersed_args": False},
    epilog="From inside or outside: closeranks lab kill-node N, closeranks lab stop-node N.",
)
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes.")
@click.option("--per-node", default="1", help="Ranks of each node: 2, or 3,2,2.")
@click.option(
    "--order", type=click.Choice(["block", "round-robin"]), default="block",
    help="Which rank is where.",
)  # fmt: skip
@click.option("--rate", help="Speed of each NIC and direction: 200mbit.")
@click.option("--nics", type=click.IntRange(1), default=1, help="NICs of each node.")
@click.option("--sites", type=click.IntRange(1), default=1, help="Number of sites.")
@click.option("--site-rate", help="Speed of the wire between sites: 50mbit.")
@click.option("--faults", is_flag=True, help="Go on when ranks die (Open MPI).")
@click.option("--spares", type=click.IntRange(0), default=0,
              help="More ranks, on the last node, which wait.")  # fmt: skip
@click.option("--check/--no-check", default=True, help="Measure the rates first.")
@click.argument("words", nargs=-1, required=True, metavar="-- PROGRAM [ARGUMENTS]...")
def start(
    nodes: int | None,
    per_node: str,
    order: str,
    rate: str | None,
    nics: int,
    sites: int,
    site_rate: str | None,
    faults: bool,
    spares: int,
    check: bool,
    words: tuple[str, ...],
) -> None:
    """Start PROGRAM on every rank of an emulated cluster.

    Each node has its own host name, network, /dev/shm and /tmp.  The exit
    status is the program's; nothing is left when it ends or is killed.
    """
    if nodes is None and "," not in per_node:
        remedy = f"add --nodes 4, or --per-node 3,2,2, {OPTIONS_FIRST}"
        raise UsageError("lab", "no number of nodes", remedy)
    settings = settings_of(spares, faults=faults)
    *slots, last = parse_slots(nodes or 0, per_node)
    plan = LabPlan(
        (*slots, last + spares),
        order=order,
        rate=parse_rate(rate) if rate else None,
        nics=nics,
        sites=sites,
        site_rate=parse_rate(site_rate) if site_rate else None,
    )
    if program.inside_a_job():
        raise UsageError("lab", "called inside an MPI job", "start the lab outside of it")
    check_settings(sum(plan.slots) - spares)
    resolved = program.resolve(words)
    linked = mpi_library.of_python(program.python_of(resolved))
    launcher = choose(linked, srun_first=False)
    if faults:
        check_survives(launcher)
    job = replace(supervisor.describe(plan, cores=usable_cores()), faults=faults)
    launch = Launch(job, linked, launcher)
    raise SystemExit(
        supervisor.inhabit(
            plan, resolved, lambda: launch_all(launch, resolved, settings), check=check
        )
    )


@lab.command("kill-node")
@click.argument("node", type=click.IntRange(0))
@click.option("--lab", "chosen", type=int, help="Which lab, if several run.")
def kill_node(node: int, chosen: int | None) -> None:
    """Kill every process of a node at once."""
    control.ask("kill", node, lab=chosen)


@lab.command("stop-node")
@click.argument("node", type=click.IntRange(0))
@click.option("--lab", "chosen", type=int, help="Which lab, if several run.")
def stop_node(node: int, chosen: int | None) -> None:
    """Stop every process of a node: it stays connected but does nothing."""
    control.ask("stop", node, lab=chosen)
