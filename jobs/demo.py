"""``closeranks demo``: the main job in miniature, on real data and real ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from closeranks.errors import Error
from closeranks.jobs import digits, program
from closeranks.jobs.launch import launch_all
from closeranks.jobs.run import prepare

if TYPE_CHECKING:
    from closeranks.collectives.communicator import Communicator

Array = NDArray[Any]
#: Adds an array up over all ranks, in place.
Sum = Callable[[Array], None]
BATCH, RATE, MOMENTUM = 60, 0.2, 0.9
#: How far the weights of N ranks may be from those of one rank.
TOLERANCE = 1e-5


@click.command()
@click.option("-n", "--ranks", type=click.IntRange(1), default=4, help="Number of ranks.")
@click.option("--epochs", type=click.IntRange(1), default=12, help="Passes over the data.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the figures here.")
def demo(ranks: int, epochs: int, report: Path | None) -> None:
    """Train a small network on handwritten digits, data-parallel over N ranks."""
    if program.inside_a_job():
        _train_here(epochs, report)
        return
    words = ["closeranks", "demo", "--epochs", str(epochs)]
    if report:
        words += ["--json", str(report.resolve())]
    python = (sys.executable, "-m", *words)
    raise SystemExit(launch_all(prepare(ranks, python), program.resolve(python)))


def _train_here(epochs: int, report: Path | None) -> None:
    """Train as one rank of the job."""
    import closeranks

    with closeranks.init() as comm:
        _say(comm, str(comm.hierarchy))
        figures = _train(comm, epochs)
        if report and comm.rank == 0:
            report.write_text(json.dumps([figures], indent=1))


def _train(comm: Communicator, epochs: int) -> dict[str, object]:
    xp = _namespace()
    data, network = digits.load(xp), digits.Network(xp)

    def over_ranks(array: Array) -> None:
        from mpi4py import MPI

        comm.Allreduce(MPI.IN_PLACE, array)

    def progress(epoch: int, loss: float) -> None:
        accuracy = network.accuracy(data.train_x, data.train_y)
        _say(comm, f"epoch {epoch + 1:2d}/{epochs}  loss {loss:.4f}  training {accuracy:.3f}")

    fit(network, data, epochs, part=(comm.rank, comm.size), add_up=over_ranks, after=progress)
    apart = _compare(comm, network, data, epochs)
    accuracy = network.accuracy(data.test_x, data.test_y)
    explained = comm.explain("allreduce", network.parameters.nbytes, "float64")
    _say(comm, f"{comm.size}-rank weights equal the 1-rank weights: largest difference {apart:.1e}")
    _say(comm, f"gradient all-reduce of {network.parameters.nbytes} B: {explained.algorithm}")
    sent = explained.bytes_per_level or {"inside the library": network.parameters.nbytes}
    _say(comm, "bytes per level: " + ", ".join(f"{name} {n}" for name, n in sent.items()))
    _say(comm, f"test accuracy {accuracy:.3f}")
    return {
        "ranks": comm.size,
        "epochs": epochs,
        "test_accuracy": accuracy,
        "largest_difference": apart,
        "algorithm": explained.algorithm,
        "bytes_per_level": explained.bytes_per_level,
    }


def fit(
    network: digits.Network,
    data: digits.Digits,
    epochs: int,
    *,
    part: tuple[int, int] = (0, 1),
    add_up: Sum | None = None,
    after: Callable[[int, float], None] | None = None,
) -> None:
    """Train by momentum descent on global batches, of which this rank takes a part.

    Parameters
    ----------
    network : Network
        Trained in place.
    data : Digits
        The digits.
    epochs : int
        Passes over the training samples.
    part : (int, int)
        This rank and the number of ranks.
    add_up : callable, optional
        Adds a host array up over the ranks in place; called once a batch.
    after : callable, optional
        ``after(epoch, mean_loss)``, once an epoch.
    """
    rank, size = part
    speed = np.zeros(network.parameters.size)
    for epoch in range(epochs):
        total = 0.0
        for batch in digits.batches(len(data.train_y), BATCH, epoch):
            mine = batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]
            gradient, loss = network.gradient(data.train_x[mine], data.train_y[mine])
            # One message carries gradient and loss.
            message = np.append(_host(gradient), loss)
            if add_up:
                add_up(message)
            total += message[-1]
            speed = MOMENTUM * speed - RATE * message[:-1] / len(batch)
            network.parameters += network.xp.asarray(speed)
        if after:
            after(epoch, total / len(data.train_y))


def _compare(
    comm: Communicator, network: digits.Network, data: digits.Digits, epochs: int
) -> float:
    """Train the same batches on rank 0 alone; all learn the largest difference."""
    mine = _host(network.parameters)
    reference = mine.copy()
    if comm.rank == 0:
        _say(comm, "training the same batches on one rank to compare the weights")
        alone = digits.Network(network.xp)
        fit(alone, data, epochs)
        reference = _host(alone.parameters)
    comm.Bcast(reference)
    apart = float(max(comm.allgather(float(np.abs(mine - reference).max()))))
    if not apart <= TOLERANCE:
        raise Error("demo", f"weights differ from one rank's by {apart:.2e}, allowed {TOLERANCE}")
    return apart


def _namespace() -> ModuleType:
    """CuPy where it is installed and sees a GPU, else NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    found: ModuleType = cupy if cupy.cuda.is_available() else np
    return found


def _host(array: Array) -> Array:
    """Give the array as NumPy's."""
    host: Array = array if isinstance(array, np.ndarray) else array.get()
    return host


def _say(comm: Communicator, line: str) -> None:
    if comm.rank == 0:
        click.echo(line)
