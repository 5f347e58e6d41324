"""Each node's own /tmp, and the little of the real one that shows through.

A node starts with an empty /tmp.  Some folders of the machine's /tmp are shown
nevertheless, as a shared file system would show them.  They hold the working
directory, this Python, this package or a path named on the command line.
Files directly in /tmp that the command line names are copied in, and copied
back when the job ends if some node wrote them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import closeranks
from closeranks.jobs.launch import linux_namespaces

TMP = Path("/tmp")
OWN = TMP / ".closeranks"  # the lab's own files of a node


def shared_folders(words: Sequence[str]) -> list[str]:
    """List the folders below /tmp that every node must see.

    Parameters
    ----------
    words : sequence of str
        The program and its arguments.

    Returns
    -------
    list of str
        Existing folders, none inside another, sorted.
    """
    places = [Path.cwd(), Path(sys.prefix), Path(sys.base_prefix)]
    places += [Path(place).resolve() for place in sys.path if place]
    places += _package_folders(Path(closeranks.__file__).parent)
    for path in named_paths(words):
        places += [path if path.is_dir() else path.parent, path.resolve().parent]
    below = {place for place in places if TMP in place.parents and place.is_dir()}
    return sorted(str(place) for place in below if not below.intersection(place.parents))


def _package_folders(package: Path) -> list[Path]:
    """List where the package lies, also in a checkout with rooms that are links.

    An editable install finds a checkout through an import hook: no entry of
    `sys.path` names it.
    """
    # In a checkout the rooms lie beside the package.
    rooms = [path.resolve() for path in package.iterdir() if path.is_symlink()]
    return [package, package.parent, package.resolve().parent, *rooms]


def named_paths(words: Iterable[str]) -> list[Path]:
    """List what the words of a command line may name as files.

    Parameters
    ----------
    words : iterable of str
        Program and arguments, also ``--option=VALUE``.

    Returns
    -------
    list of Path
        Absolute paths; they need not exist.
    """
    parts = [part for word in words for part in {word, word.partition("=")[2]} if part]
    return [Path(os.path.abspath(part)) for part in parts if not part.startswith("-")]  # noqa: PTH100


def loose_files(words: Iterable[str]) -> list[str]:
    """List the names directly in /tmp that a command line mentions.

    Parameters
    ----------
    words : iterable of str
        Program and arguments.

    Returns
    -------
    list of str
        File names without a folder.
    """
    return sorted({path.name for path in named_paths(words) if path.parent == TMP})


def replace_tmp(folders: Sequence[str], files: Sequence[str]) -> None:
    """Give this mount namespace a /tmp of its own.

    Parameters
    ----------
    folders : sequence of str
        Folders below /tmp to show again (see `shared_folders`).
    files : sequence of str
        Names of files in /tmp to copy, if they exist.
    """
    handles = {folder: os.open(folder, os.O_PATH) for folder in folders}
    contents = {name: (TMP / name).read_bytes() for name in files if (TMP / name).is_file()}
    stats = {name: (TMP / name).stat() for name in contents}
    linux_namespaces.mount_fresh("tmpfs", str(TMP), options="mode=1777")
    for folder, handle in handles.items():
        Path(folder).mkdir(parents=True)
        linux_namespaces.bind(f"/proc/self/fd/{handle}", folder)
        os.close(handle)
    for name, content in contents.items():
        (TMP / name).write_bytes(content)
        (TMP / name).chmod(stats[name].st_mode & 0o777)
        os.utime(TMP / name, ns=(stats[name].st_atime_ns, stats[name].st_mtime_ns))
    OWN.mkdir(mode=0o755)


def times(files: Sequence[str], folder: int) -> dict[str, int | None]:
    """Say when files were written last, in nanoseconds; None where there is none.

    Parameters
    ----------
    files : sequence of str
        Names of files.
    folder : int
        An open folder handle.

    Returns
    -------
    dict
        Name -> time.
    """
    found: dict[str, int | None] = {}
    for name in files:
        try:
            found[name] = os.stat(name, dir_fd=folder).st_mtime_ns
        except FileNotFoundError:
            found[name] = None
    return found


def hand_back(before: Mapping[str, int | None], roots: Sequence[str], outside: int) -> list[str]:
    """Copy files that some node wrote into its /tmp to the real /tmp.

    Parameters
    ----------
    before : mapping
        Name -> when it was written last, when the lab began, see `times`.
    roots : sequence of str
        The nodes' root folders, first choice first.
    outside : int
        An open folder handle of the real /tmp.

    Returns
    -------
    list of str
        Names of files that somebody else has written meanwhile: those stay, and
        the lab's have ".lab" after their names.

    Raises
    ------
    OSError
        If the real /tmp does not take one of them.
    """
    beside: list[str] = []
    now = times(list(before), outside)
    for name, was in before.items():
        for root in roots:
            path = Path(f"{root}{TMP}/{name}")
            if path.is_file() and path.stat().st_mtime_ns not in (was, now[name]):
                if now[name] != was:
                    beside.append(name)
                _copy(path, name if now[name] == was else f"{name}.lab", outside)
                break
    return beside


def _copy(path: Path, name: str, folder: int) -> None:
    """Copy a file into an open folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    handle = os.open(name, flags, 0o644, dir_fd=folder)
    with path.open("rb") as source, os.fdopen(handle, "wb") as target:
        shutil.copyfileobj(source, target)
