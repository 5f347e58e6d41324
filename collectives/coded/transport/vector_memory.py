"""Vectors of the ranks of a node, and the sums of some rounds, in its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from closeranks.collectives.shm import shared_arrays

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.coded.schemes.scheme import Scheme
    from closeranks.collectives.coded.transport.gradient_layout import Flats, GradientLayout


class VectorMemory:
    """Memory of one layout of gradients.

    A rank has a vector for every task of the rounds in which a job is open.  A
    sum stays until all ranks of the node have left its round: the ranks share
    the memory of these sums.

    Collective over ``comm`` to make.

    Parameters
    ----------
    comm : Communicator
        All ranks.
    node : MPI.Intracomm
        The ranks of this node.
    layout : GradientLayout
        The same on all ranks.
    scheme : Scheme
        Has ``slots`` and ``delay``.
    results : int
        Sums that are kept.

    Attributes
    ----------
    layout : GradientLayout
        As given.

    Raises
    ------
    Unavailable
        On all ranks, if a node has no memory to share.
    """

    def __init__(
        self, comm: Any, node: MPI.Intracomm, layout: GradientLayout, scheme: Scheme, results: int
    ) -> None:
        self.layout, self._rounds, self._results = layout, scheme.delay + 1, results
        self._slots, self._member = scheme.slots, node.rank
        vectors = self._rounds * self._slots
        shared = -(-results // node.size)  # sums are spread over the ranks of the node
        nbytes = (vectors + shared) * layout.nbytes
        membership = comm.membership
        with membership.together("CodedAllreduce.step"):
            arrays = shared_arrays.make_window(membership.service.careful, node, nbytes)
        size = layout.nbytes
        self._vectors: list[list[Flats]] = [
            [layout.flats(array[at * size : (at + 1) * size]) for at in range(vectors)]
            for array in arrays
        ]
        places = [
            array[at * size : (at + 1) * size]
            for at in range(vectors, vectors + shared)
            for array in arrays
        ]
        self._sums = [layout.flats(place) for place in places[:results]]

    def own(self, round_: int) -> list[Flats]:
        """Give this rank's vectors of a round, by slot."""
        first = round_ % self._rounds * self._slots
        return self._vectors[self._member][first : first + self._slots]

    def of(self, member: int, round_: int, slot: int) -> Flats:
        """Give a vector of any rank of the node."""
        return self._vectors[member][round_ % self._rounds * self._slots + slot]

    def result(self, round_: int) -> Flats:
        """Give the place of the sum that is made in a round."""
        return self._sums[round_ % self._results]

    def close(self) -> None:
        """Drop the memory.  Local, harmless twice."""
        self._vectors, self._sums = [], []
