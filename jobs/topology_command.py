"""``closeranks topology``: shows what the job runs on."""

from __future__ import annotations

from pathlib import Path

import click

from closeranks.comms.topology.drawing import check_suffix
from closeranks.jobs.launch import program, target

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--json", "json_path", type=_FILE, help="Write the topology to this file.")
@click.option("--draw", "draw_path", type=_FILE, help="Draw it to this file: .svg or .png.")
@click.option("--measure", is_flag=True, help="Measure the links (seconds) instead of guessing.")
def topology(json_path: Path | None, draw_path: Path | None, measure: bool) -> None:
    """Show sites, nodes, packages and links of the job that runs this.

    Start it on the ranks of a job: closeranks run -n 8 -- closeranks
    topology, or under lab, mpirun, srun.  Rank 0 writes.
    """
    target.check("topology", json_path, draw_path)
    if draw_path is not None:
        check_suffix(draw_path)
    program.begin()
    from mpi4py import MPI

    from closeranks.comms.discovery.discovery import discover
    from closeranks.comms.discovery.link_survey import measure as measure_links

    found = discover(MPI.COMM_WORLD)
    if measure:
        found = measure_links(MPI.COMM_WORLD, found)
    if MPI.COMM_WORLD.rank == 0:
        click.echo(str(found))
        if json_path is not None:
            target.write("topology", json_path, found.to_json() + "\n")
        if draw_path is not None:
            with target.writing("topology", draw_path):
                found.draw(draw_path)
