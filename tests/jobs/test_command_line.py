"""The command line's frame: lazy verbs, one line an error, exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def closeranks(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    import os

    unset = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "closeranks", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, **variables},
    )


def test_help_lists_the_verbs() -> None:
    done = closeranks("--help")
    assert done.returncode == 0
    verbs = "topology run lab bench tune plan stragglers checkpoint doctor demo"
    for verb in verbs.split():
        assert f"\n  {verb} " in done.stdout


def test_loading_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, closeranks.__main__; "
        "heavy = {'mpi4py', 'numpy', 'numba', 'h5py', 'scipy', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "words",
    [
        ["zap"],
        ["run", "--zap"],
        ["run", "-n", "0", "--", "true"],
        ["run", "-n", "2"],
        ["run", "-n", "2", "--", "gone.py"],
        ["run", "-n", "2", "--nodes", "0", "--", "true"],
        ["lab", "--", "true"],
        ["lab", "--nodes", "2", "--rate", "fast", "--", "true"],
        ["lab", "--nodes", "2", "--per-node", "1,2,3", "--", "true"],
        ["lab", "--nodes", "2", "--per-node", "0", "--", "true"],
        ["lab", "--nodes", "2", "--sites", "3", "--", "true"],
        ["lab", "--nodes", "2", "--site-rate", "1gbit", "--", "true"],
        ["lab", "--nodes", "2", "--order", "sideways", "--", "true"],
        ["lab", "kill-node", "-3"],
        ["lab", "kill-node", "0", "--lab", "1"],
        ["topology", "--json", "/no/such/folder/x.json"],
        ["topology", "--draw", "/no/such/folder/x.svg"],
        ["topology", "--draw", "x.txt"],
        ["tune", "--output", "/no/such/folder/x.json"],
        ["tune", "--json", "/no/such/folder/x.json"],
        ["doctor", "--json", "/no/such/folder/x.json"],
        ["demo", "--json", "/no/such/folder/x.json"],
        ["demo", "--json", "/tmp"],
        ["bench", "allreduce", "--json", "/no/such/folder/x.json"],
        ["stragglers"],
        ["stragglers", "gone.h5"],
        ["stragglers", "/tmp"],
        ["stragglers", __file__, "--json", "/no/such/folder/x.json"],
        ["stragglers", __file__, "--draw", "x.txt"],
        ["stragglers", __file__, "--rate"],
        ["checkpoint", "ls", "--json", "/no/such/folder/x.json"],
        ["checkpoint", "verify", "--json", "/no/such/folder/x.json"],
        ["tune", "--algorithms", "--operations", "sum"],
        ["tune", "--sizes", "much"],
        ["tune", "--budget", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str]) -> None:
    done = closeranks(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("closeranks: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CLOSERANKS_FAULTS", "kill seat=2", "no seat 2 among 2 ranks"),
        ("CLOSERANKS_FAULTS", "kill seat=0 at=noon", "no point 'noon'"),
        ("CLOSERANKS_TUNNING", "x.json", "no setting CLOSERANKS_TUNNING"),
        ("CLOSERANKS_CHECK", "maybe", "CLOSERANKS_CHECK: is 'maybe'"),
        ("CLOSERANKS_INTERPRETER", "foo", "CLOSERANKS_INTERPRETER: is 'foo'"),
    ],
)
@pytest.mark.parametrize("start", [["run", "-n", "2"], ["lab", "--nodes", "2"]])
def test_settings_are_refused_before_anything_is_started(
    start: list[str], name: str, value: str, said: str
) -> None:
    done = closeranks(*start, "--", "true", **{name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_options_behind_the_program_are_its_own() -> None:
    done = closeranks("run", "-n", "1", "echo", "-n", "5", "--nodes", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 --nodes 9"  # echo takes -n for itself


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "prog.py", "-n", "2"], "add -n 4"),
        (["run", "--faults", "prog.py", "-n", "2"], "add -n 4"),
        (["run", "-n", "2", "--spares", "1", "prog.py", "--faults"], "add --faults"),
        (["lab", "prog.py", "--nodes", "2"], "add --nodes 4, or --per-node 3,2,2,"),
    ],
)
def test_who_lacks_an_option_hears_where_options_stand(words: list[str], wanted: str) -> None:
    done = closeranks(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{wanted} before the program: options behind it are its own" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_under_a_launcher_only_rank_0_complains_but_all_fail(variable: str) -> None:
    first, second = (closeranks("zap", **{variable: rank}) for rank in ("0", "1"))
    assert (first.returncode, second.returncode) == (2, 2)
    assert first.stderr.count("\n") == 1
    assert second.stderr == ""


@pytest.mark.parametrize("verb", [["run", "-n", "1"], ["lab", "--nodes", "1"]])
def test_jobs_are_not_started_inside_jobs(verb: list[str]) -> None:
    done = closeranks(*verb, "--", "true", OMPI_COMM_WORLD_RANK="0")
    assert done.returncode == 2
    assert "inside an MPI job" in done.stderr


def test_what_the_output_cannot_show_is_written_plainly() -> None:
    done = closeranks("topology", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "`- node 0: rank 0"
    assert "\u2514\u2500 node 0: rank 0" in closeranks("topology", PYTHONIOENCODING="utf-8").stdout


def test_a_full_disk_is_one_line() -> None:
    done = closeranks("topology", "--json", "/dev/full")
    assert done.returncode == 1
    said = "topology: cannot write /dev/full: No space left on device; name another file"
    assert done.stderr == f"closeranks: error: {said}\n"


@pytest.mark.parametrize("words", [["topology"], ["bench", "faults"], ["tune"]])
def test_a_verb_that_starts_mpi_alone_leaves_nothing_in_node_memory(
    words: list[str], tmp_path: Path
) -> None:
    closeranks(*words, OMPI_MCA_btl_sm_backing_directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
