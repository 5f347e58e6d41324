"""What a day takes of long lists, and which tests belong to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import shares
from tests.changed import covering


@pytest.mark.parametrize(("number", "of"), [(1, 9), (5, 9), (9, 9), (10, 3), (100, 18)])
def test_every_set_has_its_day(number: int, of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sets, seen = list(range(number)), []
    for day in range(of):
        monkeypatch.setattr(shares, "SEED", str(20_000 + day))
        taken = shares.share(sets, of, "tests/test_a.py::test_b")
        assert -(-number // of) >= len(taken) >= max(1, number // of)
        seen += taken
    assert set(seen) == set(sets)


def test_a_list_may_have_no_set_on_some_days(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for day in range(18):
        monkeypatch.setattr(shares, "SEED", str(day))
        seen += shares.share("abc", 18, "name", least=0)
    assert sorted(seen) == ["a", "b", "c"]


def test_one_seed_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SEED", "all")
    assert shares.share("abc", 9) == ["a", "b", "c"]
    assert shares.share("", 9) == []


def test_the_summary_counts_tests_and_adds_seconds() -> None:
    ended = [("tests/comms/test_a.py::test_b", "passed", 1.5), ("tests/test_c.py::d", "failed", 2)]
    ended += [("tests/comms/test_a.py::test_b", "", 1.0)]
    rows = shares.table(ended).splitlines()
    assert rows[2:] == [
        "| . | 0 | 0 | 1 | 2 |",
        "| comms | 1 | 0 | 0 | 2 |",
        "| all | 1 | 0 | 1 | 4 |",
    ]


@pytest.mark.parametrize(("path", "tests"), [
    ("comms/buffers/packing.py", "tests/comms/buffers"),
    ("jobs/bench/churn/model.py", "tests/jobs/bench/test_churn.py"),
    ("comms/wait.py", "tests/comms/test_wait.py"),
    ("closeranks/testing.py", "tests/test_testing.py"),
    ("tests/test_docs.py", "tests/test_docs.py"),
    ("tests/comms/conftest.py", "tests/comms"),
    ("tests/conftest.py", None),
    ("docs/index.md", None),
])  # fmt: skip
def test_a_file_has_its_tests(path: str, tests: str | None) -> None:
    found = covering(Path(path))
    assert (found and str(found)) == tests
