"""`Route`: rows such as tokens go to ranks that want them, and sums come back.

A route is made from the destinations of each token.  Ranks tell each other
once who gets what; then rows of any type and shape go that way, and back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closeranks.collectives.builders.row_moves import origin_of
from closeranks.collectives.dispatch.call_errors import serve_in_one_piece
from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.pairs.pair_message import OPS, TYPES
from closeranks.collectives.pairs.row_kernels import row_combine
from closeranks.collectives.sparse.agreed_numbers import agreed_sum, read_by_all, service_of
from closeranks.collectives.sparse.device_copies import read_arrays
from closeranks.collectives.sparse.row_transport import (
    AUTO,
    RowExchange,
    RowForm,
    known_algorithm,
    way_home,
)
from closeranks.comms import argument
from closeranks.comms.gpu.array_place import arrays_on_host, placed
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.gpu.array_place import DevicePlace

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_MAKE: Final = "route"
_DISPATCH: Final = "route_dispatch"
_COMBINE: Final = "route_combine"
#: Nothing is added beside what ranks compare.
_NOTHING: Final = np.empty(0, np.int64)
#: Complex numbers are added as pairs of these.
_REAL: Final = {"complex64": "float32", "complex128": "float64"}


class Route:
    """Sends rows to the ranks that want them, and brings sums of rows back.

    Collective to make, and so are its methods.  Ranks may have unlike numbers
    of tokens, or none.  A row crosses to a node once, whatever number of ranks
    want it there, and is passed on inside; the sum of a node's rows crosses back
    once.  Ranks may sit on nodes in any way.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    destinations : array_like of int, shape (tokens, k)
        Ranks that want each token; -1 is nobody.  A rank that stands there twice
        gets the token once.  They may lie on a device.
    algorithm : str
        "flat" sends a row to each rank that wants it, "two_hops" to one in each
        node; "auto" takes that of the least price.

    Attributes
    ----------
    sources, tokens : ndarray of int64, shape (arrived,)
        Rank and number of each arrived row where it began.  Rows arrive in the
        order of these.

    Raises
    ------
    UsageError
        If a destination is no rank.
    Disagreement
        On every rank, if ranks ask for different algorithms.

    Notes
    -----
    A route is of the ranks that made it.  After a recovery its calls raise
    `Revoked`; make it anew.

    References
    ----------
    Hwang and others, Tutel: Adaptive Mixture-of-Experts at Scale, MLSys 2023.
    Yao and others, Exploiting Inter-Layer Expert Affinity for Accelerating
    Mixture-of-Experts Model Inference (ExFlow), IPDPS 2024: `then`.
    """

    def __init__(
        self, comm: Communicator, destinations: ArrayLike, *, algorithm: str = AUTO
    ) -> None:
        self._open(comm, destinations, algorithm, None)

    def _open(
        self, comm: Communicator, destinations: ArrayLike, algorithm: str, before: Route | None
    ) -> None:
        self._comm, self._before, self._algorithm = comm, before, algorithm
        self._home: RowExchange | None = None
        self._number = open_plans_of(self._service).next_route()
        self._rows: RowExchange = serve_in_one_piece(
            self._service, _MAKE, self._made, destinations, algorithm
        )
        self.sources, self.tokens = self._rows.sources, self._rows.tokens

    @property
    def _service(self) -> Service:
        return service_of(self._comm, "Route")

    @property
    def arrived(self) -> int:
        """How many rows arrive on this rank."""
        return len(self.sources)

    def __repr__(self) -> str:
        return f"<Route: {self._rows.n_rows} tokens given, {self.arrived} arrive>"

    def _made(
        self, operation: str, destinations: ArrayLike, algorithm: Any
    ) -> tuple[RowExchange, str]:
        service, before = self._service, self._before
        service.guard.refuse(operation)
        given, origins = None, None
        if before is not None:
            before._rows.refuse_moved("Route.then")
            given, origins = before.arrived, origin_of(before.sources, before.tokens)

        def read() -> tuple[str, tuple[int, Ints, Ints]]:
            name = known_algorithm("Route", algorithm)
            return name, read_destinations(destinations, service.rank, service.size, given)

        name, (n_rows, rows, ranks) = read_by_all(service, "Route", 0, read)
        agreed_sum(
            service, "Route", f"Route(algorithm {name!r}, onward {before is not None})", _NOTHING
        )
        made = RowExchange(service, n_rows, rows, ranks, origins=origins, algorithm=name)
        return made, name

    def then(self, destinations: ArrayLike) -> Route:
        """Route the arrived rows onward, without a way back between.

        Collective.

        Parameters
        ----------
        destinations : array_like of int, shape (arrived, k)
            Ranks that want each arrived row.

        Returns
        -------
        Route
            Takes rows from where this one brings them.  Its `combine` adds all rows
            of a token, and brings the sum to the token's first source at once.
        """
        onward = Route.__new__(Route)
        onward._open(self._comm, destinations, self._algorithm, self)
        return onward

    def dispatch(self, x: ArrayLike) -> NDArray[Any]:
        """Send each row to the ranks that want it.

        Collective.

        Parameters
        ----------
        x : array_like, shape (tokens, ...)
            The rows, of any type; the shape of a row is equal on all ranks.

        Returns
        -------
        ndarray, shape (arrived, ...)
            A row for each token that this rank wants, ordered by source, then token;
            on a device if this rank's ``x`` lies there.

        Raises
        ------
        UsageError
            If there are more or fewer rows than tokens.
        Disagreement
            On every rank, if ranks pass rows of unlike shape or type.
        """
        return serve_in_one_piece(self._service, _DISPATCH, self._dispatched, x)

    def _dispatched(self, operation: str, x: ArrayLike) -> tuple[NDArray[Any], str]:
        service = self._service
        service.guard.refuse(operation)
        self._rows.refuse_moved("Route.dispatch")
        rows, place = read_by_all(
            service, "Route.dispatch", 0, _read_rows, service, "Route.dispatch", x,
            self._rows.n_rows,
        )  # fmt: skip
        agreed_sum(service, "Route.dispatch", self._said("dispatch", rows), _NOTHING)
        nbytes = _row_bytes(rows)
        shape = (self.arrived, *rows.shape[1:])
        if nbytes == 0:
            return placed(np.empty(shape, rows.dtype), place), AUTO
        found, name = self._rows.dispatch(operation, _as_bytes(rows), RowForm(nbytes))
        return placed(found.view(rows.dtype).reshape(shape), place), name

    def combine(self, rows: ArrayLike) -> NDArray[Any]:
        """Add the rows of all ranks that got a token, where the token came from.

        Collective.

        Parameters
        ----------
        rows : array_like, shape (arrived, ...)
            A row for each one that arrived; numbers.

        Returns
        -------
        ndarray, shape (tokens, ...)
            The sum for each token, 0 for one that went nowhere; of a route made by
            `then`, for the tokens of the first one.  On a device if this rank's
            ``rows`` lie there.  Terms are added in a fixed
            order: those of a node by rank, then nodes; on a deterministic
            communicator by rank, without relays where the algorithm is "auto".  Half
            precision is added in float32, and rounded where a sum leaves a rank.

        Raises
        ------
        UsageError
            If there are more or fewer rows than arrived, or if they are no numbers.
        Disagreement
            On every rank, if ranks pass rows of unlike shape or type.
        """
        return serve_in_one_piece(self._service, _COMBINE, self._combined, rows)

    def _combined(self, operation: str, x: ArrayLike) -> tuple[NDArray[Any], str]:
        service = self._service
        service.guard.refuse(operation)
        self._rows.refuse_moved("Route.combine")
        rows, place, name = read_by_all(
            service, "Route.combine", 0, _read_numbers, service, x, self.arrived
        )
        agreed_sum(service, "Route.combine", self._said("combine", rows), _NOTHING)
        home, nbytes, dtype = self._way_home(), _row_bytes(rows), TYPES.index(name)
        shape = (home.n_rows, *rows.shape[1:])
        if nbytes == 0:
            return placed(np.empty(shape, rows.dtype), place), AUTO
        data = _as_bytes(rows)
        if self._before is not None:
            data = self._added_here(data, nbytes, dtype)
        found, algorithm = home.combine(operation, data, RowForm(nbytes, dtype=dtype))
        return placed(found.view(rows.dtype).reshape(shape), place), algorithm

    def _said(self, method: str, rows: NDArray[Any]) -> str:
        """Say in words what ranks must agree on: routes count alike on all ranks."""
        return f"{method} of route {self._number}, rows of {_described(rows)}"

    def _way_home(self) -> RowExchange:
        """Give the exchange whose senders are the first sources; collective at first."""
        if self._before is None:
            return self._rows
        if self._home is None:
            first = self._before
            while first._before is not None:
                first = first._before
            self._home = way_home(
                self._service, first._rows.n_rows, self.sources, self.tokens, self._algorithm
            )
        return self._home

    def _added_here(self, data: Bytes, nbytes: int, dtype: int) -> Bytes:
        """Add the rows of one token that are here: two holders may have sent them."""
        origins, where = np.unique(origin_of(self.sources, self.tokens), return_inverse=True)
        if len(origins) == self.arrived:
            return data
        total = np.empty(len(origins) * nbytes, np.uint8)
        head = np.array([OPS.index("SUM"), dtype, len(origins), self.arrived])
        row_combine(head, where.astype(np.int64), data, total)
        return total


def read_destinations(
    destinations: ArrayLike, rank: int, size: int, n_rows: int | None = None
) -> tuple[int, Ints, Ints]:
    """Read which ranks want each row.

    Local.

    Parameters
    ----------
    destinations : array_like of int, shape (rows, k)
        As for `Route`.
    rank, size : int
        This rank, and how many there are.
    n_rows : int, optional
        How many rows there must be.

    Returns
    -------
    n_rows : int
        How many rows there are.
    rows, ranks : ndarray of int64
        Each pair once, sorted by row, then rank.
    """
    (found,), _ = arrays_on_host([destinations], "Route")
    given = argument.array("Route", "destinations", found)
    if given.shape == (0,):  # an empty list
        given = given.reshape(0, 0)
    if given.ndim != 2 or (given.dtype.kind not in "iu" and given.size):
        raise UsageError(
            "Route",
            f"destinations of {given.dtype} and shape {given.shape} on rank {rank}",
            "give whole numbers, shape (tokens, k)",
        )
    if n_rows is not None and len(given) != n_rows:
        raise UsageError(
            "Route.then",
            f"destinations of {len(given)} rows on rank {rank}, where {n_rows} have arrived",
            "give ranks for each arrived row",
        )
    wrong = (given < -1) | (given >= size)
    if wrong.any():
        token, place = np.argwhere(wrong)[0].tolist()
        raise UsageError(
            "Route",
            f"destination {given[token, place]} of token {token} on rank {rank}",
            f"give ranks from 0 to {size - 1}, or -1 for nobody",
        )
    table = np.sort(given.astype(np.int64, copy=False), axis=1)
    is_new = table >= 0
    is_new[:, 1:] &= table[:, 1:] != table[:, :-1]
    return len(table), np.nonzero(is_new)[0], table[is_new]


def _read_numbers(
    service: Service, x: ArrayLike, n_rows: int
) -> tuple[NDArray[Any], DevicePlace | None, str]:
    """Read rows that can be added; tells also where they lie, and the name of a type."""
    rows, place = _read_rows(service, "Route.combine", x, n_rows)
    name = _REAL.get(rows.dtype.name, rows.dtype.name)
    if name not in TYPES or not rows.dtype.isnative:
        remedy = f"one of {', '.join((*TYPES, *_REAL))}"
        raise UsageError("Route.combine", f"rows of {rows.dtype}", remedy)
    return rows, place, name


def _read_rows(
    service: Service, where: str, x: ArrayLike, n_rows: int
) -> tuple[NDArray[Any], DevicePlace | None]:
    """Read rows, and where they lie; UsageError if there are not so many."""
    rank = service.rank
    (found,), (place,) = read_arrays(service, [x], where)
    rows = argument.array(where, "x", found)
    if rows.ndim == 0 or len(rows) != n_rows:
        shown = f"{len(rows)} rows" if rows.ndim else "one number"
        raise UsageError(where, f"{shown} on rank {rank}", f"give {n_rows} rows, as the route has")
    if rows.dtype.hasobject:
        raise UsageError(where, f"rows of {rows.dtype}", "give rows of numbers or bytes")
    return np.ascontiguousarray(rows), place


def _described(rows: NDArray[Any]) -> str:
    return f"shape {rows.shape[1:]} and type {rows.dtype}"


def _row_bytes(rows: NDArray[Any]) -> int:
    return math.prod(rows.shape[1:]) * rows.itemsize


def _as_bytes(rows: NDArray[Any]) -> Bytes:
    return rows.reshape(-1).view(np.uint8)
