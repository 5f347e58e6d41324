"""What routes and chunks share: lists of wanted rows, and plans.

A `RowExchange` tells each rank once which rows it will get.  From then on all
counts are known, and rows of any bytes move by plans.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.builders.row_exchange import RowBytes, RowProblem
from closeranks.collectives.builders.row_moves import RowMoves, announced, heard_moves
from closeranks.collectives.dispatch.open_plans import OpenPlans
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.sparse.agreed_numbers import greatest
from closeranks.comms import argument
from closeranks.errors import Revoked, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

AUTO: Final = "auto"
FLAT: Final = "flat"
TWO_HOPS: Final = "two_hops"
#: With more messages of one rank than so many, rows go in two hops.
_FEW: Final = 256


def known_algorithm(where: str, algorithm: Any) -> str:
    """Read the name of an algorithm; UsageError says which there are.  Local."""
    names = (AUTO, FLAT, TWO_HOPS)
    if not isinstance(algorithm, str) or algorithm not in names:
        shown = argument.shown(algorithm)
        raise UsageError(where, f"no algorithm {shown}", f"one of {', '.join(names)}")
    return algorithm


class RowForm(NamedTuple):
    """Bytes and types of the rows of a call.

    Attributes
    ----------
    nbytes : int
        Bytes of each row, where all are alike.
    given, arrived : ndarray of int64 or None
        Bytes of each row, where they differ: of those that this rank gives to
        `dispatch`, and of those that it gets.
    given_types, arrived_types : ndarray of int64 or None
        Number of the type of each, for `combine`.
    op : str
        Of `combine`.
    dtype : int
        Of `combine`: number of the type of all rows.
    """

    nbytes: int
    given: Ints | None = None
    arrived: Ints | None = None
    given_types: Ints | None = None
    arrived_types: Ints | None = None
    op: str = "SUM"
    dtype: int = -1

    @property
    def key(self) -> Hashable:
        """Equal for equal forms of an exchange; one form at most has unlike rows."""
        return self.nbytes, self.given is None, self.op, self.dtype

    def row_bytes(self, moves: RowMoves) -> RowBytes | None:
        """Give the bytes of rows as plans need them; None where all are alike."""
        if self.given is None or self.arrived is None:
            return None
        sizes = _as_they_came(self.arrived, moves)
        types = _as_they_came(_types(self.arrived_types, self.arrived), moves)
        given_types, n = _types(self.given_types, self.given), moves.n_came
        return RowBytes(self.given, sizes[:n], sizes[n:], given_types, types[:n])


def _as_they_came(table: Ints, moves: RowMoves) -> Ints:
    """Turn a table of arrived rows into one of those that came, then those passed on."""
    found = np.empty_like(table)
    found[moves.order] = table
    return found


def _types(known: Ints | None, rows: Ints) -> Ints:
    """Give the types of rows; -1 of each where nothing is combined."""
    return np.full_like(rows, -1) if known is None else known


class RowExchange:
    """Which rows go where; moves rows there, and brings sums back.

    Collective to make; so are `dispatch` and `combine`.

    Parameters
    ----------
    service : Service
        Of the communicator.
    n_rows : int
        Rows that this rank gives.
    rows, ranks : ndarray of int64, shape (pairs,)
        Rows and the ranks that want them: each pair once, sorted by row and rank.
    origins : ndarray of int64, shape (n_rows,), optional
        Where each row began, see `row_moves.origin_of`; on all ranks or on none.
    algorithm : str
        One of "auto", "flat" and "two_hops".
    plans : OpenPlans, optional
        Where bound plans are kept; else for as long as this lives.

    Attributes
    ----------
    n_rows : int
        As given.
    sources, tokens : ndarray of int64, shape (arrived,)
        Rank and number of each arrived row where it began.
    """

    def __init__(
        self,
        service: Service,
        n_rows: int,
        rows: Ints,
        ranks: Ints,
        *,
        origins: Ints | None = None,
        algorithm: str = AUTO,
        plans: OpenPlans | None = None,
    ) -> None:
        self._service, self._world = service, service.world
        self._topology = service.world.topology
        self._tiers = nodes_of(self._topology)
        is_tiered = len(self._tiers) < service.size
        self._names = [TWO_HOPS, FLAT] if is_tiered else [FLAT]
        self._is_free, self._is_exact = algorithm == AUTO, service.family.deterministic
        if not self._is_free:
            self._names = [algorithm]
        self.n_rows, self._is_begun = n_rows, origins is not None
        self._told = announced(rows, ranks, self._tiers, service.rank, origins)
        self._heard = _exchanged(service, self._told.told)
        self._n_senders = int(np.count_nonzero(self._heard[1]))
        self._moves: dict[str, RowMoves] = {}
        self._chosen: dict[Hashable, str] = {}
        self._plans, self._key = plans or OpenPlans(service), object()
        moves = self._moves_of(self._names[0])
        self.sources, self.tokens = moves.sources, moves.tokens

    def _moves_of(self, name: str) -> RowMoves:
        if name not in self._moves:
            self._moves[name] = heard_moves(
                self.n_rows,
                self._told,
                *self._heard,
                self._tiers,
                self._service.rank,
                begun=self._is_begun,
                relayed=name == TWO_HOPS,
            )
        return self._moves[name]

    def refuse_moved(self, where: str) -> None:
        """Raise `Revoked` if the communicator has other ranks than before.  Local."""
        if self._service.__dict__.get("world") is not self._world:
            problem = "the ranks are others since a recovery"
            raise Revoked(where, (), problem, "make the route anew", for_good=True)

    def dispatch(self, operation: str, data: Bytes, form: RowForm) -> tuple[Bytes, str]:
        """Send rows to where they are wanted.

        Collective.

        Parameters
        ----------
        operation : str
            Name in the catalogue.
        data : ndarray of uint8, contiguous
            The rows that this rank gives.
        form : RowForm
            Of the rows; ``nbytes`` equal on all ranks.

        Returns
        -------
        rows : ndarray of uint8
            The arrived rows; nobody else holds them.
        algorithm : str
            How they came.
        """
        return self._ran(operation, data, form, self._choose(operation, form))

    def combine(self, operation: str, data: Bytes, form: RowForm) -> tuple[Bytes, str]:
        """Combine rows of all ranks that got a row, where it came from.

        Collective.

        Parameters
        ----------
        operation : str
            Name in the catalogue.
        data : ndarray of uint8, contiguous
            A row for each arrived one.
        form : RowForm
            Of the rows, with op and type; ``nbytes``, op and ``dtype`` equal on all
            ranks.

        Returns
        -------
        rows : ndarray of uint8
            One for each given row; 0 where nobody got it.
        algorithm : str
            How they came.
        """
        if self._is_exact and self._is_free:
            return self._ran(operation, data, form, FLAT)
        return self._ran(operation, data, form, self._choose(operation, form))

    def _ran(self, operation: str, data: Bytes, form: RowForm, name: str) -> tuple[Bytes, str]:
        key = (self._key, operation, name, form.key)
        return self._plans.run(key, partial(self._plan, operation, name, form), data), name

    def _choose(self, operation: str, form: RowForm) -> str:
        """Return the algorithm of the least price on the rank where it is dearest."""
        if len(self._names) == 1:
            return self._names[0]
        key = form.nbytes, form.given is None
        if key not in self._chosen:
            prices = np.array([self._price(operation, name, form) for name in self._names])
            self._chosen[key] = self._names[int(greatest(self._service, prices).argmin())]
        return self._chosen[key]

    def _price(self, operation: str, name: str, form: RowForm) -> float:
        """Return the seconds of this rank's part, if all ranks do the like."""
        if max(len(self._told.direct), self._n_senders) > _FEW:
            # To price so many messages takes longer than to send them.
            return np.inf if name == FLAT else 0.0
        return cost(self._plan(operation, name, form), rank=self._service.rank).seconds

    def _plan(self, operation: str, name: str, form: RowForm) -> Plan:
        moves, rank = self._moves_of(name), self._service.rank
        problem = RowProblem(
            operation,
            self._topology,
            itemsize=form.nbytes,
            moves={rank: moves},
            op=form.op,
            dtype=form.dtype,
            commutative=not self._is_exact,
        )
        row_bytes = form.row_bytes(moves)
        if row_bytes is not None:
            problem = replace(problem, row_bytes={rank: row_bytes})
        return Plan(problem, find(operation, name))


