"""``closeranks demo``: the main job in miniature, on real data and real ranks.

A small network learns handwritten digits.  Data, `Network` and batches know
nothing of ranks; their caller sums the gradients.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from closeranks.comms.mpi import ulfm
from closeranks.errors import Error, Unavailable
from closeranks.jobs.launch import program, target
from closeranks.jobs.launch.launch import launch_all
from closeranks.jobs.launch.run_command import prepare

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator


Array = NDArray[Any]
#: Widths of the layers: 8 x 8 pixels in, ten digits out.
WIDTHS = (64, 64, 10)


class Digits(NamedTuple):
    """Real handwritten digits, split once.

    Attributes
    ----------
    train_x, test_x : ndarray, shape (n, 64), dtype float64
        Pixels, 0 to 1.
    train_y, test_y : ndarray, shape (n,), dtype int64
        The digits.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load(xp: ModuleType = np) -> Digits:
    """Load scikit-learn's digits: a random stratified split with a fixed seed.

    Parameters
    ----------
    xp : module
        NumPy or CuPy: where the arrays live.

    Returns
    -------
    Digits
        Images scaled to 0..1, three quarters for training.

    Raises
    ------
    Unavailable
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as cause:
        raise Unavailable("scikit-learn", "pip install 'closeranks[demo]'") from cause
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        x / 16.0, y, test_size=0.25, random_state=0, stratify=y
    )
    return Digits(*(xp.asarray(part) for part in (train_x, train_y, test_x, test_y)))


class Network:
    """Two dense layers with a rectifier between them, softmax at the end.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.

    Attributes
    ----------
    parameters : ndarray, shape (4810,), dtype float64
        All weights and biases in one run, so that one all-reduce moves them.
    """

    def __init__(self, xp: ModuleType = np) -> None:
        self.xp = xp
        first, hidden, last = WIDTHS
        self.shapes = ((first, hidden), (hidden,), (hidden, last), (last,))
        random = np.random.default_rng(0)
        start = [random.normal(0, np.sqrt(2 / shape[0]), shape) for shape in self.shapes]
        start[1][:] = start[3][:] = 0
        self.parameters = xp.asarray(np.concatenate([part.ravel() for part in start]))

    def gradient(self, x: Array, y: Array) -> tuple[Array, float]:
        """Return the summed gradient and the summed loss of some samples.

        Parameters
        ----------
        x : ndarray, shape (n, 64)
            Pixels; n may be 0.
        y : ndarray, shape (n,)
            Digits.

        Returns
        -------
        gradient : ndarray, shape (4810,), dtype float64
            Sum over the samples.
        loss : float
            Sum of cross entropies.
        """
        xp, rows = self.xp, self.xp.arange(len(y))
        w1, b1, w2, b2 = self._parts()
        hidden = xp.maximum(x @ w1 + b1, 0)
        odds = _softmax(xp, hidden @ w2 + b2)
        loss = -xp.log(odds[rows, y]).sum()
        odds[rows, y] -= 1
        back = (odds @ w2.T) * (hidden > 0)
        parts = (x.T @ back, back.sum(axis=0), hidden.T @ odds, odds.sum(axis=0))
        return xp.concatenate([part.ravel() for part in parts]), float(loss)

    def accuracy(self, x: Array, y: Array) -> float:
        """Share of samples with their digit recognised."""
        w1, b1, w2, b2 = self._parts()
        scores = self.xp.maximum(x @ w1 + b1, 0) @ w2 + b2
        return float((scores.argmax(axis=1) == y).mean())

    def _parts(self) -> list[Array]:
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)]).tolist()
        return [
            self.parameters[low:high].reshape(shape)
            for low, high, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def _softmax(xp: ModuleType, scores: Array) -> Array:
    powers = xp.exp(scores - scores.max(axis=1, keepdims=True)) if len(scores) else scores
    odds: Array = powers / powers.sum(axis=1, keepdims=True)
    return odds


def batches(samples: int, size: int, epoch: int) -> Iterator[Array]:
    """Yield the global batches of an epoch: the same on every rank.

    Parameters
    ----------
    samples : int
        Training samples.
    size : int
        Samples of a batch; the last one may be smaller.
    epoch : int
        Seeds the order.

    Yields
    ------
    ndarray, dtype int64
        Sample numbers.
    """
    order = np.random.default_rng(epoch).permutation(samples)
    for low in range(0, samples, size):
        yield order[low : low + size]


#: Makes what one rank of so many has to add.
Make = Callable[[int, int], Array]
#: Adds up what all ranks make.
Sum = Callable[[Make], Array]
BATCH, RATE, MOMENTUM = 60, 0.2, 0.9
#: How far the weights of N ranks may be from those of one rank.
TOLERANCE = 1e-5


@click.command()
@click.option("-n", "--ranks", type=click.IntRange(1), default=4, help="Number of ranks.")
@click.option("--epochs", type=click.IntRange(1), default=12, help="Passes over the data.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the figures here.")
def demo(ranks: int, epochs: int, report: Path | None) -> None:
    """Train a small network on handwritten digits, data-parallel over N ranks.

    In the second act, with Open MPI, one of the ranks kills itself half-way; the
    others go on and must come to the same weights.
    """
    target.check("demo", report)
    if program.inside_a_job():
        _train_here(epochs, report)
        return
    here = Path.cwd()  # which other nodes see, too, if the first rank is there
    with tempfile.TemporaryDirectory(dir=here if os.access(here, os.W_OK) else None) as folder:
        figures = []
        for act, faults in enumerate((False, True)):
            path = Path(folder) / f"{act}.json"
            words = ("closeranks", "demo", "--epochs", str(epochs), "--json", str(path))
            python = (sys.executable, "-m", *words)
            launch = prepare(ranks, python)
            if faults and (launch.launcher.kind != "openmpi" or ranks == 1):
                click.echo("no second act, in which a rank dies: it takes two, and Open MPI")
                break
            if faults:
                click.echo("\nsecond act: the last rank kills itself half-way")
                launch = prepare(ranks, python, faults=True)
            status = launch_all(launch, program.resolve(python))
            if not path.exists() or status:
                raise SystemExit(status or 1)
            figures += json.loads(path.read_text())
    if report:
        target.write("demo", report, json.dumps(figures, indent=1))


def _train_here(epochs: int, report: Path | None) -> None:
    """Train as one rank of the job; where ranks may die, one does."""
    import closeranks

    survives = ulfm.is_on()
    with closeranks.init(on_failure="shrink" if survives else "raise") as comm:
        _say(comm, str(comm.hierarchy))
        figures = _train(comm, epochs, _over_survivors if survives else _over_ranks)
        if report and comm.rank == 0:
            target.write("demo", report, json.dumps([figures], indent=1))


def _over_ranks(comm: Communicator, make: Make) -> Array:
    """Add up over the ranks."""
    from mpi4py import MPI

    message = make(comm.rank, comm.size)
    comm.Allreduce(MPI.IN_PLACE, message)
    return message


def _over_survivors(comm: Communicator, make: Make) -> Array:
    """Add up over the ranks that are left, again if a rank dies meanwhile."""
    for attempt in comm.attempts():
        with attempt:
            message = _over_ranks(comm, make)
    return message


def _train(
    comm: Communicator, epochs: int, add_up: Callable[[Communicator, Make], Array]
) -> dict[str, object]:
    xp = _namespace()
    data, network = load(xp), Network(xp)
    began_with = comm.size
    add: Sum = partial(add_up, comm)
    if add_up is _over_survivors and comm.size == 1:
        _say(comm, "no rank dies: it takes two")
    elif add_up is _over_survivors and comm.rank == comm.size - 1:
        add = _until(_middle(len(data.train_y), epochs), add)

    def progress(epoch: int, loss: float) -> None:
        accuracy = network.accuracy(data.train_x, data.train_y)
        ranks = f"  {comm.size} ranks" if comm.size != began_with else ""
        _say(
            comm, f"epoch {epoch + 1:2d}/{epochs}  loss {loss:.4f}  training {accuracy:.3f}{ranks}"
        )

    fit(network, data, epochs, add_up=add, after=progress)
    apart = _compare(comm, network, data, epochs)
    accuracy = network.accuracy(data.test_x, data.test_y)
    explained = comm.explain("allreduce", network.parameters.nbytes, "float64")
    _say(
        comm, f"{began_with}-rank weights equal the 1-rank weights: largest difference {apart:.1e}"
    )
    _say(comm, f"gradient all-reduce of {network.parameters.nbytes} B: {explained.algorithm}")
    sent = explained.bytes_per_level or {"inside the library": network.parameters.nbytes}
    _say(comm, "bytes per level: " + ", ".join(f"{name} {n}" for name, n in sent.items()))
    _say(comm, f"test accuracy {accuracy:.3f}")
    return {
        "ranks": began_with,
        "lost": began_with - comm.size,
        "epochs": epochs,
        "test_accuracy": accuracy,
        "largest_difference": apart,
        "algorithm": explained.algorithm,
        **{f"bytes_{level}": n for level, n in explained.bytes_per_level.items()},
    }


def _middle(samples: int, epochs: int) -> int:
    """Tell how many sums are half of them; at least one follows."""
    return epochs * len(list(batches(samples, BATCH, 0))) // 2


def _until(sums: int, add_up: Sum) -> Sum:
    """Add up so many times; then this process is killed."""
    done = count()

    def add(make: Make) -> Array:
        if next(done) == sums:
            os.kill(os.getpid(), signal.SIGKILL)
        return add_up(make)

    return add


def fit(
    network: Network,
    data: Digits,
    epochs: int,
    *,
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
    add_up : callable, optional
        Called once a batch with what makes a rank's part, given the rank and the
        number of ranks; gives the sum of all parts.  Without it there is one rank.
    after : callable, optional
        ``after(epoch, mean_loss)``, once an epoch.
    """
    speed = np.zeros(network.parameters.size)
    for epoch in range(epochs):
        total = 0.0
        for batch in batches(len(data.train_y), BATCH, epoch):
            make = partial(_part, network, data, batch)
            message = add_up(make) if add_up else make(0, 1)
            total += message[-1]
            speed = MOMENTUM * speed - RATE * message[:-1] / len(batch)
            network.parameters += network.xp.asarray(speed)
        if after:
            after(epoch, total / len(data.train_y))


def _part(network: Network, data: Digits, batch: Array, rank: int, size: int) -> Array:
    """Make one message of gradient and loss of a rank's part of a batch."""
    mine = batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]
    gradient, loss = network.gradient(data.train_x[mine], data.train_y[mine])
    return np.append(_host(gradient), loss)


def _compare(comm: Communicator, network: Network, data: Digits, epochs: int) -> float:
    """Train the same batches on rank 0 alone; all learn the largest difference."""
    mine = _host(network.parameters)
    reference = mine.copy()
    if comm.rank == 0:
        _say(comm, "training the same batches on one rank to compare the weights")
        alone = Network(network.xp)
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
