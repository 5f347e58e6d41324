"""``closeranks checkpoint``: every verb as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from closeranks.__main__ import main
from closeranks.checkpoint import Shard
from closeranks.checkpoint.memory.run_key import job_of as job_of_process
from closeranks.checkpoint.memory.run_key import key_of
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.jobs.checkpoint_tools.checkpoint_command import orderly
from closeranks.jobs.checkpoint_tools.clean import parse_age
from closeranks.jobs.checkpoint_tools.name_choice import is_held_as, is_meant, job_of
from tests.checkpoint import filed, ground
from tests.checkpoint.memory.test_slot_locks import HOLDER

RING = {node: (node,) for node in range(4)}
Care = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder in memory of this test alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        yield Path(made)


@pytest.fixture
def care(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Care:
    """Run a verb in this process; gives status, output and errors."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["checkpoint", *map(str, words)])
        said = capsys.readouterr()
        assert said.err.count("\n") <= 1, said.err  # one line that says what to change
        return int(left.value.code or 0), said.out, said.err

    return run


def saved(
    root: Path, name: str = "train.7", folders: Sequence[str] = "abcd", **more: object
) -> list[Path]:
    """Save twice on four nodes, under a name, and collect the slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ground, "NAME", name)
        for generation in (1, 2):
            made = ground.make(root, [5000] * 4, 1, ring=range(4), ranks=RING,
                               generation=generation, **more)  # type: ignore[arg-type] # fmt: skip
    return ground.collect(made, folders)


def given(folders: list[Path]) -> list[str]:
    """Write the options that name folders."""
    return [word for folder in folders for word in ("--directory", str(folder))]


def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Have a squeue that does this; gives where it notes what it was asked."""
    folder, asked = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir(exist_ok=True)
    (folder / "squeue").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{text}\n')
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return asked


def test_ls_lists_and_pictures(root: Path, care: Care, tmp_path: Path) -> None:
    folders = saved(root)
    listed, drawn = tmp_path / "list.json", tmp_path / "who.svg"
    status, out, _ = care("ls", *given(folders[:3]), "--json", listed, "--draw", drawn)
    assert (status, out.count("restorable, 1 lost")) == (0, 2)
    rows = json.loads(listed.read_text())
    assert [(row["name"], row["step"], row["locked"]) for row in rows] == [
        ("train.7", 20, False), ("train.7", 10, False),
    ]  # fmt: skip
    assert all(type(value) in (str, int, float, bool) for row in rows for value in row.values())
    assert "step 20, generation 2: restorable, 1 lost" in drawn.read_text()
    _, out, _ = care("ls", "train", *given(folders))
    assert "0      3       d committed  d committed" in out


def test_the_figure_is_what_draw_makes(root: Path, care: Care, tmp_path: Path) -> None:
    folders = saved(root, "train.4711", ("n0", "n1", "n2", "n3"))
    for path in [*folders[2].iterdir(), *folders[1].glob("*.0")]:
        path.unlink()
    drawn = tmp_path / "availability.svg"
    assert care("ls", "train.4711", *given(folders), "--draw", drawn)[0] == 0
    figure = Path(__file__).parents[2] / "docs" / "figures" / "availability.svg"
    assert drawn.read_text() == figure.read_text()


def test_what_is_not_there(root: Path, care: Care, tmp_path: Path) -> None:
    folders = saved(root)
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    assert care("ls", "--directory", empty)[:2] == (0, f"no checkpoints in {empty}\n")
    assert care("verify", "--directory", empty)[0] == 0
    for words, status, problem in (
        (["ls", "--directory", "/no/such"], 2, "No such file or directory; give a folder"),
        (["ls", "other", *given(folders)], 1, "nothing called other; there is train.7"),
        (["ls", "--json", "/no/such/file", *given(folders)], 2, "no folder for /no/such/file"),
        (["ls", "--draw", "x.gif", *given(folders)], 2, "end it with .svg or .png"),
        (["verify", "--into", empty, *given(folders)], 2, "add --repair"),
        (["verify", "--repair", "--into", "/proc/no", *given(folders)], 2, "name another folder"),
        (["convert", "train", empty / "a.h5", "--step", 3, *given(folders)], 1, "there are 20, 10"),
        (["convert", "train", empty / "a.h5", *given(folders[:2])], 1, "collect the slots"),
        (["clean", "--remove", *given(folders)], 2, "add --name or --older-than"),
        (["clean", "--older-than", "2 weeks", *given(folders)], 2, "write 2d, 12h"),
    ):  # fmt: skip
        code, _, err = care(*words)
        assert (code, problem in err) == (status, True), err


