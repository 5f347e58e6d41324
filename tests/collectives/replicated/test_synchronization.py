"""What ranks tell each other of their states, on one rank that hears two."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.replicated.synchronization import StateReport, digest
from closeranks.errors import UsageError


class Broken(dict[str, Any]):
    """A dict that fails when it is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


class Unwritten(Exception):
    """An error that nobody else can read, nor this rank write."""

    def __reduce__(self) -> Any:
        raise TypeError

    def __repr__(self) -> str:
        raise ValueError


class Ranks:
    """The first of two ranks; keeps what it tells the other one."""

    rank, size, state_report = 0, 2, (0, True)

    def __init__(self, other: StateReport) -> None:
        self.other, self.told, self.comm = other, b"", self

    def allgather(self, said: StateReport) -> list[StateReport]:
        self.told = pickle.dumps(said)
        return [pickle.loads(self.told), self.other]


WELL = StateReport(b"", 0, True, True)


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError(1), Unwritten()], ids=type)
@pytest.mark.parametrize("state", [Broken, lambda error: {"a": [np.ones(2), Broken(error)]}])
def test_whatever_a_rank_meets_is_raised_here_and_told(error: Exception, state: Any) -> None:
    ranks: Any = Ranks(WELL)
    with pytest.raises(type(error)) as met:
        digest(ranks, state(error))
    assert met.value is error
    problem = pickle.loads(ranks.told).problem
    assert type(problem) is UsageError
    assert type(error).__name__ in str(problem)
    ranks = Ranks(pickle.loads(ranks.told))
    with pytest.raises(UsageError, match=rf"rank 1: {type(error).__name__}"):
        digest(ranks, {"a": 1})
