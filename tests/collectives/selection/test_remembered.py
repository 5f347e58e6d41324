"""Files of findings: what is read, what is ignored and said, and what a write leaves."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from closeranks.collectives.selection import remembered
from closeranks.collectives.selection.findings import CallKind, TrialFinding, TrialFindings
from closeranks.collectives.selection.remembered import (
    FORMAT,
    KEPT_S,
    MOST_BYTES,
    MOST_FILES,
    MOST_ROWS,
    VERSION,
    FindingsFile,
    JobOrigin,
    look_at_folder,
    transport_settings,
)
from closeranks.collectives.selection.tuning_table import Origin
from closeranks.comms.settings import switch
from closeranks.jobs import doctor

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
SHAPE, OTHER = "0123456789abcdef", "fedcba9876543210"
MACHINE = Origin("Open MPI v5", "abacus", SHAPE, 4, 2)
ORIGIN = JobOrigin("1.0", MACHINE, "00", 1.0, (("OMPI_MCA_btl", "^ofi"),))
KIND, RING = CallKind("allreduce", 13), TrialFinding("ring", 2e-5, 3e-5)
SMALL, LIBRARY = CallKind("bcast", 4, False), TrialFinding("native", 1e-6)
FILE = FindingsFile(ORIGIN)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def found(kinds: dict[CallKind, TrialFinding], shape: str = SHAPE) -> dict[str, TrialFindings]:
    return {shape: TrialFindings(dict(kinds))}


def known(kinds: dict[CallKind, TrialFinding], shape: str = SHAPE) -> dict[str, TrialFindings]:
    return found({kind: one._replace(is_remembered=True) for kind, one in kinds.items()}, shape)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of findings of a user who has nothing yet; a read that waits fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "1")
    monkeypatch.setattr(remembered, "PATIENCE_S", 30.0)
    return tmp_path / "caches" / "closeranks"


@pytest.fixture
def path(place: Path) -> Path:
    """A good file of one finding."""
    FILE.write(found({KIND: RING}))
    return place / ORIGIN.name


def said(path: Path) -> str:
    """What `closeranks doctor` says of a file."""
    report = look_at_folder()
    assert report.problem is None
    return report.ignored[path.name]


def aged(path: Path, days: float) -> None:
    then = time.time() - 86400 * days
    os.utime(path, (then, then), follow_symlinks=False)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["findings"][SHAPE]
    return rows


def parts(place: Path) -> list[str]:
    return sorted(one.name for one in place.iterdir() if not one.name.endswith(".json"))


def test_tests_neither_read_nor_write_what_the_user_has() -> None:
    assert not switch("REMEMBER", unset=True)
    environment = {k: v for k, v in os.environ.items() if k != "CLOSERANKS_REMEMBER"}
    code = "from closeranks.comms.settings import switch; print(switch('REMEMBER', unset=True))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout.strip() == b"True", "on where nothing is set"


def test_what_is_written_is_read_and_known_as_remembered(place: Path) -> None:
    assert FILE.read() == {}
    assert not place.exists(), "reading makes nothing"
    mine = found({KIND: RING, SMALL: LIBRARY}) | found({KIND: LIBRARY}, OTHER)
    FILE.write(mine)
    both = known({KIND: RING, SMALL: LIBRARY}) | known({KIND: LIBRARY}, OTHER)
    assert FILE.read() == both
    assert FILE.read()[SHAPE].digest() == both[SHAPE].digest()
    assert place.stat().st_mode & 0o777 == 0o700
    (only,) = place.iterdir()
    assert only.stat().st_mode & 0o777 == 0o600
    written = json.loads(only.read_text())
    assert written["origin"]["processor"] == "abacus", "for people"
    assert written["origin"]["settings"] == {"OMPI_MCA_btl": "^ofi"}
    assert (written["format"], written["version"]) == (FORMAT, VERSION)
    assert abs(written["written"] - time.time()) < 60


def test_each_origin_has_a_file_of_its_own(path: Path) -> None:
    others = (
        ORIGIN._replace(release="1.1"),
        ORIGIN._replace(build="01"),
        ORIGIN._replace(ranks_per_core=2.0),
        ORIGIN._replace(settings=()),
        ORIGIN._replace(machine=MACHINE._replace(library="MPICH")),
        ORIGIN._replace(machine=MACHINE._replace(processor="slide rule")),
        ORIGIN._replace(machine=MACHINE._replace(shape=OTHER)),
    )
    assert len({ORIGIN.name, *(one.name for one in others)}) == len(others) + 1
    for other in others:
        assert FindingsFile(other).read() == {}
    assert FindingsFile(JobOrigin(*ORIGIN)).read() == known({KIND: RING})


def test_settings_that_choose_transports_tell_jobs_apart(place: Path) -> None:
    chosen = {
        "OMPI_MCA_btl": "tcp", "UCX_TLS": "rc", "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "\udcff", "CLOSERANKS_LAB": "{}",
    }  # fmt: skip
    new = {
        "OMPI_MCA_initial_wdir": "/x", "OMPI_MCA_num_procs": "2", "OMPI_MCA_ess_base_vpid": "1",
        "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_FD": "9", "HOME": "/x",
    }  # fmt: skip
    assert transport_settings(chosen | new) == tuple(sorted(chosen.items()))
    file = FindingsFile(ORIGIN._replace(settings=transport_settings(chosen)))
    file.write(found({KIND: RING}))
    assert file.read() == known({KIND: RING}), "a name or value may be no UTF-8"
    assert look_at_folder()[1:] == (1, {}, None)


def changed(*keys: Any, to: Any) -> Callable[[str], str]:
    """Change one member of a file."""

    def change(text: str) -> str:
        document: Any = json.loads(text)
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to
        return json.dumps(document)

    return change


def in_row(key: str, to: Any) -> Callable[[str], str]:
    return changed("findings", SHAPE, 0, key, to=to)


NOW_S = int(time.time())
#: What stands in a file, or is done to its text; and why it is ignored.
BROKEN: dict[str, tuple[Callable[[str], str] | bytes, str]] = {
    "empty": (b"", "no JSON"),
    "truncated": (lambda text: text[: len(text) // 2], "no JSON"),
    "garbage": (bytes(range(256)) * 8, "no UTF-8"),
    "a list": (b"[]", "the document"),
    "deep": (b"[" * 60_000, "nested too deep|values"),
    "many values": (b"[" + b"0," * 70_000 + b"0]", "values"),
    "twice": (lambda text: text.replace('"version": 1', '"version": 1, "version": 1'), "twice"),
    "format": (changed("format", to="else"), "format"),
    "newer": (changed("version", to=VERSION + 1), f"version {VERSION + 1}, .* up to {VERSION}"),
    "no version": (changed("version", to=None), "version"),
    "old": (changed("written", to=NOW_S - 31 * 86400), "older than 30 days"),
    "future": (changed("written", to=NOW_S + 3 * 86400), "future"),
    "row of the future": (in_row("found", NOW_S + 3 * 86400), "future"),
    "unknown key": (changed("more", to=1), "unknown key 'more'"),
    "no shape": (changed("findings", to={"../x": []}), "no shape '../x'"),
    "many shapes": (changed("findings", to={f"{n:016x}": [] for n in range(300)}), "300 shapes"),
    "no list": (changed("findings", SHAPE, to={}), "no list"),
    "no row": (changed("findings", SHAPE, to=[3]), "a row is '3'"),
    "NaN": (lambda text: text.replace("2e-05", "NaN"), "NaN"),
    "Infinity": (lambda text: text.replace("2e-05", "Infinity"), "Infinity"),
    "infinite": (lambda text: text.replace("2e-05", "1e999"), "a call of inf s"),
    "negative": (in_row("seconds", -1e-5), "a call of -1e-05 s"),
    "zero": (in_row("seconds", 0), "a call of 0.0 s"),
    "no seconds": (in_row("seconds", None), "a call of nan s"),
    "text": (in_row("seconds", "1"), "seconds of a row"),
    "the library's negative": (in_row("native_s", -1e-5), "the library of -1e-05 s"),
    "the library's infinite": (lambda text: text.replace("3e-05", "1e999"), "native_s is infinite"),
    "operation": (in_row("operation", "allprice"), "no operation 'allprice'"),
    "algorithm": (in_row("algorithm", "rung"), "no algorithm 'rung' of allreduce"),
    "another's algorithm": (in_row("operation", "barrier"), "no algorithm 'ring' of barrier"),
    "devices": (in_row("algorithm", "nccl"), "no algorithm 'nccl'"),
    "size": (in_row("size_class", 65), "size_class of a row is 65"),
    "a size that is true": (in_row("size_class", True), "size_class"),
    "order": (in_row("commutative", 1), "commutative"),
    "more in a row": (in_row("more", 1), "unknown key 'more'"),
    "1 MiB": (lambda text: text + " " * MOST_BYTES, f"larger than {MOST_BYTES} bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_ignored_named_and_replaced(path: Path, case: str) -> None:
    breaks, reason = BROKEN[case]
    content = breaks if isinstance(breaks, bytes) else breaks(path.read_text()).encode()
    assert content != path.read_bytes(), "nothing is broken"
    path.write_bytes(content)
    assert FILE.read() == {}
    with pytest.raises(remembered._Ignored, match=reason):
        look_into(path)
    told = doctor._remembered()
    assert told.state == "warn"
    assert path.name in told.found
    assert said(path) in told.found
    assert "remove" in told.remedy
    FILE.write(found({SMALL: LIBRARY}))
    assert FILE.read() == known({SMALL: LIBRARY})
    assert doctor._remembered().state == "ok"


def look_into(path: Path) -> None:
    """Read a file; raises what says why it is ignored."""
    with remembered._folder() as folder:
        remembered._parsed(remembered._text(folder, path.name), time.time())


def at(path: Path, kind: str) -> None:
    """Put something in the place of a file."""
    path.rename(path.with_name("away"))
    if kind == "link":
        path.symlink_to("away")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path.mkdir()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("link", "a link"), ("dangling", "a link"), ("pipe", "no plain file"),
        ("socket", "No such device"), ("folder", "no plain file"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_is_no_plain_file_is_ignored_at_once(
    path: Path, kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    at(Path(path.name), kind)
    began = time.monotonic()
    assert FILE.read() == {}
    assert reason in said(path)
    FILE.write(found({SMALL: LIBRARY}))
    assert time.monotonic() - began < 10, "it waits"
    assert FILE.read() == ({} if kind == "folder" else known({SMALL: LIBRARY}))
    assert parts(path.parent) == ["away"], "a temporary file is left"
    assert '"ring"' in (path.parent / "away").read_text(), "it has written through a link"


@as_root
def test_a_file_of_another_user_is_ignored(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)
    assert FILE.read() == {}
    assert said(path) == f"user {NOBODY}'s"


@as_root
def test_a_folder_of_another_user_is_left_alone(path: Path) -> None:
    before = path.read_text()
    os.chown(path.parent, NOBODY, NOBODY)
    FILE.write(found({SMALL: LIBRARY}))
    assert (FILE.read(), path.read_text()) == ({}, before)
    told = doctor._remembered()
    assert (told.state, f"user {NOBODY}'s" in told.found) == ("warn", True)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_left_alone(path: Path, mode: int) -> None:
    before = path.read_text()
    path.parent.chmod(mode)
    FILE.write(found({SMALL: LIBRARY}))
    assert (FILE.read(), path.read_text()) == ({}, before)
    told = doctor._remembered()
    assert f"mode 0{mode:o}" in told.found
    assert "chmod 700" in told.remedy


def test_a_user_without_a_home_remembers_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(remembered, "user_caches", homeless)
    FILE.write(found({KIND: RING}))
    assert FILE.read() == {}
    told = doctor._remembered()
    assert (told.state, "no home" in told.found) == ("warn", True)
    assert "XDG_CACHE_HOME" in told.remedy


@pytest.mark.parametrize("depth", [0, 1])
def test_a_file_in_place_of_a_folder(place: Path, depth: int) -> None:
    there = (place, *place.parents)[depth]
    there.parent.mkdir(parents=True, exist_ok=True)
    there.touch()
    FILE.write(found({KIND: RING}))
    assert FILE.read() == {}
    assert "Not a directory" in doctor._remembered().found


def ended(code: str) -> int:
    """Run a program that has the names of this file; its exit status."""
    lines = "from tests.collectives.selection.test_remembered import *\n"
    done = subprocess.run([sys.executable, "-c", lines + code], cwd=ROOT, check=False)
    return done.returncode


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that any user may enter, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.parametrize("closed", ["caches", "caches/closeranks"])
def test_a_read_only_home_is_read_and_not_written(
    outside: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = outside / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    caches.mkdir(0o700)
    if closed != "caches":
        FILE.write(found({KIND: RING}))
    inside = sorted(outside.rglob("*"))
    before = [path.read_bytes() for path in inside if path.is_file()]
    for path in inside if os.geteuid() == 0 else ():
        os.chown(path, NOBODY, NOBODY)
    (outside / closed).chmod(0o500)
    code = "os.geteuid() == 0 and (os.setgroups([]), os.setgid(NOBODY), os.setuid(NOBODY))\n"
    code += "FILE.write(found({SMALL: LIBRARY}))\n"
    code += f"assert FILE.read() == {'known({KIND: RING})' if before else '{}'}\n"
    assert ended(code) == 0
    (outside / closed).chmod(0o700)
    assert sorted(outside.rglob("*")) == inside
    assert [path.read_bytes() for path in inside if path.is_file()] == before


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 16 KiB, and the folder in it."""
    monkeypatch.setattr(remembered, "PATIENCE_S", 30.0)
    words = ["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a small file system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "closeranks"
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_keeps_the_old_file(tiny: Path) -> None:
    FILE.write(found({KIND: RING}))
    before = (tiny / ORIGIN.name).read_bytes()
    FILE.write(found({CallKind("allreduce", n, bool(m)): RING for n in range(65) for m in (0, 1)}))
    assert (tiny / ORIGIN.name).read_bytes() == before
    assert parts(tiny) == [], "a temporary file is left on a full disk"
    FILE.write(found({SMALL: LIBRARY}))
    assert FILE.read() == known({KIND: RING, SMALL: LIBRARY})


def test_what_was_found_last_counts_and_the_rest_stays(path: Path) -> None:
    FILE.write(found({SMALL: LIBRARY}) | found({KIND: LIBRARY}, OTHER))
    FILE.write(found({KIND: LIBRARY}))
    both = known({KIND: LIBRARY, SMALL: LIBRARY}) | known({KIND: LIBRARY}, OTHER)
    assert FILE.read() == both


def test_what_was_only_remembered_is_not_written(path: Path) -> None:
    before = path.stat()
    FILE.write(FILE.read() | found({}, OTHER))
    assert path.stat() == before
    path.unlink()
    again = known({KIND: RING})
    again[SHAPE].by_kind[SMALL] = LIBRARY
    FILE.write(again)
    assert FILE.read() == known({SMALL: LIBRARY}), "what the user has removed comes back"


@pytest.mark.parametrize(
    "wrong",
    [TrialFinding("ring", math.nan), TrialFinding("ring", math.inf), TrialFinding("ring", -1.0),
     TrialFinding("ring", 1e-5, math.nan), TrialFinding("rung", 1e-5)],
)  # fmt: skip
def test_what_could_not_be_read_is_not_written(place: Path, wrong: TrialFinding) -> None:
    FILE.write(found({KIND: wrong, CallKind("allprice", 1): RING, SMALL: LIBRARY}))
    assert FILE.read() == known({SMALL: LIBRARY})


def test_each_finding_has_its_own_age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 20 * 86400)
    FILE.write(found({SMALL: LIBRARY}))
    assert FILE.read() == known({KIND: RING, SMALL: LIBRARY})
    monkeypatch.setattr(time, "time", lambda: real() + 31 * 86400)
    assert FILE.read() == known({SMALL: LIBRARY}), "30 days after it was found"
    FILE.write(found({CallKind("barrier", 0): LIBRARY}))
    assert len(rows_of(path)) == 2, "what is too old is written again"


