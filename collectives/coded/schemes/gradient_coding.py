"""Gradient coding: one task of a gradient code a worker and round."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.repetition import Repetition
from closeranks.collectives.coded.codes.worker_set import workers_of
from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.comms import argument


class GradientCoding(OneTask):
    """Each job in one round, from those workers that are fast.

    Tandon, Lei, Dimakis, Karampatziakis, "Gradient Coding", ICML 2017.
    Departures: the code is `Repetition`, whose coefficients are 1, unless
    another one is given by `of`; and a round may end with the first set of
    workers that make the sum, not with ``n - s`` of them.  A code that estimates
    takes ``n - s``, since any set gives an estimate.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        How many of them may be late in a round, whichever they are.

    Attributes
    ----------
    code : GradientCode
        The code.

    Raises
    ------
    UsageError
        If n < 1, or s is outside of 0 to ``n - 1``.
    """

    def __init__(self, n: int, s: int) -> None:
        self._take(Repetition(n, s))

    @classmethod
    def of(cls, code: GradientCode) -> GradientCoding:
        """Give the scheme of any gradient code.

        Parameters
        ----------
        code : GradientCode
            The code.

        Returns
        -------
        GradientCoding
            One task a worker: all its parts, with their coefficients.

        Raises
        ------
        UsageError
            If it is no gradient code.
        """
        argument.instance("GradientCoding.of", "code", code, GradientCode, "give a gradient code")
        made = cls.__new__(cls)
        made._take(code)
        return made

    def for_workers(self, n: int) -> GradientCoding:
        """Give the scheme of the code for another number of workers."""
        return GradientCoding.of(self.code.for_workers(n))

    def _take(self, code: GradientCode) -> None:
        self.code, self.exact = code, code.exact
        rows = [
            (parts, tuple(code.matrix[worker, list(parts)].tolist()))
            for worker, parts in enumerate(map(code.assignment, range(code.n)))
        ]
        self._use(rows, code.parts)

    def conforms(self, round: int, stragglers: Collection[int]) -> bool:  # noqa: ARG002
        """Tell whether a round may end without some workers.

        This is the rule of the paper, with ``<= s``: its authors' program has
        ``< s``.  A code without ``s`` conforms if the others make the sum.

        Parameters
        ----------
        round : int
            Any.
        stragglers : collection of int
            The workers that are late.

        Returns
        -------
        bool
            Whether it may.
        """
        late = workers_of("conforms", stragglers, self.n)
        s = getattr(self.code, "s", None)
        if s is None:
            return self.code.decodable(self._busy - late)
        return len(late) <= int(s)

    def _weights(self, finished: frozenset[int]) -> Sequence[float] | None:
        if not self.code.decodable(finished):
            return None
        weights: list[float] = self.code.decode(finished).tolist()
        return weights

    def _enough(self, finished: frozenset[int]) -> bool:
        """Ask the code; an estimate takes all but ``s`` workers, since any set gives one."""
        least = 0 if self.exact else self.n - getattr(self.code, "s", self.n)
        return len(finished) >= least and self.code.decodable(finished)

    def _helpful(self, finished: frozenset[int]) -> set[int]:
        """Give all others but those whose vector is there already."""
        there = {self._rows[worker] for worker in finished}
        return {w for w in self._busy - finished if self._rows[w] not in there}
