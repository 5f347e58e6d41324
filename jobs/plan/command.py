"""The verb ``closeranks plan``: pure, it starts no ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from closeranks.errors import TopologyError, UsageError
from closeranks.jobs.launch import target

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology
    from closeranks.partitioning.mesh.volume import Volume
    from closeranks.partitioning.placement.ranked import Placement

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--topology", "topology_path", type=_FILE, metavar="F.json",
              help="The machine: what closeranks topology --json has written.")  # fmt: skip
@click.option("--machine", metavar="site=2,node=2,rank=2",
              help="Or a made-up machine: groups in each group, outermost first.")  # fmt: skip
@click.option("--link", "links", multiple=True, metavar="site=5.96M:100us",
              help="Bytes/s (powers of 1000), latency, perhaps rails of a level.")  # fmt: skip
@click.option("--axes", metavar="dp=4,tp=2", help="Axes of a mesh, outermost first.")
@click.option("--volume", "volumes", multiple=True, metavar="dp=ring:4M",
              help="What each rank sends along an axis: ring, line, torus or all, and bytes"
              " (powers of 1024).")  # fmt: skip
@click.option("--grid", metavar="512x512x256", help="Or a global array, cut into a process grid.")
@click.option("--halo", help="Ghost cells a side of a part, or 1,2,1; default 1.")
@click.option("--periodic", is_flag=True, help="The grid's opposite sides are neighbours.")
@click.option("--itemsize", type=click.IntRange(1), help="Bytes of a cell of the grid; default 8.")
@click.option("--top", type=click.IntRange(1), default=1, show_default=True,
              help="How many placements to show.")  # fmt: skip
@click.option("--json", "json_path", type=_FILE, help="Write rows here.")
@click.option("--draw", "draw_path", type=_FILE, help="Draw the best: .svg or .png.")
def plan(
    topology_path: Path | None, machine: str | None, links: tuple[str, ...], axes: str | None,
    volumes: tuple[str, ...], grid: str | None, halo: str | None, periodic: bool,
    itemsize: int | None,
    top: int, json_path: Path | None, draw_path: Path | None,
) -> None:  # fmt: skip
    """Place a mesh or a process grid on a machine, and show what a step costs.

    It starts no ranks.  The order it prints is that of Mesh(axes, topology,
    order) in a program: ranks by position, the last axis fastest.
    """
    from closeranks.comms.topology.drawing import check_suffix
    from closeranks.jobs.plan.placement_picture import draw_placement
    from closeranks.jobs.plan.placement_rows import rows, show

    target.check("plan", json_path, draw_path)
    if draw_path is not None:
        check_suffix(draw_path)
    if (axes is None) == (grid is None):
        both = "--axes and --grid exclude each other"
        raise UsageError("plan", both if axes else "one of --axes and --grid is needed",
                         "give --axes with --volume, or --grid")  # fmt: skip
    if grid is not None and volumes:
        raise UsageError("plan --volume", "a grid has volumes of its own", "leave it out")
    if axes is not None and not volumes:
        raise UsageError("plan", "no volume: nothing is sent", "add --volume dp=ring:4M")
    if axes is not None and (halo or periodic or itemsize):
        raise UsageError("plan", "--halo, --periodic and --itemsize belong to --grid",
                         "leave them out")  # fmt: skip
    try:
        found = _machine(topology_path, machine, links)
        asked = (
            _mesh(found, axes, volumes, top)
            if axes is not None
            else _grid(found, grid or "", halo or "1", periodic=periodic, itemsize=itemsize or 8)
        )
    except TopologyError as wrong:  # the words are right, the machine cannot be priced
        raise click.ClickException(str(wrong)) from wrong
    click.echo(str(found))
    _tell_assumed(found)
    click.echo()
    made = rows(asked.kind, asked.placements)
    show(made, found)
    if json_path is not None:
        target.write("plan", json_path, json.dumps(made, indent=1) + "\n")
    if draw_path is not None:
        with target.writing("plan", draw_path):
            draw_placement(asked.placements[0], asked.volumes, draw_path)


class _Asked(NamedTuple):
    """What was asked for, and what was found."""

    kind: str
    volumes: Mapping[str, Volume]
    placements: Sequence[Placement]


def _mesh(topology: Topology, axes: str, texts: tuple[str, ...], top: int) -> _Asked:
    """Place a mesh."""
    from closeranks.jobs.plan.plan_words import volumes, whole_pairs
    from closeranks.partitioning.placement.mesh_search import place

    sizes = whole_pairs("--axes", axes, "write axis=size,axis=size, such as dp=4,tp=2")
    sent = volumes("--volume", texts)
    return _Asked("axes", sent, place(sent, topology, axes=sizes, top=top))


def _grid(topology: Topology, text: str, halo: str, *, periodic: bool, itemsize: int) -> _Asked:
    """Place a process grid."""
    from closeranks.jobs.plan.plan_words import grid, one_or_each
    from closeranks.partitioning.mesh.volume import Volume
    from closeranks.partitioning.placement.grid_search import cartesian, face_bytes

    shape = grid("--grid", text)
    width = one_or_each("--halo", halo, len(shape))
    best = cartesian(shape, topology, halo=width, periodic=periodic, itemsize=itemsize)
    faces = face_bytes(shape, best.mesh.shape, width, itemsize)
    pattern = "torus" if periodic else "line"
    sent = {axis: Volume(n, pattern) for axis, n in zip(best.mesh.axes, faces, strict=True)}
    return _Asked("grid", sent, [best])


def _machine(path: Path | None, children: str | None, links: tuple[str, ...]) -> Topology:
    """Read or make up the machine."""
    from closeranks.comms.topology.topology import Topology
    from closeranks.jobs.plan.plan_words import link, whole_pairs

    if (path is None) == (children is None):
        raise UsageError("plan", "one of --topology and --machine is needed",
                         "give --topology F.json, or --machine site=2,node=2,rank=2")  # fmt: skip
    if path is not None:
        found = Topology.from_json(_text(path))
    else:
        remedy = "write level=number,...,rank=number, such as site=2,node=2,rank=2"
        try:
            found = Topology.regular(**whole_pairs("--machine", children or "", remedy))
        except TopologyError as wrong:
            raise UsageError("plan --machine", f"{children}: {wrong.problem}", remedy) from wrong
    given = dict(link("--link", text) for text in links)
    unknown = ", ".join(sorted(set(given) - set(found.levels)))
    if unknown:
        raise UsageError(
            "plan --link", f"no level {unknown}", f"choose of {', '.join(found.levels)}"
        )
    return found.with_links(given) if given else found


def _text(path: Path) -> str:
    """Read a file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "no UTF-8 text"
        remedy = "name a file that closeranks topology --json has written"
        raise UsageError("plan --topology", f"cannot read {path}: {why}", remedy) from wrong


def _tell_assumed(topology: Topology) -> None:
    """Say which rates nobody gave or measured."""
    assumed = [
        f"{name} {link}"
        for name, link in topology.links.items()
        if link.source == "default" and topology.count(name) > 1
    ]
    if assumed:
        click.echo(f"assumed, not measured: {'; '.join(assumed)} (give --link to change)")