def test_no_file_has_more_rows_than_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 5)
    long = TrialFinding("native", 1.2345678901234567e-5, 1.2345678901234567e-5)
    kinds = {CallKind("reduce_scatter_block", size): long for size in range(65)}
    FILE.write({f"{number:016x}": TrialFindings(dict(kinds)) for number in range(300)})
    assert path.stat().st_size < MOST_BYTES
    read = FILE.read()
    assert sum(len(one.by_kind) for one in read.values()) == MOST_ROWS
    assert SHAPE not in read, "the oldest goes first"
    path.unlink()
    FILE.write({f"{number:016x}": TrialFindings({KIND: RING}) for number in range(300)})
    assert 200 < len(FILE.read()) < 300, "nor has it more shapes"


def test_of_too_many_files_the_oldest_go(path: Path) -> None:
    own = ["notes.txt", "findings.json", "copies.x-0.o", f"{path.name}.{0:016x}"]
    for name in own:
        (path.parent / name).touch()
    for name in own[:3]:
        aged(path.parent / name, 99)
    for number in range(MOST_FILES):
        other = path.parent / f"findings-{number:016x}.json"
        other.write_bytes(path.read_bytes())
        aged(other, 1 + number / 100)
    FILE.write(found({SMALL: LIBRARY}))
    left = {one.name for one in path.parent.iterdir()}
    assert f"findings-{MOST_FILES - 1:016x}.json" not in left
    expected = {f"findings-{number:016x}.json" for number in range(MOST_FILES - 1)}
    assert left == expected | {path.name, *own}
    assert look_at_folder().good == MOST_FILES


