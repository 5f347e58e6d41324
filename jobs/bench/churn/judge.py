"""Reads what an episode has left and says whether it was right.

It knows nothing of the protocol.  Every step must have been ended by one set
of members, by each of them that lives on, and by nobody else.  Each of them
got the sum of just their parts of just this step.  A seat is one process's
until that is gone, and then a spare's, if one waits.  A process that the
schedule meets is gone, and seats become empty only when the schedule says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from closeranks.jobs.bench.churn.model import Episode, met, victims
from closeranks.jobs.bench.churn.record import Record, whole

_Steps = dict[int, list[Record]]
_Processes = dict[str, list[Record]]


class ChurnVerdict(NamedTuple):
    """Findings of the judge.

    Attributes
    ----------
    kills, stops, joins : int
        Events that happened.
    unplanned : int
        Processes that are gone without an event.
    recoveries : int
        Epochs.
    steps, unfinished : int
        That members ended, and that were left after the last of them: the job hung
        or was over too soon.
    wrong : tuple of str
        Errors, in words; unplanned deaths are counted apart.
    kib_a_recovery, files_a_recovery : float or None
        How the process that was there for longest has grown while all seats were
        taken, in the later half of these recoveries: first it warms up.  None if
        it saw too few.
    slowest_s : float
        The longest step, with its recovery.
    taken_s : tuple of float
        Every step on its slowest member, with its recovery.
    process_mean_s : float
        Mean over the processes of the mean of each one's own steps.
    """

    kills: int
    stops: int
    joins: int
    unplanned: int
    recoveries: int
    steps: int
    unfinished: int
    wrong: tuple[str, ...]
    kib_a_recovery: float | None
    files_a_recovery: float | None
    slowest_s: float
    taken_s: tuple[float, ...]
    process_mean_s: float


def judge(plan: Episode, records: Sequence[Record]) -> ChurnVerdict:
    """Judge an episode.

    Pure.

    Parameters
    ----------
    plan : Episode
        The schedule.
    records : sequence of Record
        Records of all processes, in any order.

    Returns
    -------
    ChurnVerdict
        ``.wrong`` is empty if it was right.
    """
    by_step = defaultdict[int, list[Record]](list)
    by_process = defaultdict[str, list[Record]](list)
    for record in sorted(records, key=lambda one: (one.step, one.seat)):
        by_step[record.step].append(record)
        by_process[record.process].append(record)
    reached = max(by_step, default=-1) + 1
    wrong = [f"step {step}: nobody ended it" for step in range(reached) if step not in by_step]
    wrong += [f"step {step}: beyond the end" for step in by_step if step >= plan.steps]
    for step, said in by_step.items():
        wrong += [f"step {step}: {words}" for words in _wrong_in(said)]
    wrong += _wrong_between(by_step)
    wrong += _missed(by_step, by_process)
    wrong += _without_cause(by_step, by_process)
    wrong += _wrong_waiting(plan, by_step, by_process)
    wrong += _wrong_seats(by_process)
    wrong += _spared(plan, by_step, by_process)
    unfinished = max(plan.steps - reached, 0)
    gone = _gone(plan, by_process, by_step.get(reached - 1, ()))
    kinds = list(gone.values())
    joins = len(by_process) - plan.members
    wanted = min(plan.spares, len(kinds))
    if not unfinished and "" not in kinds and joins != wanted:
        wrong.append(f"{joins} spares joined, not {wanted}")
    taken_s = tuple(max(one.seconds for one in said) for said in by_step.values())
    means_s = [fmean(one.seconds for one in own) for own in by_process.values()]
    eldest = max(by_process.values(), key=len, default=[])
    return ChurnVerdict(
        kinds.count("kill"),
        kinds.count("stop"),
        joins,
        kinds.count(""),
        max((record.epoch for record in records), default=0),
        len(by_step),
        unfinished,
        tuple(wrong),
        *_growth([record for record in eldest if len(record.alive) == plan.members]),
        max(taken_s, default=0.0),
        taken_s,
        fmean(means_s) if means_s else 0.0,
    )


def _wrong_in(said: Sequence[Record]) -> list[str]:
    """Look at one step."""
    found = []
    worlds = {(one.epoch, one.alive) for one in said}
    if len(worlds) > 1:
        found.append(f"ended in {len(worlds)} worlds: {sorted(worlds)}")
    waiting = {one.waiting for one in said}
    if len(waiting) > 1:
        found.append(f"members count {sorted(waiting)} spares")
    for one in said:
        expected = whole(one.alive, one.step, one.epoch)
        if one.total != expected.bits:
            found.append(f"seat {one.seat} got {one.total:#x}, not {expected.bits:#x}")
        elif one.marks != expected.marks:
            found.append(f"seat {one.seat} got parts that are not all of this step, each once")
        if one.seat not in one.alive:
            found.append(f"seat {one.seat} is no member: {one.alive}")
    seats = [one.seat for one in said]
    if len(set(seats)) != len(seats):
        found.append(f"several in one seat: {seats}")
    return found


def _wrong_between(by_step: _Steps) -> list[str]:
    """Look from step to step: epochs never fall, seats change with them only."""
    found = []
    for before, after in pairwise(sorted(by_step)):
        old, new = by_step[before][0], by_step[after][0]
        if new.epoch < old.epoch:
            found.append(f"step {after}: epoch {new.epoch} after {old.epoch}")
        if new.epoch == old.epoch and (new.alive, new.waiting) != (old.alive, old.waiting):
            found.append(f"step {after}: other members or spares in epoch {new.epoch}")
    return found


def _missed(by_step: _Steps, by_process: _Processes) -> list[str]:
    """Look for members that did not end a step, and were there afterwards."""
    found = []
    for step, said in by_step.items():
        absent = set(said[0].alive) - {one.seat for one in said}
        after = by_step.get(step + 1, ())
        found += [
            f"step {step}: seat {seat} missed it and lives on"
            for seat in sorted(absent)
            if _lives_on(seat, said[0], after, by_process)
        ]
    return found


def _lives_on(seat: int, at: Record, after: Sequence[Record], by_process: _Processes) -> bool:
    """Say whether the process that had a seat in a step took part in later ones.

    The dead end no step, so a seat that is a member's in the next step of the same
    epoch is the same process's.  In a later epoch it may be another one's.
    """
    if any(one.epoch == at.epoch and seat in one.alive for one in after):
        return True
    spans = [(one[0].step, one[-1].step) for one in by_process.values() if one[0].seat == seat]
    return any(first < at.step < last for first, last in spans)


def _without_cause(by_step: _Steps, by_process: _Processes) -> list[str]:
    """Look for recoveries in which nobody is gone, or fewer than recoveries."""
    gone = Counter(_left_after(own[-1], by_step) for own in by_process.values())
    found, before, epoch = [], -1, 0
    for step in sorted(by_step):
        lost = sum(gone[one] for one in range(before, step))
        new = by_step[step][0].epoch
        if new - epoch > lost:
            found.append(f"step {step}: epoch {new} after {epoch}, though {lost} are gone")
        before, epoch = step, new
    return found


def _left_after(last: Record, by_step: _Steps) -> int:
    """Say in which step a process was a member for the last time.

    A process that dies after the vote of a step is a member of it and writes
    nothing.
    """
    after = by_step.get(last.step + 1, [])
    is_silent = any(last.seat in one.alive for one in after[:1])
    return last.step + (is_silent and last.seat not in [one.seat for one in after])


def _wrong_waiting(plan: Episode, by_step: _Steps, by_process: _Processes) -> list[str]:
    """Compare the spares that are said to wait with those that have not come.

    A spare that has come, and has not written it down yet, may be missing.
    """
    came, found = Counter(own[0].step for own in by_process.values()), []
    seen = 0
    for step in sorted(by_step):
        said, seen = by_step[step], seen + came[step]
        waits = plan.spares - max(seen - plan.members, 0)
        if not 0 <= waits - said[0].waiting <= len(said[0].alive) - len(said):
            found.append(f"step {step}: {said[0].waiting} spares wait, not {waits}")
    return found


def _wrong_seats(by_process: _Processes) -> list[str]:
    """Look for processes that have had several seats."""
    seats = {name: sorted({one.seat for one in own}) for name, own in by_process.items()}
    return [f"process {name} had seats {had}" for name, had in seats.items() if len(had) > 1]


def _spared(plan: Episode, by_step: _Steps, by_process: _Processes) -> list[str]:
    """Look for processes that an event has met and that are still there."""
    found = []
    for event in plan.events:
        before = by_step.get(event.step - 1, ())
        struck = victims(event, before[0].alive, before[0].waiting) if before else ()
        found += [
            f"step {event.step}: seat {one.seat} was to meet a {event.kind} and lives on"
            for one in before
            if one.seat in struck and by_process[one.process][-1].step >= event.step
        ]
    return found


def _gone(plan: Episode, by_process: _Processes, end: Sequence[Record]) -> dict[str, str]:
    """Name the processes that missed the end, and their event: "" for nothing.

    A process that was there when a job ended too soon is not lost, but
    unfinished.
    """
    gone = {}
    for name, records in by_process.items():
        last = records[-1]
        if last.step >= plan.steps - 1:
            continue
        what = _met_by(plan, last)
        if what or not _saw(last, end, plan):
            gone[name] = what
    return gone


def _saw(last: Record, end: Sequence[Record], plan: Episode) -> bool:
    """Say whether a process was there in the last step of a job that ended too soon.

    It may have had no time to write that down.
    """
    if not end or end[0].step >= plan.steps - 1:
        return False
    others = {one.seat for one in end}
    silent = last.seat in end[0].alive and last.seat not in others
    return last.step == end[0].step or (silent and last.step == end[0].step - 1)


def _met_by(plan: Episode, last: Record) -> str:
    """Say what has met a process in the step after its last one."""
    event = met(plan.events, last.step + 1)
    if event is None:
        return ""
    return event.kind if last.seat in victims(event, last.alive, last.waiting) else ""


def _growth(records: Sequence[Record]) -> tuple[float | None, float | None]:
    """Say by how much memory and files have grown from a recovery to the next."""
    first = dict[int, Record]()
    for record in records:
        first.setdefault(record.epoch, record)
    seen = [first[epoch] for epoch in sorted(first)]
    seen = seen[len(seen) // 2 :]
    if len(seen) < 2:
        return None, None
    spans = seen[-1].epoch - seen[0].epoch
    return (
        (seen[-1].rss_kib - seen[0].rss_kib) / spans,
        (seen[-1].files - seen[0].files) / spans,
    )