def test_verify_and_repair(root: Path, care: Care, tmp_path: Path) -> None:
    folders = saved(root)
    told = tmp_path / "told.json"
    assert care("verify", *given(folders))[0] == 0
    shutil.rmtree(folders[3])
    (newer,) = folders[0].glob("*.0")
    slot = Slot.attach(newer)
    slot.data.memory[4000] ^= 1
    slot.close()
    status, out, _ = care("verify", "train", *given(folders[:3]), "--json", told)
    assert (status, "has lost 2 members" in out) == (1, True)
    assert [row["outcome"] for row in json.loads(told.read_text())] == ["lost", "repairable"]
    status, out, _ = care("verify", *given(folders[:3]), "--repair", "--into", folders[3])
    assert (status, f"made anew in {folders[3]}" in " ".join(out.split())) == (1, True)
    status, out, _ = care("verify", *given(folders), "--json", told)
    assert [row["outcome"] for row in json.loads(told.read_text())] == ["lost", "whole"]
    status, out, _ = care("verify", *given(folders[:1]), "--repair")
    assert (status, "give them with --directory" in " ".join(out.split())) == (1, True)
    newer.unlink()  # where nothing is left of a member all of it may be asked for
    assert sorted(path.suffix for path in root.rglob("check*")) == [".0", ".0", *[".1"] * 4]


def test_convert_refuses_to_overwrite(root: Path, care: Care, tmp_path: Path) -> None:
    import h5py

    folders = saved(root)
    output = tmp_path / "state.h5"
    status, out, _ = care("convert", "train", output, *given(folders))
    assert (status, out) == (0, f"{output}: step 20 of train.7\n")
    status, _, err = care("convert", "train", output, "--step", 10, *given(folders))
    assert (status, "add --force" in err) == (2, True)
    assert care("convert", "train", output, "--step", 10, "--force", *given(folders))[0] == 0
    with h5py.File(output) as file:
        assert (file.attrs["step"], file.attrs["name"]) == (10, "train.7")
    second = root / "second"
    second.mkdir()
    more = given(saved(second, "train.8"))
    status, _, err = care("convert", "train", output, "--force", *given(folders), *more)
    assert (status, "there is train.7, train.8; say which one" in err) == (2, True)


