"""Checking saves, and making them whole again, in one process without MPI.

The code is that of the ranks, on slots in folders, each taken for a node.  A
damaged slot is never worked on where it lies, but as a copy.  The copy takes
its place once all that was made anew has been compared with the sums of the
save.

`repair_parity` is for ranks: a later look at parity that a restore did not
need, because the next loss may need it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.placement.slot_header import WRITING, name_of, place_of
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore.generation_choice import Damaged, Found, Save
from closeranks.checkpoint.restore.recovery_search import RankNodes, SaveRecovery, SaveSource, Slots
from closeranks.checkpoint.restore.slot_inventory import carry, copy, scratch
from closeranks.comms.shm.shared_folder import folder
from closeranks.errors import CheckpointError, PeerError, TooManyErasures, Unavailable, named

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


def repair_parity(
    begin: Callable[[], SaveRecovery], channel: ControlChannel, pending: Pending
) -> None:
    """Check the parity of a save with whole data; make damaged parity anew.

    Collective; on any thread.  Raises nothing: of lost ranks other calls tell.

    Parameters
    ----------
    begin : callable
        Gives the save that was restored.
    channel : ControlChannel
        Between the ranks.
    pending : Pending
        Committed at the end, also after a failure.
    """
    recovery = begin()
    try:
        channel.together("restore", None)  # it takes no core from who restores still
        if recovery.rebuild(recovery.verify(data=False, parity=True)):
            recovery.settle(WRITING)  # so that nobody takes it for whole
    except Exception as error:
        if not isinstance(error, PeerError):
            text = f"parity of step {pending.step} could not be looked at: {error}; save again"
            warnings.warn(text, RuntimeWarning, stacklevel=1)
    finally:
        pending.committed.reach()
        recovery.close()


#: What became of a save.
WHOLE, REPAIRABLE, LOST = "whole", "repairable", "lost"


class ChecksumVerdict(NamedTuple):
    """The verdict of the check sums of a save.

    Attributes
    ----------
    outcome : str
        ``whole``, ``repairable`` or ``lost``.
    text : str
        Why, for a reader; empty if it is whole.
    damaged : dict of Share to Damaged
        The chunks that do not fit their check sums.
    """

    outcome: str
    text: str
    damaged: dict[Share, Damaged]


def verify(save: Save, done: Callable[[int], None]) -> ChecksumVerdict:
    """Look at all check sums of a save.

    Local.

    Parameters
    ----------
    save : Save
        Found in folders of this machine.
    done : callable
        Is told how many bytes were looked at, slot by slot.

    Returns
    -------
    ChecksumVerdict
        On the slots that are here.

    Raises
    ------
    CheckpointError
        If a job has used a slot for another save meanwhile.
    """
    damaged: dict[Share, Damaged] = {}
    for share, one in save.found.items():
        part = replace(save, found={share: one._replace(node=0)})
        with _recovery(part, None) as recovery:
            damaged |= recovery.verify(parity=True)
        with suppress(FileNotFoundError):  # as will be said below
            done(Path(one.path).stat().st_size)
    check_unchanged(save)
    return judge(save, damaged)


def judge(save: Save, damaged: Mapping[Share, Damaged]) -> ChecksumVerdict:
    """Judge the damage of a save.

    Local and pure.

    Parameters
    ----------
    save : Save
        Which.
    damaged : mapping of Share to Damaged
        The chunks that do not fit their check sums.

    Returns
    -------
    ChecksumVerdict
        On the slots that are here.
    """
    text = ", ".join(_told(save, damaged))
    objection = save.objection(damaged)
    if objection is not None:
        return ChecksumVerdict(LOST, "; ".join(filter(None, [objection.text, text])), dict(damaged))
    return ChecksumVerdict(REPAIRABLE if text else WHOLE, text, dict(damaged))


def check_unchanged(save: Save) -> None:
    """Raise `CheckpointError` if slots hold another save by now.  Local."""
    for one in save.found.values():
        try:
            header = slot_file.look(Path(one.path))
        except Unavailable:
            header = None
        if header is None or header.age != one.header.age or header.run != one.header.run:
            problem = f"step {save.step}: {one.path} was removed or overwritten meanwhile"
            raise CheckpointError("checkpoint", problem, "wait until the job has ended")


def repair(
    save: Save,
    damaged: Mapping[Share, Damaged],
    places: Sequence[Path],
    into: Path | None = None,
) -> list[Path]:
    """Make lost and damaged slots anew, and put them in their places.

    Local.  Nothing is changed before all of a group is made and compared.

    Parameters
    ----------
    save : Save
        Found in folders of this machine.
    damaged : mapping of Share to Damaged
        As `verify` has found it.
    places : sequence of Path
        The folders; a lost share goes where fewest of its group are.
    into : Path, optional
        Or there.

    Returns
    -------
    list of Path
        Slots that were made anew.

    Raises
    ------
    TooManyErasures
        If more is lost than can be made anew.
    CheckpointError
        If the result is not equal to the save, or there is no place for it.
    Unavailable
        If there is no room.
    """
    objection = save.objection(damaged)
    if objection is not None:
        raise TooManyErasures("repair", objection.lost, objection.tolerated, objection.text)
    made: list[Path] = []
    for group in sorted(save.layouts):
        part = _of_group(save, group)
        hurt = sorted({share for share, _ in part.damage(group, damaged)})
        if not hurt:
            continue
        targets = _targets(part, hurt, places, into)
        with scratch(next(iter(targets.values())).parent) as work:
            whole = rebuilt(part, damaged, work, lasting=True)
            for share, target in targets.items():
                carry(Path(whole.found[share].path), target)
        made += targets.values()
    return made


def rebuilt(
    save: Save, damaged: Mapping[Share, Damaged], work: Path, *, lasting: bool = False
) -> Save:
    """Copy damaged slots, make slots for lost shares, and fill them.

    Local.

    Parameters
    ----------
    save : Save
        Without objection to the damage.
    damaged : mapping of Share to Damaged
        As `verify` has found it.
    work : Path
        A folder for them.
    lasting : bool
        Whether headers shall say that all is well.

    Returns
    -------
    Save
        Whole: as found, but for the new slots.

    Raises
    ------
    CheckpointError
        If the result is not equal to the save.
    Unavailable
        If there is no room.
    """
    hurt = {share for group in save.layouts for share, _ in save.damage(group, damaged)}
    found = {share: one._replace(node=0) for share, one in save.found.items()}
    for share in hurt & set(found):
        made = folder(work) / Path(found[share].path).name
        copy(Path(found[share].path), made)
        found[share] = found[share]._replace(path=str(made))
    with _recovery(replace(save, found=found), work) as recovery:
        wrong = recovery.rebuild(dict(damaged))
        if wrong:
            problem = f"step {save.step}: what was made anew of {named(wrong)} is wrong"
            raise CheckpointError("repair", problem, "take an older step")
        if lasting:
            recovery.settle()
    place = place_of(Path(next(iter(found.values())).path))
    for share in save.lost:
        header = replace(save.header, share=share, layout=save.layouts[share.group])
        found[share] = Found(0, str(slot_file.path_of(header, place, work)), header)
    return replace(save, found=found)


@contextmanager
def readable(save: Save, damaged: Mapping[Share, Damaged], place: Path) -> Iterator[SaveSource]:
    """Have a save that can be read; its lost parts are made anew beside it.

    Local; nothing of the save is changed.

    Parameters
    ----------
    save : Save
        Without objection to the damage.
    damaged : mapping of Share to Damaged
        As `verify` has found it.
    place : Path
        A folder with room for lost and damaged slots, meanwhile.

    Yields
    ------
    SaveSource
        Of its data.
    """
    here = {share: one._replace(node=0) for share, one in save.found.items()}
    with ExitStack() as stack:
        whole = replace(save, found=here)
        if save.lost or any(of.data for of in damaged.values()):
            whole = rebuilt(save, damaged, stack.enter_context(scratch(place)))
        yield Slots(stack.enter_context(_recovery(whole, None)), SingleProcessChannel())


@contextmanager
def _recovery(save: Save, root: Path | None) -> Iterator[SaveRecovery]:
    """Begin to restore a save that lies on one node, as the only rank."""
    recovery = SaveRecovery(save, SingleProcessChannel(), RankNodes([0], 0), root)
    try:
        yield recovery
    finally:
        recovery.close()


def _of_group(save: Save, group: int) -> Save:
    """Give one group of a save."""
    found = {share: one for share, one in save.found.items() if share.group == group}
    return replace(save, layouts={group: save.layouts[group]}, found=found)


def _told(save: Save, damaged: Mapping[Share, Damaged]) -> Iterator[str]:
    """Name the damage."""
    if save.lost:
        yield f"{_many(len(save.lost), 'share')} lost"
    if damaged:
        chunks = sum(len(of.data) + len(of.parity) for of in damaged.values())
        yield f"{_many(chunks, 'chunk')} of {_many(len(damaged), 'share')} damaged"
    bare = {share for group in save.layouts for share, _ in save.damage(group, {})}
    if bare - set(save.lost):
        yield f"{_many(len(bare - set(save.lost)), 'share')} without parity"


def _many(number: int, what: str) -> str:
    """Write a number of things."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def _targets(
    save: Save, hurt: Sequence[Share], places: Sequence[Path], into: Path | None
) -> dict[Share, Path]:
    """Decide where new slots go: a damaged one is replaced where it is."""
    folders = {share: Path(one.path).parent for share, one in save.found.items()}
    place = place_of(Path(next(iter(save.found.values())).path))
    targets = {}
    for share in hurt:
        header = replace(save.header, share=share, layout=save.layouts[share.group])
        name = name_of(header, place)
        if share not in save.found:
            beside = [folder_of for other, folder_of in folders.items() if other.lane == share.lane]
            every = list(folders.values())
            free = [one for one in ([into] if into else places) if not _is_slot(one / name)]
            if not free:
                raise CheckpointError("repair", f"{name}: a slot of this name is in the way",
                                      "name another folder with --into")  # fmt: skip
            folders[share] = min(free, key=lambda one: (beside.count(one), every.count(one)))
        targets[share] = folders[share] / name
    return targets


def _is_slot(path: Path) -> bool:
    """Tell whether there is a slot that says something."""
    try:
        slot_file.look(path)
    except (CheckpointError, Unavailable):
        return False
    return True