def test_files_that_are_too_old_go(path: Path) -> None:
    old, young = (path.with_name(f"findings-{n:016x}.json") for n in range(2))
    for one, days in ((old, 31.0), (young, 29.0)):
        one.write_bytes(path.read_bytes())
        aged(one, days)
    assert old.stat().st_mtime < time.time() - KEPT_S
    FILE.write(found({SMALL: LIBRARY}))
    assert {one.name for one in path.parent.iterdir()} == {path.name, young.name}


KILLED = {
    "before the file is there": "real = os.replace\nos.replace = lambda *_, **__: die()\n",
    "in the middle of the text": """
class Half:
    def __init__(self, descriptor, mode, **more): self.descriptor = descriptor
    def __enter__(self): return self
    def __exit__(self, *_): ...
    def write(self, text): os.write(self.descriptor, text[:99]); die()
real = os.fdopen
os.fdopen = lambda *given, **more: (Half if 'wb' in given else real)(*given, **more)
""",
}


@pytest.mark.parametrize("where", KILLED)
def test_a_kill_in_a_write_keeps_the_old_file(path: Path, where: str) -> None:
    before = path.read_bytes()
    code = "def die(): os.kill(os.getpid(), signal.SIGKILL)\n" + KILLED[where]
    code += "FILE.write(found({SMALL: LIBRARY}))\n"
    assert ended(code) == -signal.SIGKILL
    assert path.read_bytes() == before
    (part,) = parts(path.parent)
    assert doctor._remembered().state == "ok"
    FILE.write(found({SMALL: LIBRARY}))
    assert parts(path.parent) == [part], "it may be another job's, which writes just now"
    aged(path.parent / part, 1 / 12)
    FILE.write(found({SMALL: LIBRARY}))
    assert parts(path.parent) == []
    assert FILE.read() == known({KIND: RING, SMALL: LIBRARY})


