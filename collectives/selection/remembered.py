"""Findings of trials, remembered from job to job: one file for each origin.

An origin is all that decides how long a call takes and that a process can
know: releases, processor, placement, ranks per core, transports.  Its digest
names the file, so that jobs of different origins never read each other's.

A file need not be trusted.  What is broken, too old or another user's counts
as not there; `closeranks doctor` says why.  Nothing here raises for a file or
waits for one, since a job does without.  Nothing here takes a lock either: a
file is replaced as a whole, and of two jobs that end together the last one
counts.  Nothing here communicates with other ranks.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from heapq import nlargest
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from closeranks.collectives.builders.catalogue import ALGORITHMS, algorithms
from closeranks.collectives.selection.call_options import NATIVE
from closeranks.collectives.selection.findings import CallKind, TrialFinding, TrialFindings
from closeranks.collectives.selection.tuning_table import Origin
from closeranks.comms.jit.code_cache import user_caches
from closeranks.comms.topology.topology_json import Members, parse_json
from closeranks.errors import Error, UsageError

FORMAT: Final = "closeranks findings"
VERSION: Final = 1
_FILE: Final = "file of findings"
#: Larger files are not read, nor written; nor are files of more rows, values or shapes.
MOST_BYTES, MOST_ROWS, _MOST_VALUES, _MOST_SHAPES = 1 << 20, 2048, 1 << 16, 256
#: Of more files the oldest go.
MOST_FILES: Final = 64
#: What is older counts no more, and files of that age go.
KEPT_S: Final = 30 * 86400
#: What a clock of another node may be ahead.
_AHEAD_S: Final = 86400
#: A temporary file of that age was left by a job that was killed.
_LEFT_S: Final = 3600
#: At most so many files are removed at a time, of so many entries that are looked at.
_MOST_REMOVED, _MOST_ENTRIES = 256, 1 << 14
#: No time of a call is longer, in seconds.
_MOST_S: Final = 1e6
#: How long a job waits for a disk that does not answer, in seconds.
PATIENCE_S: Final = 1.0
#: Of a setting so many characters stand in a file, for people.
_SHOWN: Final = 200

_NAME: Final = re.compile(r"findings-[0-9a-f]{16}[.]json", re.ASCII)
_PART: Final = re.compile(_NAME.pattern + r"[.][0-9a-f]{16}", re.ASCII)
_SHAPE: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_ROW: Final = (
    "operation",
    "size_class",
    "commutative",
    "algorithm",
    "seconds",
    "native_s",
    "found",
)

#: Environment variables that choose or tune what carries messages; PMIx and PRRTE carry none.
_TRANSPORTS: Final = ("OMPI_MCA_", "UCX_", "MPIR_CVAR_", "FI_")
#: Those that a launcher sets and that differ from job to job, or say no more than the shape.
_LAUNCHERS: Final = re.compile(
    r"OMPI_MCA_(PREFIXES|cpu_type|initial_wdir|num_procs|ess.*|orte_.*|pmix.*|plm.*|prte_.*)"
)
#: Settings of ours that decide how fast a plan is.
_OURS: Final = ("CLOSERANKS_INTERPRETER", "CLOSERANKS_LAB", "CLOSERANKS_NIC", "NUMBA_DISABLE_JIT")

_T = TypeVar("_T")


class JobOrigin(NamedTuple):
    """All that findings depend on beside the shape of their own ranks.

    Attributes
    ----------
    release : str
        Version of this package.
    machine : Origin
        Library, processor, and the shape of the first communicator.
    build : str
        Digest of all that the library says of its version.
    ranks_per_core : float
        1 where each rank has a core.
    settings : tuple of (str, str)
        Environment variables that choose transports, by name.
    """

    release: str
    machine: Origin
    build: str
    ranks_per_core: float
    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Name of the file."""
        said = repr(tuple(self)).encode()
        return f"findings-{blake2b(said, digest_size=8).hexdigest()}.json"

    def table(self) -> dict[str, Any]:
        """Write it for people."""
        settings = {name[:_SHOWN]: value[:_SHOWN] for name, value in self.settings[:_MOST_SHAPES]}
        machine = self.machine._asdict()
        return {
            "closeranks": self.release, **machine, "build": self.build,
            "ranks_per_core": self.ranks_per_core, "settings": settings,
        }  # fmt: skip