def _exchanged(service: Service, told: dict[int, Ints]) -> tuple[Ints, Ints]:
    """Give each rank what it is told; return what this one is, and how much by each."""
    size = service.size
    counts, coming = np.zeros(size, np.int64), np.empty(size, np.int64)
    for peer, words in told.items():
        counts[peer] = len(words)
    sent = np.concatenate([np.empty(0, np.int64), *(told[peer] for peer in sorted(told))])
    if size == 1:
        return sent, counts
    service.block("alltoall", AUTO, counts, coming)
    arrived = np.empty(int(coming.sum()), np.int64)
    service.block("alltoallv", AUTO, _vector(sent, counts), _vector(arrived, coming))
    return arrived, coming


def _vector(data: Ints, counts: Ints) -> list[Any]:
    return [data, counts.tolist(), (np.cumsum(counts) - counts).tolist(), MPI.INT64_T]


def way_home(
    service: Service, n_rows: int, sources: Ints, tokens: Ints, algorithm: str
) -> RowExchange:
    """Make the exchange that brings rows from where they began to where they are.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    n_rows : int
        How many rows began on this rank.
    sources, tokens : ndarray of int64
        Where each row that is here began, ascending; repeats count once.
    algorithm : str
        As for `RowExchange`.

    Returns
    -------
    RowExchange
        Whose `combine` brings sums home.
    """
    is_new = np.ones(len(sources), np.bool_)
    is_new[1:] = (sources[1:] != sources[:-1]) | (tokens[1:] != tokens[:-1])
    sources, tokens = sources[is_new], tokens[is_new]
    found, firsts = np.unique(sources, return_index=True)
    parts = np.split(tokens, firsts[1:])
    rows, counts = _exchanged(service, dict(zip(found.tolist(), parts, strict=False)))
    ranks = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((ranks, rows))
    return RowExchange(service, n_rows, rows[order], ranks[order], algorithm=algorithm)
