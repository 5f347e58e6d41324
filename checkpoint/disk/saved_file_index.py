"""The volumes of a name, as the ranks of a job find and read them.

Nodes see the same files, or each its own, or some of both: what each sees is
compared by a digest, and told only where it differs.  A rank reads for itself
what its node sees; else a rank of a node that sees it reads and sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.disk.hdf5_reader import Archive
from closeranks.checkpoint.disk.hdf5_writer import About
from closeranks.checkpoint.disk.saved_files import File, Volume
from closeranks.checkpoint.erasure.gf256 import Bytes
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore.fetch import Want, exchange
from closeranks.checkpoint.restore.recovery_search import Nodes
from closeranks.checkpoint.restore.restore_sources import Unreadable, Wanted
from closeranks.checkpoint.state import rank_image
from closeranks.checkpoint.state.device_staging import Filling
from closeranks.checkpoint.state.rank_image import Description
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import Talk

#: Files that a rank has open at once.
_OPEN: Final = 16
#: What is asked for of a rank.
_DATA, _TEXT = 0, 1
_NEUTRAL: Final = np.iinfo(np.int64).max


class Library:
    """What is on disk of a name.

    Parameters
    ----------
    talk : Talk
        Between the ranks.
    nodes : Nodes
        Where they are.
    folder : Path
        Of the checkpoints of the name.

    Attributes
    ----------
    talk, nodes, folder
        As given.
    """

    def __init__(self, talk: Talk, nodes: Nodes, folder: Path) -> None:
        self.talk, self.nodes, self.folder = talk, nodes, folder
        #: Which nodes see a file, where not all do.
        self._seen: dict[str, tuple[int, ...]] = {}

    def scan(self) -> list[Volume]:
        """Find what is there.

        Collective.

        Returns
        -------
        list of Volume
            The newest first; the same on all ranks.

        Raises
        ------
        CheckpointError
            On all ranks, if a node cannot look into the folder.
        """
        first = self._is_first()
        names = self.talk.taken("restore", lambda: saved_files.names(self.folder) if first else [])
        digest = xxhash.xxh3_64_intdigest("\n".join(names).encode()) >> 1
        pair = [digest, ~digest] if first else [_NEUTRAL, _NEUTRAL]
        least = self.talk.least(pair)
        self._seen = {}
        if least[0] != ~least[1]:  # nodes see different files
            for rank, lot in enumerate(self.talk.everything(names)):
                for name in lot:
                    here = self._seen.get(name, ())
                    self._seen[name] = (*here, self.nodes.nodes[rank])
            names = sorted(self._seen)
        mine = [saved_files.look(self.folder, name) for at, name in enumerate(names)
                if first and self._turn(name, at) == self.nodes.here]  # fmt: skip
        own = [[name, nbytes, about.encode().decode() if about else None, problem]
               for name, nbytes, about, problem in mine]  # fmt: skip
        return saved_files.bound(
            File(name, nbytes, About.decode(text.encode()) if text else None, problem)
            for lot in self.talk.everything(own) for name, nbytes, text, problem in lot
        )  # fmt: skip

    def damaged(self, volume: Volume) -> list[str]:
        """Look at all check sums of a volume.

        Collective; each rank reads its part.

        Parameters
        ----------
        volume : Volume
            Which.

        Returns
        -------
        list of str
            What is damaged, of all ranks.
        """
        names = sorted(volume.abouts)
        mine = [name for at, name in enumerate(names) if self.server(name, at) == self.nodes.rank]
        found = [what for name in mine for what in saved_files.damaged(self.folder, name)]
        return [what for lot in self.talk.everything(found) for what in lot]

    def sees(self, name: str) -> bool:
        """Tell whether this rank's node sees a file.  Local."""
        return self.nodes.here in self._seen.get(name, (self.nodes.here,))

    def is_shared(self) -> bool:
        """Tell whether all nodes see all files, as far as was looked.  Local."""
        return not self._seen

    def server(self, name: str, number: int) -> int:
        """Give a rank that reads a file for others; ranks take turns.  Local."""
        node = self._turn(name, number)
        return self.nodes.turn(node, number // len(self.nodes.ranks))

    def _turn(self, name: str, number: int) -> int:
        """Give a node that sees a file; nodes take turns."""
        seen = self._seen.get(name) or tuple(self.nodes.ranks)
        return seen[number % len(seen)]

    def _is_first(self) -> bool:
        """Whether this rank looks for those of its node."""
        return self.nodes.turn(self.nodes.here, 0) == self.nodes.rank


class Files:
    """A save in files; a `closeranks.checkpoint.restore.restore_sources.Source`.

    Parameters
    ----------
    volume : Volume
        The save, without objection.
    library : Library
        It is from.
    """

    def __init__(self, volume: Volume, library: Library) -> None:
        self._volume, self._library, self._talk = volume, library, library.talk
        self._file = {rank: (name, about) for name, about in volume.abouts.items()
                      for rank, _, _ in about.ranks}  # fmt: skip
        self._number = {name: at for at, name in enumerate(sorted(volume.abouts))}
        self._open: dict[str, Archive] = {}
        self._problem: CheckpointError | None = None

    @property
    def world(self) -> int:
        """Ranks that saved."""
        return self._volume.world

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks of its group.  Local."""
        return self._file[rank][1].members

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give what old ranks have kept.  Collective."""
        texts = {rank: np.empty(self._size(rank)[0], np.uint8) for rank in ranks}
        self._get([Want(Share(_TEXT, 0, rank), 0, text) for rank, text in texts.items()])
        return self._talk.taken("restore", lambda: {
            rank: rank_image.parse(text.tobytes(), self._size(rank)[1])
            for rank, text in texts.items()
        })  # fmt: skip

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""
        self._get([Want(Share(_DATA, 0, rank), at, target) for rank, at, target in wants])

    def close(self) -> None:
        """Let go of the files.  Local."""
        while self._open:
            self._open.popitem()[1].close()

    def _get(self, wants: Sequence[Want]) -> None:
        """Get bytes: what this node sees from there, all else from who sees it.

        What a rank has is one share here, and its description another one.
        """
        far: list[Want] = []
        self._talk.taken("restore", lambda: self._get_near(wants, far))
        if not self._library.is_shared():
            exchange(far, self._talk, self._server, self._served)
        problem, self._problem = self._problem, None
        try:
            self._talk.together("restore", problem)
        except CheckpointError as error:
            raise Unreadable("restore", error.problem, error.remedy) from error

    def _get_near(self, wants: Sequence[Want], far: list[Want]) -> None:
        """Get what this node sees, file by file; note the rest."""
        filling = Filling()
        for want in sorted(wants, key=lambda want: self._file[want.share.member][0]):
            if self._library.sees(self._file[want.share.member][0]):
                filling.fill(want.target, partial(self._read_on, want))
            else:
                far.append(want)
        filling.end()

    def _read_on(self, want: Want, at: int, out: Bytes) -> None:
        """Read bytes of what is wanted, from a place among them on."""
        self._read(want.share, want.at + at, out)

    def _read(self, share: Share, at: int, target: Bytes) -> None:
        """Read bytes; after the first problem no more, for all is in vain."""
        if self._problem is not None:
            return
        try:
            archive = self._archive(self._file[share.member][0])
            if share.group == _DATA:
                archive.read(share.member, at, target)
            else:
                text = np.frombuffer(archive.text(share.member), np.uint8)
                np.copyto(target, text[at : at + target.size])
        except CheckpointError as error:
            self._problem = error

    def _served(self, share: Share, at: int, nbytes: int) -> Bytes:
        """Read bytes for another rank."""
        target = np.zeros(nbytes, np.uint8)
        self._read(share, at, target)
        return target

    def _server(self, share: Share) -> int:
        """Give the rank that reads a file for others."""
        name, _ = self._file[share.member]
        return self._library.server(name, self._number[name])

    def _archive(self, name: str) -> Archive:
        """Open a file; of many the one that has been open longest is closed."""
        if name not in self._open:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = Archive(self._library.folder / name)
            if self._open[name].about != self._volume.abouts[name]:
                raise CheckpointError("restore", f"{name}: another file than before")
        return self._open[name]

    def _size(self, rank: int) -> tuple[int, int]:
        """Give the bytes of the description and of the data of a rank."""
        return next((head, body) for one, head, body in self._file[rank][1].ranks if one == rank)