def transport_settings(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pick the variables on which the time of a call depends.  Local.

    Parameters
    ----------
    environment : mapping of str to str
        Of the job.

    Returns
    -------
    tuple of (str, str)
        By name; without what is new in every job.
    """
    return tuple(
        (name, value)
        for name, value in sorted(environment.items())
        if name in _OURS or (name.startswith(_TRANSPORTS) and not _LAUNCHERS.fullmatch(name))
    )


class _Ignored(Exception):
    """Why a file or folder counts as not there; never leaves this module."""


class _Dated(NamedTuple):
    """A finding, and when it was found, in seconds since 1970."""

    finding: TrialFinding
    found_s: int


#: By shape and kind.
_Rows = dict[str, dict[CallKind, _Dated]]


class FindingsFile:
    """The file of one origin; local.

    Parameters
    ----------
    origin : JobOrigin
        Of this job.
    """

    def __init__(self, origin: JobOrigin) -> None:
        self._origin = origin

    def read(self) -> dict[str, TrialFindings]:
        """Give what earlier jobs have found, by `shape`; empty where that is of no use."""
        return _in_time(self._findings) or {}

    def write(self, findings: Mapping[str, TrialFindings]) -> None:
        """Add what this job has found to what the file holds now.

        Where the disk is slow the job goes on; the file is then written later, or
        stays as it was.

        Parameters
        ----------
        findings : mapping of str to TrialFindings
            By shape; what was only remembered is not written again.
        """
        new = _new_rows(findings, int(time.time()))
        if new:
            _in_time(lambda: self._add(new))

    def _findings(self) -> dict[str, TrialFindings]:
        found: dict[str, TrialFindings] = {}
        for shape, rows in self._rows().items():
            by_kind = {kind: row.finding._replace(is_remembered=True) for kind, row in rows.items()}
            found[shape] = TrialFindings(by_kind)
        return found

    def _rows(self) -> _Rows:
        """Give the rows that the file holds; none where it is ignored."""
        try:
            with _folder() as folder:
                return _parsed(_text(folder, self._origin.name), time.time())
        except (_Ignored, OSError):
            return {}

    def _add(self, new: _Rows) -> None:
        rows = self._rows()
        for shape, found in new.items():
            rows[shape] = rows.get(shape, {}) | found
        text = _written(self._origin, rows, int(time.time())).encode()
        if len(text) > MOST_BYTES:
            return
        with _folder(makes=True) as folder:
            _replace(folder, self._origin.name, text)
            _clean(folder, self._origin.name, time.time())


class FolderReport(NamedTuple):
    """What the folder of all findings holds.

    Attributes
    ----------
    folder : Path or None
        None for a user without one.
    good : int
        How many files can be read.
    ignored : dict of str to str
        Other files, and why each is ignored.
    problem : str or None
        Why nothing is remembered at all.
    """

    folder: Path | None
    good: int
    ignored: dict[str, str]
    problem: str | None = None


def look_at_folder() -> FolderReport:
    """Read all files of findings, of whatever origin.  Local; changes nothing."""
    place = _place()
    ignored: dict[str, str] = {}
    good = 0
    try:
        with _folder() as folder:
            names = sorted(entry.name for entry in _entries(folder) if _NAME.fullmatch(entry.name))
            for name in names:
                try:
                    _parsed(_text(folder, name), time.time())
                    good += 1
                except (_Ignored, OSError) as error:
                    ignored[name] = _reason(error)
    except FileNotFoundError:
        return FolderReport(place, 0, {})
    except (_Ignored, OSError) as error:
        return FolderReport(place, 0, {}, _reason(error))
    return FolderReport(place, good, ignored)


def _reason(error: Exception) -> str:
    """Say in few words what is wrong."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _in_time(work: Callable[[], _T]) -> _T | None:
    """Do something with files; None if it fails, or takes longer than a job waits.

    A system call waits for a file system that does not answer, and nothing but the
    end of the process ends it.  So another thread makes it.
    """
    done: list[_T] = []

    def run() -> None:
        with suppress(Exception):  # a job needs no file
            done.append(work())

    thread = threading.Thread(target=run, name="closeranks findings", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return None
    thread.join(PATIENCE_S)
    return done[0] if done else None


def _place() -> Path | None:
    """Name the folder, which compiled code may share."""
    try:
        return user_caches() / "closeranks"
    except RuntimeError:  # a user without a home
        return None


@contextmanager
def _folder(*, makes: bool = False) -> Iterator[int]:
    """Open the folder if nobody else can have a hand in it."""
    place = _place()
    if place is None:
        raise _Ignored("this user has no home")
    if makes:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise _Ignored(f"the folder is user {found.st_uid}'s")
        if found.st_mode & 0o077:
            raise _Ignored(f"others may enter the folder (mode {stat.S_IMODE(found.st_mode):04o})")
        yield folder
    finally:
        os.close(folder)


def _text(folder: int, name: str) -> str:
    """Read a plain file of this user; a pipe or a device might never end."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _Ignored("a link") from None
        raise error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _Ignored("no plain file")
        if found.st_uid != os.geteuid():
            raise _Ignored(f"user {found.st_uid}'s")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MOST_BYTES:
        raise _Ignored(f"larger than {MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _Ignored("no UTF-8") from None


def _parsed(text: str, now_s: float) -> _Rows:
    """Read the rows that count, of a text that anybody may have written."""
    try:
        document = parse_json(text, _FILE, max_bytes=MOST_BYTES, max_values=_MOST_VALUES)
        return _read(document, now_s)
    except Error as error:
        raise _Ignored(getattr(error, "problem", None) or str(error)) from None


def _read(document: object, now_s: float) -> _Rows:
    body = Members(document, "the document", _FILE)
    body.keys("format", "version", "written", "origin", "findings")
    if body.text("format", 64) != FORMAT:
        raise _Ignored(f"its format is not {FORMAT!r}")
    version = body.integer("version", 1, 1 << 30)
    if version > VERSION:
        raise _Ignored(f"version {version}, this closeranks reads up to {VERSION}")
    if not _is_young(body, "written", now_s):
        raise _Ignored(f"older than {KEPT_S // 86400} days")
    shapes = body.get("findings", dict)
    if len(shapes) > _MOST_SHAPES:
        raise _Ignored(f"{len(shapes)} shapes")
    rows: _Rows = {}
    for shape, items in shapes.items():
        if not _SHAPE.fullmatch(shape):
            raise _Ignored(f"no shape {shape[:40]!r}")
        if not isinstance(items, list):
            raise _Ignored("findings that are no list")
        rows[shape] = dict(_read_row(item) for item in items if _is_kept(item, now_s))
    return rows


def _is_kept(item: object, now_s: float) -> bool:
    """Whether a row is young enough."""
    return _is_young(Members(item, "a row", _FILE), "found", now_s)


def _is_young(members: Members, key: str, now_s: float) -> bool:
    """Whether something was written in the last days; refuses a time to come."""
    written_s = members.integer(key, 0, 1 << 53)
    if written_s > now_s + _AHEAD_S:
        raise _Ignored("written in the future, by this clock")
    return now_s - written_s <= KEPT_S


def _read_row(item: object) -> tuple[CallKind, _Dated]:
    row = Members(item, "a row", _FILE)
    row.keys(*_ROW)
    kind = CallKind(
        row.text("operation", 64), row.integer("size_class", 0, 64), row.get("commutative", bool)
    )
    seconds, native_s = row.number("seconds"), row.number("native_s")
    finding = TrialFinding(
        row.text("algorithm", 64),
        math.nan if seconds is None else float(seconds),
        math.inf if native_s is None else float(native_s),
    )
    problem = _objection(kind, finding)
    if problem is None and native_s == math.inf:  # as 1e999 is read
        problem = "native_s is infinite"
    if problem:
        raise UsageError(_FILE, problem, "remove it")
    return kind, _Dated(finding, row.integer("found", 0, 1 << 53))


def _objection(kind: CallKind, finding: TrialFinding) -> str | None:
    """Say why a finding makes no sense, or None."""
    if kind.operation not in ALGORITHMS:
        return f"no operation {kind.operation!r}"
    if finding.algorithm != NATIVE and finding.algorithm not in algorithms(kind.operation):
        return f"no algorithm {finding.algorithm!r} of {kind.operation}"
    if not 0 < finding.seconds <= _MOST_S:
        return f"a call of {finding.seconds!r} s"
    if not (0 < finding.native_s <= _MOST_S or finding.native_s == math.inf):
        return f"a call of the library of {finding.native_s!r} s"
    return None


def _new_rows(findings: Mapping[str, TrialFindings], now_s: int) -> _Rows:
    """Give what was found now, in as many rows as a file holds."""
    return {
        shape: rows
        for shape, found in findings.items()
        if (
            rows := {
                kind: _Dated(finding, now_s)
                for kind, finding in tuple(found.by_kind.items())
                if not finding.is_remembered and _objection(kind, finding) is None
            }
        )
    }


def _written(origin: JobOrigin, rows: _Rows, now_s: int) -> str:
    """Write as many rows as a file holds, the newest ones."""
    every = [
        (row.found_s, shape, kind) for shape, kinds in rows.items() for kind, row in kinds.items()
    ]
    said: dict[str, list[dict[str, Any]]] = {}
    for found_s, shape, kind in nlargest(MOST_ROWS, every):
        if shape not in said and len(said) == _MOST_SHAPES:
            continue
        finding = rows[shape][kind].finding
        native_s = None if finding.native_s == math.inf else float(finding.native_s)
        values = (*kind, finding.algorithm, float(finding.seconds), native_s, found_s)
        said.setdefault(shape, []).append(dict(zip(_ROW, values, strict=True)))
    document = {
        "format": FORMAT,
        "version": VERSION,
        "written": now_s,
        "origin": origin.table(),
        "findings": said,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _replace(folder: int, name: str, text: bytes) -> None:
    """Put a file in the place of another one; a reader never sees half of it."""
    part = f"{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def _entries(folder: int) -> Iterator[os.DirEntry[str]]:
    """Give the entries of a folder, of a large one the first."""
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number == _MOST_ENTRIES:
                return
            yield entry


def _clean(folder: int, own: str, now_s: float) -> None:
    """Remove what is too old or too much, and what killed jobs have left."""
    files: list[tuple[float, str]] = []
    gone: list[str] = []
    for entry in _entries(folder):
        is_part = bool(_PART.fullmatch(entry.name))
        if entry.name == own or not (is_part or _NAME.fullmatch(entry.name)):
            continue  # others are compiled code, or of the user
        if entry.is_dir(follow_symlinks=False):
            continue
        written_s = entry.stat(follow_symlinks=False).st_mtime
        if written_s < now_s - (_LEFT_S if is_part else KEPT_S):
            gone.append(entry.name)
        elif not is_part:
            files.append((written_s, entry.name))
    gone += [name for _, name in sorted(files, reverse=True)[MOST_FILES - 1 :]]
    for name in gone[:_MOST_REMOVED]:
        with suppress(OSError):  # another job was faster
            os.unlink(name, dir_fd=folder)
