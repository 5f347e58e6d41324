"""Saves on their way to disk, beside all else that a job does.

A thread of its own writes, so that neither the program nor the next save waits
for a disk.  One rank of each node writes the node's file, from the slots; the
slots are not written over before that is done.  All ranks hear the outcome.

A rank that leaves by an exception or a signal writes the newest save of its
node without asking others: the files on disk decide.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.checkpoint.control.pending import Pending, Worker
from closeranks.checkpoint.disk import node_file, saved_files
from closeranks.checkpoint.disk.hdf5_writer import About
from closeranks.checkpoint.disk.node_file import Persist, PersistedSave
from closeranks.checkpoint.disk.saved_files import SavedFile
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.disk.saved_files import SavedFileIndex
    from closeranks.collectives.communicator.communicator import Communicator

#: How long a process that leaves writes at most, in seconds.
LEAVING_S: Final = 60.0
_Age = tuple[int, int]


@dataclass(eq=False)
class _Job:
    """A save to be written."""

    kept: PersistedSave
    pending: Pending
    is_written: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Flushing:
    """Writes committed saves to disk.

    Making it is collective.

    Parameters
    ----------
    comm : Communicator
        Of the job.
    index : SavedFileIndex
        The files on disk, and which nodes see them.
    persist : Persist
        The request.
    known : sequence of SavedFile
        The saves on disk.
    run : str
        This run: saves of other runs stay.
    last : int
        Generation of the newest save that is anywhere: others count from it.
    """

    def __init__(
        self,
        comm: Communicator,
        index: SavedFileIndex,
        persist: Persist,
        known: list[SavedFile],
        run: str,
        last: int,
    ) -> None:
        self._channel, self._nodes, self._persist = ControlChannel(comm), index.nodes, persist
        self._is_shared = index.is_shared()
        self._worker = Worker("checkpoint files") if comm.threaded else None
        self._others = {one.folder for one in known if one.run not in (None, run)}
        self._whole = sorted(one.age for one in known if one.run == run and one.objection() is None)
        self._damaged: set[_Age] = set()
        self._jobs: dict[int, _Job] = {}
        self._last = last
        self._newest: PersistedSave | None = None
        self._least: _Age = (0, 0)
        self._stopped = False
        self._writing = threading.Lock()

    def expect(self, pending: Pending, generation: int) -> None:
        """Say of a save whether it will be written; the one before is over.

        Local.  One that is due and fails leaves it to the next, and a new start
        goes on where the last one was.

        Parameters
        ----------
        pending : Pending
            Hears of the outcome.
        generation : int
            Its number.
        """
        every = self._persist.every
        if generation // every == self._last // every:
            pending.stays(f"persist_every={every}")

    def take(self, place: int, slots: Mapping[Share, Slot], pending: Pending) -> None:
        """Take a save over that is committed.

        Collective.  Returns at once; below ``MPI_THREAD_MULTIPLE`` when it is written.

        Parameters
        ----------
        place : int
            Which slots: they are not to be written over until `wait` has returned.
        slots : mapping of Share to Slot
            All of this rank's node.
        pending : Pending
            Hears of the outcome.
        """
        self._newest = PersistedSave.of(slots)
        self._last = self._newest.header.generation
        if pending.persisted.done():
            return
        job = self._jobs[place] = _Job(self._newest, pending)
        if self._worker is not None:
            self._worker.order(lambda: self._do(job))
        else:
            self._do(job)

    def is_free(self, place: int) -> bool:
        """Tell whether slots may be written over.  Local."""
        return place not in self._jobs or self._jobs[place].done.is_set()

    def wait(self, place: int) -> Pending | None:
        """Wait until slots may be written over.

        Local.

        Parameters
        ----------
        place : int
            Which.

        Returns
        -------
        Pending or None
            Of the save that was in them, if it is not on disk: the same on all ranks.
        """
        job = self._jobs.pop(place, None)
        if job is None:
            return None
        job.done.wait()
        return None if job.pending.persisted.error is None else job.pending

    def finish(self) -> Exception | None:
        """Wait for all files being written; gives a failure not raised yet.  Local."""
        found = [self.wait(place) for place in sorted(self._jobs)]
        untold = [one.persisted for one in found if one is not None and not one.persisted.is_told]
        for mark in untold:
            mark.is_told = True
        return untold[0].error if untold else None

    def adopt(self, slots: Mapping[Share, Slot]) -> None:
        """Take a save over that came back from memory: `leave` writes it.

        Local; on all ranks.

        Parameters
        ----------
        slots : mapping of Share to Slot
            All that the same node of its job has kept.
        """
        kept = PersistedSave.of(slots)
        if self._newest is None or self._newest.header.age < kept.header.age:
            self._newest = kept

    def distrust(self, age: _Age) -> None:
        """Count a save on disk no more, for it was found to be damaged.

        Local; on all ranks.

        Parameters
        ----------
        age : tuple of int
            Of the save.
        """
        self._damaged.add(age)

    def leave(self, places: Mapping[int, Mapping[Share, Slot]]) -> None:
        """Write the newest save of this node, for the process goes.

        Local; on any thread, for a minute at most.  A failure is a warning.

        Parameters
        ----------
        places : mapping of int to mapping of Share to Slot
            All slots of this node, by place.
        """
        deadline = Deadline(LEAVING_S)

        def check() -> None:
            if deadline.expired:
                raise CheckpointError("persist", f"not written in {LEAVING_S:g} s")

        for kept in self._candidates(places):
            self._least = kept.header.age  # what is older need not be finished
            try:
                self._write(kept, check)
            except Exception as error:  # why the process goes is what counts
                warnings.warn(f"closeranks: {error}", RuntimeWarning, 2)

    def stop(self) -> None:
        """Write no more, for the ranks are others now.  Local."""
        self._stopped = True
        if self._worker is not None:
            self._worker.stop()

    def close(self) -> None:
        """End.  Collective; nothing is being written."""
        self.stop()
        self._channel.close()

    def _candidates(self, places: Mapping[int, Mapping[Share, Slot]]) -> list[PersistedSave]:
        """Give the saves that this node should have on disk, the newest first.

        Other ranks may know of a commit that this rank has not heard of.  So a
        save that is copied everywhere is written, and the one before, too.
        """
        known = [] if self._newest is None else [self._newest]
        for slots in list(places.values()):
            try:
                kept = PersistedSave.of(dict(slots))
                if all(one.header.age < kept.header.age for one in known):
                    kept.check()
                    known.insert(0, kept)
            except (CheckpointError, Unavailable, AttributeError, ValueError):
                continue  # nothing is in them, or no longer
        return known

    def _do(self, job: _Job) -> None:
        """Write a save, and report the outcome."""
        mark = job.pending.persisted
        try:
            problem: Exception | None = None
            if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
                problem = self._tried(job)
            self._channel.together("persist", problem)
        except Exception as error:  # of this thread: whoever waits is told
            try:
                if isinstance(error, CheckpointError):  # all ranks know; of lost ones nobody does
                    self._discard(job)
            finally:
                mark.reach(error)
        else:
            self._whole.append(job.kept.header.age)
            self._prune()
            mark.reach()
        finally:
            job.done.set()

    def _tried(self, job: _Job) -> Exception | None:
        """Write a save; gives the error, if any."""
        header = job.kept.header

        def check() -> None:
            if self._stopped or header.age < self._least:
                raise CheckpointError("persist", f"step {header.step}: the process goes")

        try:
            job.is_written = self._write(job.kept, check)
        except Exception as error:  # of this thread: all ranks are told
            return error
        return None

    def _write(self, kept: PersistedSave, check: Callable[[], None]) -> bool:
        """Write the file of this node, unless it is there; tells whether it was not."""
        wait(lambda: self._writing.acquire(blocking=False), abort=check, polite=True)
        try:
            return node_file.write(self._persist.folder, self._about(kept), kept, check)
        finally:
            self._writing.release()

    def _about(self, kept: PersistedSave) -> About:
        """Give the header of this node's file."""
        order = sorted(self._nodes.ranks)
        return kept.about(self._persist.name, order.index(self._nodes.here), len(order))

    def _discard(self, job: _Job) -> None:
        """Remove the file of a save that another node has not written: it is of no use."""
        with self._writing:
            # What is there when the process goes is what `leave` has found, and counts on.
            if self._least == (0, 0) and self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
                about = self._about(job.kept)
                saved_files.discard(self._persist.folder, about, is_written=job.is_written)

    def _prune(self) -> None:
        """Remove saves that are older than the whole ones that are kept."""
        sound = [age for age in self._whole if age not in self._damaged]
        self._whole = sound[-self._persist.keep :]
        if len(self._whole) < self._persist.keep:
            return
        if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
            # On a disk of its own a node may have had another number before.
            is_all = self._nodes.rank == 0 or not self._is_shared
            node = None if is_all else sorted(self._nodes.ranks).index(self._nodes.here)
            saved_files.prune(self._persist.folder, self._whole[0], self._others, node=node)
