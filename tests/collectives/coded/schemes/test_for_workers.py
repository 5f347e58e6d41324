"""Schemes for another number of workers, which ranks go on with after a death."""

from __future__ import annotations

import pytest

from closeranks.collectives.coded.codes import (
    CyclicMDS,
    CyclicRepetition,
    Expander,
    FractionalRepetition,
    GradientCode,
    Repetition,
)
from closeranks.collectives.coded.schemes import (
    MSGC,
    SRSGC,
    Backup,
    GradientCoding,
    PartialRepetition,
    Scheme,
    Uncoded,
    UnequalShares,
)
from closeranks.errors import UsageError


@pytest.mark.parametrize(
    ("scheme", "n", "meant"),
    [
        (Uncoded(4), 3, Uncoded(3)),
        (Backup(4, 3), 3, Backup(3, 2)),
        (Backup(4, 1), 6, Backup(6, 1)),
        (PartialRepetition(4, 3, 5), 2, PartialRepetition(2, 1, 5)),
        (SRSGC(4, 1, 2, 4), 3, SRSGC(3, 1, 2, 3)),
        (SRSGC(4, 1, 2, 2), 1, SRSGC(1, 1, 2, 0)),
        (SRSGC(4, 1, 1, 3), 3, SRSGC(3, 1, 1, 2)),
        (MSGC(4, 1, 2, 4), 3, MSGC(3, 1, 2, 3)),
        (MSGC(4, 1, 2, 4), 1, MSGC(1, 1, 2, 1)),
        (MSGC(3, 1, 2, 3, CyclicRepetition), 5, MSGC(5, 1, 2, 3, CyclicRepetition)),
        (MSGC(4, 1, 3, 2, CyclicRepetition), 3, MSGC(3, 1, 3, 2, CyclicRepetition)),
        (GradientCoding(4, 3), 2, GradientCoding(2, 1)),
    ],
)
def test_a_scheme_keeps_what_fits(scheme: Scheme, n: int, meant: Scheme) -> None:
    made = scheme.for_workers(n)
    assert type(made) is type(meant)
    assert (made.n, made.parts, made.load, made.micro) == (
        meant.n, meant.parts, meant.load, meant.micro,
    )  # fmt: skip
    assert made.tasks(1) == meant.tasks(1)


@pytest.mark.parametrize(
    ("code", "n", "meant"),
    [
        (Repetition(6, 2), 5, Repetition(5, 2)),
        (Repetition(4, 3), 3, Repetition(3, 2)),
        (FractionalRepetition(6, 1), 4, FractionalRepetition(4, 1)),
        (CyclicRepetition(5, 2, seed=7), 4, CyclicRepetition(4, 2, seed=7)),
        (CyclicMDS(6, 1), 4, CyclicMDS(4, 1)),
    ],
)
def test_a_code_keeps_what_fits(code: GradientCode, n: int, meant: GradientCode) -> None:
    made = code.for_workers(n)
    assert type(made) is type(meant)
    assert (made.matrix == meant.matrix).all()


@pytest.mark.parametrize(
    "made",
    [
        lambda: FractionalRepetition(6, 1).for_workers(5),
        lambda: CyclicMDS(6, 1).for_workers(5),
        lambda: Expander(8, 3).for_workers(7),
        lambda: UnequalShares(3, [1, 2, 3]).for_workers(2),
    ],
)
def test_there_is_not_always_one(made: object) -> None:
    assert callable(made)
    with pytest.raises(UsageError):
        made()