#: Runs a verb that stays where it has written all but the name of its file.
STAYS = """
import os, signal, sys, time
from closeranks.__main__ import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started this may ignore them
signal.signal(signal.SIGINT, signal.default_int_handler)
def stay(handle):
    print("written", flush=True)
    time.sleep(60)
os.fsync = stay
main(["checkpoint", *sys.argv[1:]])
"""


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_convert_leaves_nothing_when_it_is_told_to_end(
    root: Path, tmp_path: Path, told: signal.Signals
) -> None:
    folders = saved(root)[:3]  # so that some of it is made anew, in a folder beside the file
    words = [sys.executable, "-c", STAYS, "convert", "train", str(tmp_path / "a.h5")]
    with subprocess.Popen(
        [*words, *given(folders)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "written\n"
            assert len(list(tmp_path.iterdir())) == 2
            job.send_signal(told)
            _, err = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == 128 + told, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_told_twice_is_one_end() -> None:
    undone = []

    @orderly()
    def begin() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for again in (signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), again)
                undone.append(again)

    with pytest.raises(SystemExit) as left:
        begin()
    assert (left.value.code, len(undone)) == (143, 2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_is_on_disk(root: Path, care: Care, tmp_path: Path) -> None:
    import h5py

    disk, output = tmp_path / "disk", tmp_path / "state.h5"
    states = [{"alike": np.arange(9.0), "part": Shard(np.full(2, rank), (8,), (2 * rank,)),
               "rank": rank} for rank in range(4)]  # fmt: skip
    for generation in (1, 2):
        files = filed.save(disk / "train", states, [(0, 1), (2, 3)], generation=generation,
                           step=10 * generation)  # fmt: skip
    where = ["--persist", disk, "--directory", root]
    _, out, _ = care("ls", "train", *where)
    assert [line.split()[-1] for line in out.splitlines()] == ["train", "here", "whole", "whole"]
    assert care("verify", *where)[0] == 0
    data = bytearray(files[1].read_bytes())
    data[data.index(np.full(2, 3).tobytes())] ^= 1
    files[1].write_bytes(data)
    status, out, _ = care("verify", "train.7", *where)
    assert (status, "damaged on disk" in out) == (1, True)
    status, _, err = care("convert", "train", output, *where)
    assert (status, "closeranks: error:" in err, list(tmp_path.iterdir())) == (1, True, [disk])
    assert care("convert", "train", output, "--step", 10, *where)[0] == 0
    with h5py.File(output) as file:
        assert file["state/part"][...].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert file["ranks/000003/rank"][()] == 3
    files[0].unlink()
    assert "1 complete files of 2" in care("ls", *where)[1]
    assert "give that of persist=" in care("ls", "--persist", tmp_path / "no")[2]


@pytest.mark.parametrize(("script", "reason"), [
    ("echo RUNNING", "kept: job 7 is RUNNING"), ("echo PENDING", "kept: job 7 is PENDING"),
    ("echo slurm is away >&2; exit 1", "kept: job 7: squeue failed, slurm is away"),
    ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", ""),
    ("echo COMPLETED", ""), ("true", ""),
])  # fmt: skip
def test_clean_asks_slurm(
    root: Path,
    care: Care,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    reason: str,
) -> None:
    asked = squeue(tmp_path, monkeypatch, script)
    folders = saved(root)
    before = sorted(root.rglob("*"))
    _, out, _ = care("clean", *given(folders))
    assert (reason or "can be removed") in out
    assert sorted(root.rglob("*")) == before
    assert asked.read_text() == "-h -j 7 -o %T\n"
    _, out, _ = care("clean", *given(folders), "--older-than", "1h", "--remove")
    assert out.startswith("no checkpoints in")
    _, out, _ = care("clean", *given(folders), "--name", "train", "--remove")
    assert (reason or "removed") in out
    assert sorted(root.rglob("*")) == [path for path in before if reason or path.is_dir()]


def test_clean_without_slurm(
    root: Path, care: Care, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    saved(root, "plain")
    folders = saved(root)
    _, out, _ = care("clean", *given(folders), "--older-than", "0s", "--remove")
    assert "kept: job 7: no squeue here to ask" in out
    assert {path.name[:18] for path in root.rglob("check*")} == {"checkpoint-train.7"}


def test_clean_leaves_what_a_process_has_open(
    root: Path, care: Care, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue(tmp_path, monkeypatch, "true")
    folders = saved(root, "name.7")
    inner = root / f"closeranks-{os.getuid()}"
    for path in folders[0].iterdir():
        path.rename(inner / path.name)
    words = [sys.executable, "-c", HOLDER, "name.7", str(root), "alone"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            job.stdout.readline()
            _, out, _ = care("clean", "--directory", root, "--name", "name", "--remove")
            owner = f"open: host {socket.gethostname()}, pid {job.pid}, started 2"
            assert " ".join(out.split()).count(f"kept: {owner}") == 2
            assert f"name.7, {owner}" in care("ls", "--directory", root)[1]
        finally:
            job.send_signal(signal.SIGKILL)
    _, out, _ = care("clean", "--directory", root, "--name", "name", "--remove")
    assert out.count("removed") == 2
    assert list(inner.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, setpriv")
def test_nobody_meets_folders_of_others(root: Path) -> None:
    root.chmod(0o755)
    folders = saved(root, "plain")
    mine = root / "mine"
    mine.mkdir(0o700)
    os.chown(mine, 65534, 65534)
    for path in folders[0].iterdir():  # another user's slots in a folder of one's own
        path.rename(mine / path.name)
    folders[1].chmod(0o755)

    def nobody(*words: object) -> subprocess.CompletedProcess[str]:
        who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        run = [sys.executable, "-m", "closeranks", "checkpoint", *map(str, words)]
        return subprocess.run([*who, *run], capture_output=True, text=True, timeout=60, check=False)

    refused = nobody("ls", "--directory", folders[1])
    assert refused.returncode == 2
    assert "is not this user's, or others may write into it" in refused.stderr
    listed = nobody("clean", "--directory", mine, "--name", "plain", "--remove")
    assert "kept:" in listed.stdout
    assert "Permission denied" in " ".join(listed.stdout.split())
    assert len(list(mine.iterdir())) == 2


def test_a_name_means_slots_of_any_run() -> None:
    assert is_held_as("train.nightly", "train")
    assert is_held_as("train.eval.nightly", "train.eval")
    assert not is_held_as("train.eval.nightly", "train")
    assert is_held_as("train.eval.nightly", "train.eval.nightly")


def test_names_and_ages() -> None:
    assert is_meant("train.7", "train")
    assert is_meant("train.7", "train.7")
    assert not is_meant("train.eval", "train")
    assert not is_meant("train.7", "train.70")
    assert is_meant("train." + "0af" * 10 + "00", "train")
    assert is_meant("train.7-nightly", "train")
    assert is_meant(key_of("train", job_of_process({}, ["a.py"], "/")), "train")
    assert job_of("train.7-nightly") == "7"
    assert (job_of("train.7"), job_of("train"), job_of("train.v7"), job_of("7")) == (
        "7", None, None, None,
    )  # fmt: skip
    assert [parse_age(text) for text in ("2d", "12 h", "30min", "90s")] == [172800, 43200, 1800, 90]
