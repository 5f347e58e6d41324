"""A save as one plain file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from closeranks.checkpoint.control.single_process import Alone
from closeranks.checkpoint.disk.export import export
from closeranks.checkpoint.disk.saved_file_index import Files, Library
from closeranks.checkpoint.disk.saved_files import Volume
from closeranks.checkpoint.restore import repair
from closeranks.checkpoint.restore.generation_choice import Save
from closeranks.checkpoint.restore.recovery_search import Nodes
from closeranks.checkpoint.restore.slot_inventory import Holding
from closeranks.errors import CheckpointError, NotFound
from closeranks.jobs.checkpoint_tools.verify import progress


def from_memory(found: Sequence[Holding], step: int | None, output: Path) -> int:
    """Write the newest save in memory that can be restored into one file.

    Parameters
    ----------
    found : sequence of Holding
        Of one name, the newest first.
    step : int or None
        This one and no other.
    output : Path
        What has this name is replaced.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    NotFound
        If there is no such step.
    CheckpointError
        If none can be restored from what is here, or it cannot be read or written.
    """
    saves = [one.save for one in found if one.save is not None]
    save = _pick(saves, step, "collect the slots of all nodes, and give them with --directory")
    with progress("checked", sum(one.nbytes for one in found if one.save is save)) as done:
        verdict = repair.verify(save, done)
    objection = save.objection(verdict.damaged)
    if objection is not None:
        raise CheckpointError("checkpoint convert", objection.text, "take another step")
    data = sum(size.body for layout in save.layouts.values() for size in layout.sizes.values())
    header = save.header
    about = _about(header.name, header.run, header.step, header.generation, header.world)
    with (
        repair.readable(save, verdict.damaged, output.resolve().parent) as source,
        progress("written", data) as done,
    ):
        export(source, about, output, done, check=lambda: repair.check_unchanged(save))
    return save.step


def from_disk(
    name: str, found: Sequence[Volume], folder: Path, step: int | None, output: Path
) -> int:
    """Write the newest save on disk that is whole into one file.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    found : sequence of Volume
        Of this name, the newest first.
    folder : Path
        Of the checkpoints of the name.
    step : int or None
        This one and no other.
    output : Path
        What has this name is replaced.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    NotFound
        If there is no such step.
    CheckpointError
        If none is whole, or it cannot be read or written.
    """
    volume = _pick(found, step, "look at its files")
    files = Files(volume, Library(Alone(), Nodes([0], 0), folder))
    sizes = [body for one in volume.abouts.values() for _, _, body in one.ranks]
    about = _about(name, volume.run or "", volume.step, volume.age[1], volume.world)
    with closing(files), progress("written", sum(sizes)) as done:
        export(files, about, output, done)
    return volume.step


def _about(name: str, run: str, step: int, generation: int, ranks: int) -> dict[str, str | int]:
    """Say which save it is."""
    return {"name": name, "run": run, "step": step, "generation": generation, "ranks": ranks}


_Kind = TypeVar("_Kind", Save, Volume)


def _pick(found: Sequence[_Kind], step: int | None, remedy: str) -> _Kind:
    """Take the newest save that can be restored, as far as headers tell."""
    wanted = [one for one in found if step in (None, one.step)]
    if not wanted:
        known = ", ".join(str(one.step) for one in found) or "none"
        told = "nothing that was saved" if step is None else f"no step {step}"
        raise NotFound("checkpoint convert", f"{told}; there are {known}")
    objections = [one.objection() for one in wanted]
    for one, objection in zip(wanted, objections, strict=True):
        if objection is None:
            return one
    assert objections[0] is not None
    raise CheckpointError("checkpoint convert", objections[0].text, remedy)
