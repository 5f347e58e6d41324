"""A unit of work of one worker in one round, and its share in a sum."""

from __future__ import annotations

from typing import NamedTuple


class CodedTask(NamedTuple):
    """Some parts of the batch of a job, combined to one vector.

    Attributes
    ----------
    job : int
        The job that it is for; jobs count from 1.
    slot : int
        Its number among the tasks of a worker in a round.
    parts : tuple of int
        The parts to compute, in this order.
    coefficients : tuple of float
        Their factors in the vector.
    """

    job: int
    slot: int
    parts: tuple[int, ...]
    coefficients: tuple[float, ...]


class SumTerm(NamedTuple):
    """A vector that was delivered, and its weight in the sum of a job.

    Attributes
    ----------
    round : int
        When it was computed.
    worker : int
        By whom.
    slot : int
        Which task of that worker and round it is.
    weight : float
        Its factor.
    """

    round: int
    worker: int
    slot: int
    weight: float