def test_a_disk_that_does_not_answer_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, real = threading.Event(), (os.replace, os.open)

    def late(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: (answers.wait(60), call(*given, **more))[1]

    monkeypatch.setattr(remembered, "PATIENCE_S", 0.1)
    monkeypatch.setattr(os, "replace", late(real[0]))
    began = time.monotonic()
    FILE.write(found({SMALL: LIBRARY}))
    monkeypatch.setattr(os, "open", late(real[1]))
    assert FILE.read() == {}
    assert time.monotonic() - began < 10
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "closeranks findings":
            assert thread.daemon, "the process could not end"
            thread.join()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent.parent))
    assert FILE.read() == known({KIND: RING, SMALL: LIBRARY}), "written when it answered"


def test_no_thread_more_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    FILE.write(found({SMALL: LIBRARY}))
    assert FILE.read() == {}


def test_of_writers_at_once_the_last_counts(path: Path) -> None:
    ready = threading.Barrier(3)

    def write(operation: str) -> None:
        ready.wait()
        for size in range(30):
            FILE.write(found({CallKind(operation, size): LIBRARY}))

    writers = [threading.Thread(target=write, args=(name,)) for name in ("gather", "scatter")]
    for writer in writers:
        writer.start()
    ready.wait()
    while any(writer.is_alive() for writer in writers):
        look_into(path)  # it is whole at any time
    kinds = FILE.read()[SHAPE].by_kind
    assert len(kinds) >= 2
    assert kinds.keys() & {CallKind("gather", 29), CallKind("scatter", 29)}


def test_the_doctor_tells_where_it_is_and_whether_it_is_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOSERANKS_REMEMBER")
    told = doctor._remembered()
    assert (told.state, told.found) == ("ok", f"files of findings in {path.parent}: 1")
    for number in range(6):
        path.with_name(f"findings-{number:016x}.json").touch()
    told = doctor._remembered()
    assert "2 more" in told.found
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "0")
    assert "off" in doctor._remembered().found
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "perhaps")
    assert (doctor._remembered().state, doctor._remembered().row()["check"]) == (
        "fail",
        "remembered",
    )
