"""How a `closeranks.collectives.plans.count_record` computes and compares."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """How a number follows from two others, or from one and a constant."""

    COUNT = 0
    ADD = 1
    SUBTRACT = 2
    PLUS = 3
    TIMES = 4
    OVER = 5
    MODULO = 6


class Relation(IntEnum):
    """How a number compares with 0."""

    EQUAL = 0
    UNEQUAL = 1
    LESS = 2
    AT_LEAST = 3
    AT_MOST = 4
    MORE = 5
