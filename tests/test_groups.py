"""One process runs the tests that share something."""

from __future__ import annotations

from tests.groups import ROOT, WHOLE, GroupScheduling, group_of


def test_files_that_share_something_are_one_group() -> None:
    asking = {group_of(f"tests/faults/test_{name}.py") for name in ("alarms", "spares", "kin")}
    with_slurm = {group_of(f"tests/cluster/test_{name}.py") for name in ("slurm", "remember")}
    assert asking == {"jobs of many questions"}
    assert with_slurm == {"one SLURM"}
    assert group_of("tests/faults/test_matrix.py") == "tests/faults/test_matrix.py"
    assert group_of("tests/test_docs.py") is None


def test_all_that_is_listed_is_there() -> None:
    assert [name for name in WHOLE if not (ROOT / "tests" / name).exists()] == []


def test_the_scheduler_asks_for_the_group_of_the_file() -> None:
    scheduling = GroupScheduling.__new__(GroupScheduling)
    file, alone = "tests/checkpoint/test_histories.py", "tests/test_docs.py::test_a[b]"
    assert scheduling._split_scope(f"{file}::test_a[1@2]") == file
    assert scheduling._split_scope(alone) == alone
