"""Tables on real ranks: measured, agreed, used, and refused where they do not fit."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.plans.port_tree import hierarchy
from closeranks.collectives.selection.call_options import NATIVE
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.tuning_origin import here
from closeranks.collectives.selection.tuning_table import Crossing, Tuned, together
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Disagreement, UsageError
from closeranks.jobs.bench.measuring.session import BenchRequest
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.tune import survey
from closeranks.jobs.tune import survey as stages
from closeranks.jobs.tune.command import measured

#: Node of each rank.
MAPS = {2: [0, 1], 3: [0, 0, 1], 4: [0, 0, 1, 1]}
EFFORT = Effort(iterations=2, warmup=0)


def made_up(size: int) -> Topology:
    """Nodes that are not there."""
    return Topology.from_groups(("node", "rank"), [MAPS[size], list(range(size))])


def table(topology: Topology, **changes: Any) -> dict[str, Any]:
    """A table as if it had been made here."""
    link = Link(2e-5, 3e8, 1, "tuned", 7e-5)
    levels = {level: Crossing(link, number) for level, number in together(topology).items()}
    winners = Rules({"allreduce": ((1 << 12, NATIVE), (1 << 16, "ring"))})
    made = Tuned(here(topology), levels, Speed(), NativeModel(1e-5, 1e-9), winners)
    return replace(made, **changes).table()


def warned(rank: int, text: str) -> AbstractContextManager[object]:
    """Expect a warning on rank 0, and none elsewhere."""
    return pytest.warns(RuntimeWarning, match=text) if rank == 0 else nullcontext()


def test_it_takes_the_place_of_what_init_measures(comm: MPI.Intracomm) -> None:
    with cr.init(comm, tuning={}) as plain:
        placed = plain.hierarchy
    with cr.init(comm, tuning=table(placed)) as world:
        for level in together(placed):
            assert world.hierarchy.links[level] == Link(2e-5, 3e8, 1, "tuned", 7e-5)
        if comm.size == 1:
            return
        assert world._service.chooser.pricing.native == NativeModel(1e-5, 1e-9)
        for nbytes, name in ((2048, NATIVE), (1 << 15, "ring")):
            found = world.explain("allreduce", nbytes)
            assert (found.algorithm, found.calls_to_settle) == (name, 0)
        x = np.ones(1 << 13, np.float32)
        world.Allreduce(MPI.IN_PLACE, x)
        assert (x == comm.size).all()
        assert world.statistics().algorithms == {"allreduce": {"ring": 1}}
        assert world.explain("bcast", 1 << 15).calls_to_settle > 0, "no rule: trials as ever"
        assert world.Dup()._service.chooser.winners.ladders
        half = world.Split(world.rank == 0)
        assert not half._service.chooser.winners.ladders, "its ranks sit otherwise"


def test_rank_0_reads_it_for_all(comm: MPI.Intracomm) -> None:
    with cr.init(comm, tuning={}) as plain:
        placed = plain.hierarchy
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else "")
    path = Path(folder) / "table.json"
    if comm.rank == 0:
        path.write_text(json.dumps(table(placed)))
    where = path if comm.rank == 0 else Path("/no/such/table.json")
    with cr.init(comm, tuning=where, deterministic=True) as world:
        links = world.hierarchy.links
        assert all(links[level].source == "tuned" for level in together(placed))
    if comm.rank == 0:
        path.write_text('{"format": "closeranks tuning", "version": 99}')
    with pytest.raises(cr.UsageError, match="version 99"):
        cr.init(comm, tuning=where)
    if comm.rank == 0:
        shutil.rmtree(folder)


def test_another_machines_table_is_left_out_with_a_warning(comm: MPI.Intracomm) -> None:
    with cr.init(comm, tuning={}) as plain:
        placed = plain.hierarchy
    mine = here(placed)
    for other in (mine._replace(library="MPI of Babel"), mine._replace(processor="abacus")):
        foreign = table(placed, origin=other)
        with (
            warned(comm.rank, "not used: it was made .* closeranks tune"),
            cr.init(comm, tuning=foreign) as world,
        ):
            assert all(link.source != "tuned" for link in world.hierarchy.links.values())
            assert not world._service.chooser.winners.ladders


def test_a_file_on_some_ranks_only_is_told_on_all(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("CLOSERANKS_TUNING", "/nowhere/table.json")
    expected = UsageError if comm.size == 1 else Disagreement
    with pytest.raises(expected, match="nowhere"):
        cr.init(comm)


def test_levels_that_differ_are_measured_anew(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    with cr.init(comm, tuning={}) as plain:
        placed = plain.hierarchy
    level, number = next(iter(together(placed).items()))
    levels = {level: Crossing(Link(1e-5, 1e9, 1, "tuned"), number + 1)}
    with (
        warned(comm.rank, f"in part: level '{level}' is shared by {number} ranks here"),
        cr.init(comm, tuning=table(placed, levels=levels)) as world,
    ):
        assert world.hierarchy.links[level].source == "measured"


def test_links_of_a_given_topology_go_first(comm: MPI.Intracomm) -> None:
    if comm.size < 3:
        pytest.skip("two levels need three ranks")
    given = made_up(comm.size).with_links({"node": Link(1e-3, 1e6)})
    with cr.init(comm, topology=given, tuning=table(given)) as world:
        assert world.hierarchy.links["node"] == Link(1e-3, 1e6)
        assert world.hierarchy.links["rank"].source == "tuned"


def test_stages_do_what_they_are_for(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    topology = made_up(comm.size)
    world = World(0, comm, topology)
    interpreter.prepare(world, together=True)
    for stage in stages.stages(topology):
        bound = survey._bound(world, stage, 16 * stage.owners)
        run = survey._runner(bound)
        for _ in range(2):
            run()
        found = bound.memory[1]
        assert found is not None
        expected = np.ones(4 * stage.owners)
        for rail in hierarchy(topology).rails(comm.rank)[stage.tier - 1 : stage.tier]:
            if stage.kind == "allreduce":
                expected[:] = len(rail.members)
            elif stage.kind == "sum" and rail.me < rail.owners:
                expected[4 * rail.me : 4 * rail.me + 4] = len(rail.members)
        np.testing.assert_array_equal(found, expected)
    world.close()


@pytest.mark.timeout(120)
def test_all_ranks_find_the_same(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return

    class Silent:
        def show(self, *_: object) -> None: ...
        def advance(self) -> None: ...

    request = BenchRequest(names=("allreduce", "barrier"), sizes=(64, 4096), effort=EFFORT)
    with cr.init(comm, tuning={}) as world:
        tuned, rows = measured(request, world, Silent())  # type: ignore[arg-type]
        assert len(set(comm.allgather(json.dumps(tuned.table())))) == 1
        assert set(tuned.levels) == set(together(world.hierarchy))
        assert set(tuned.winners.ladders) == {"allreduce", "barrier"}
        assert {row["kind"] for row in rows} >= {"level", "stage", "winner"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cr.init(comm, tuning=tuned.table()) as again:
            assert again.explain("allreduce", 4096).calls_to_settle == 0
