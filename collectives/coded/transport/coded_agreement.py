"""What the ranks of a `CodedAllreduce` agree on before anything is computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from mpi4py import MPI

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.transport.recorder import Recorder
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.comms import argument
from closeranks.errors import CodeError, Disagreement, PeerLost, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.gradient_layout import GradientLayout
    from closeranks.comms.topology.topology import Topology

_WHERE: Final = "CodedAllreduce"
_STEP: Final = "CodedAllreduce.step"


def agree_on_arguments(
    comm: Any,
    scheme: object,
    ahead: object,
    max_noise: object,
    record: object,
    *,
    anew: bool = False,
) -> Scheme:
    """Read the arguments; raise on all ranks what one of them cannot use.

    Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    scheme, ahead, max_noise, record : object
        As given.
    anew : bool
        Whether the ranks are others than those that the scheme was made for: then
        it is made anew.

    Returns
    -------
    Scheme
        With ``n`` as many workers as there are ranks.

    Raises
    ------
    UsageError, Disagreement
        On all ranks.
    """
    argument.instance(_WHERE, "comm", comm, Communicator, "give what closeranks.init returned")
    if comm == MPI.COMM_NULL:
        raise UsageError(_WHERE, "comm is MPI.COMM_NULL", "give a communicator")
    found, problem = None, None
    try:
        if anew:
            scheme = _made_anew(comm.Get_size(), scheme)
        found = _read(comm.Get_size(), scheme, ahead, max_noise)
        if record is not None:
            argument.instance(_WHERE, "record", record, Recorder, "give a Recorder, or None")
    except UsageError as wrong:
        problem = wrong
    said = ""
    if found is not None:
        name = scheme if isinstance(scheme, str) else described(found)
        said = f"{name}, ahead={operator.index(ahead)}, max_noise={max_noise}"  # type: ignore[arg-type]
    told = comm.allgather((problem, said))
    for met, _ in told:
        if met is not None:
            raise met
    _raise_unlike(comm, _WHERE, [words for _, words in told])
    assert found is not None
    return found


def _read(size: int, scheme: object, ahead: object, max_noise: object) -> Scheme:
    if isinstance(scheme, str) and scheme == "auto":
        scheme = Uncoded(size)
    if isinstance(scheme, GradientCode):
        scheme = GradientCoding.of(scheme)
    argument.instance(_WHERE, "scheme", scheme, Scheme, "give a scheme, a gradient code or 'auto'")
    assert isinstance(scheme, Scheme)
    if scheme.n != size:
        problem = f"{type(scheme).__name__} has {scheme.n} workers, the communicator {size} ranks"
        raise UsageError(_WHERE, problem, f"make it with n={size}")
    argument.whole(_WHERE, "ahead", ahead, least=1, below=1025)
    if max_noise is not None and not (isinstance(max_noise, int | float) and max_noise > 0):
        problem = f"max_noise is {argument.shown(max_noise)}"
        raise UsageError(_WHERE, problem, "give a number above 0, or None")
    return scheme.copy()


def _made_anew(size: int, scheme: object) -> Scheme | str:
    """Give the scheme for the ranks that a recovery has left or brought."""
    if isinstance(scheme, str):
        return scheme
    assert isinstance(scheme, Scheme)
    try:
        return scheme.for_workers(size)
    except UsageError as error:
        remedy = "make a CodedAllreduce for the ranks that are there now"
        raise UsageError(_STEP, error.problem, remedy) from error


def described(scheme: Scheme) -> str:
    """Say which scheme it is, alike on ranks that mean the same.  Local."""
    named: dict[str, object] = {}
    for name, value in vars(scheme).items():
        if isinstance(value, tuple) and not name.startswith("_"):  # may have an item a worker
            named[name] = f"{crc32(repr(value).encode()):x}"
        elif isinstance(value, int | float | str) and not name.startswith("_"):
            named[name] = value
    code = getattr(scheme, "code", None)
    if code is not None:
        named["code"] = f"{type(code).__name__}:{crc32(code.matrix.tobytes()):x}"
    return f"{type(scheme).__name__}({', '.join(f'{k}={v}' for k, v in sorted(named.items()))})"


def _raise_unlike(comm: Communicator, where: str, said: Sequence[str]) -> None:
    """Raise on all ranks if they have not said the same."""
    if len(set(said)) > 1:
        told = Disagreement(where, dict(enumerate(said)))
        if comm.checks:
            raise told
        raise UsageError(where, told.problem, "pass the same on every rank")


def agree_on_layout(
    comm: Communicator, layout: GradientLayout | None, error: BaseException | None
) -> GradientLayout:
    """Agree on the layout of gradients.

    Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    layout : GradientLayout or None
        Of this rank's first gradient; None if it computes nothing.
    error : BaseException or None
        What has kept it from one.

    Returns
    -------
    GradientLayout
        The same on all ranks.

    Raises
    ------
    PeerLost
        If ``compute_part`` has raised on another rank; here its error.
    UsageError, Disagreement
        On all ranks, if the layouts differ.
    """
    words = None if error is None else f"{type(error).__name__}: {error}"
    told = comm.allgather((layout, words))
    if error is not None:
        raise error
    for rank, (_, why) in enumerate(told):
        if why is not None:
            raise PeerLost(_STEP, [rank], cause=why)
    known = {rank: found for rank, (found, _) in enumerate(told) if found is not None}
    if len({found.key for found in known.values()}) > 1:
        differing = Disagreement(_STEP, known, "give gradients of one layout on every rank")
        if comm.checks:
            raise differing
        raise UsageError(_STEP, differing.problem, differing.remedy)
    found: GradientLayout = next(iter(known.values()))
    return found


def order_of_workers(
    scheme: Scheme, cells: Sequence[tuple[int, ...]], topology: Topology
) -> list[int]:
    """Choose the rank of each worker.

    Local, the same on all ranks.  The workers of a group that help each other
    are ranks of one node, as far as that goes.  A gradient code survives the
    loss of any node, if it can.

    Parameters
    ----------
    scheme : Scheme
        The scheme.
    cells : sequence of tuple of int
        Ranks of each node.
    topology : Topology
        Where they sit.

    Returns
    -------
    list of int
        Worker -> rank.
    """
    order = [rank for cell in cells for rank in cell]
    code = getattr(scheme, "code", None)
    if code is None or len(cells) == 1:
        return order
    try:
        placed: list[int] = code.place(topology).tolist()
    except CodeError:  # then it helps against slow ranks only
        return order
    return placed
