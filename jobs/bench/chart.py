"""Draws rows: times over sizes or densities, and the matrix of bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeranks.errors import Unavailable, UsageError
from closeranks.jobs.bench.benches.point_to_point import bandwidths
from closeranks.jobs.bench.measuring.number_text import show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

SUFFIXES = (".svg", ".png", ".pdf")
_COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_BEST = "#7f7f7f"
_NATIVE = "#d55e00"
_LIBRARY = (
    ("native_us_p50", "MPI library, defaults", _NATIVE),
    ("best_us_p50", "MPI library, best setting", _BEST),
)


def check_drawable(path: Path) -> None:
    """Refuse a drawing that could not be made in the end; local.

    Parameters
    ----------
    path : Path
        Where it shall go.

    Raises
    ------
    UsageError
        If the suffix is none of `SUFFIXES`.
    Unavailable
        If matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            "bench --draw", f"{path.name} has no known suffix", f"end it with {', '.join(SUFFIXES)}"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as cause:
        raise Unavailable("matplotlib", "pip install closeranks[plot]") from cause


def draw(path: Path, rows: Sequence[Row], subtitle: str) -> None:
    """Draw all rows into one file; local, one rank.

    Parameters
    ----------
    path : Path
        Where it goes; the suffix chooses the form.
    rows : sequence of dict
        Rows of the suite.
    subtitle : str
        Says where it was measured.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["name"] for row in rows))
    figure = Figure(figsize=(11, 3.9 * len(names) + 0.5), layout="constrained")
    figure.suptitle(subtitle, fontsize=9, color="#444444")
    parts = figure.subfigures(len(names), 1, squeeze=False)[:, 0]
    for name, part in zip(names, parts, strict=True):
        some = [row for row in rows if row["name"] == name]
        if name == "matrix":
            _draw_matrix(part, some)
        elif "pattern" in some[0]:
            _draw_patterns(part, name, some)
        elif "density" in some[0]:
            _draw_densities(part, name, some)
        elif any(row["size_bytes"] for row in some):
            _draw_sizes(part, name, some)
        else:
            _draw_bars(part, name, some)
    figure.savefig(path)


def _draw_sizes(figure: Any, name: str, rows: list[Row]) -> None:
    """Draw time on the left; speedup, or else bandwidth, on the right."""
    left, right = figure.subplots(1, 2)
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    compared = any("speedup" in row or "speedup_best" in row for row in rows)
    _library(left, [row for row in rows if row["algorithm"] == algorithms[0]])
    for algorithm, colour in zip(algorithms, _COLOURS * len(algorithms), strict=False):
        some = [row for row in rows if row["algorithm"] == algorithm]
        sizes = [row["size_bytes"] for row in some]
        _line(left, some, "time_us_p50", algorithm, colour, "o-")
        low, high = ([row[f"time_us_{end}"] for row in some] for end in ("min", "p99"))
        left.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        if compared:
            _line(right, some, "native_vs_native", "the library over itself", _BEST, "-")
            _line(right, some, "speedup", f"{algorithm} over defaults", colour, "o-")
            _line(right, some, "speedup_best", f"{algorithm} over best setting", colour, "s:")
        else:
            _line(right, some, "busbw_GBps", algorithm, colour, "o-")
    left.set(title=f"{name}: time, median (shade: minimum to p99)", ylabel="us", yscale="log")
    keys = ("time_us_p50", *(key for key, _, _ in _LIBRARY))
    medians = [value for key in keys for value in _known(rows, key)]
    left.set_ylim(0.5 * min(medians), 3 * max(medians))
    if compared:
        right.axhline(1, color="black", linewidth=0.8)
        right.set(title=f"{name}: times faster than the library", ylabel="speedup", ylim=(0, None))
    else:
        right.set(title=f"{name}: bus bandwidth", ylabel="GB/s", yscale="log")
    for axes in (left, right):
        _finish(axes, sorted({row["size_bytes"] for row in rows}))


def _draw_densities(figure: Any, name: str, rows: list[Row]) -> None:
    """Draw time over density on the left, beside whole vectors; speedup on the right."""
    left, right = figure.subplots(1, 2)
    sizes = sorted({row["size_bytes"] for row in rows})
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    series = [(size, algorithm) for size in sizes for algorithm in names]
    for (size, algorithm), colour in zip(series, _COLOURS * len(series), strict=False):
        some = [row for row in rows if (row["size_bytes"], row["algorithm"]) == (size, algorithm)]
        some.sort(key=lambda row: row["density"])
        label = algorithm if len(sizes) == 1 else f"{algorithm}, {show_bytes(size)}"
        _line(left, some, "time_us_p50", label, colour, "o-", over="density")
        _line(right, some, "speedup", label, colour, "o-", over="density")
    for size in sizes:
        some = sorted(
            (row for row in rows if row["size_bytes"] == size), key=lambda row: row["density"]
        )
        _line(
            left, some, "dense_us", "Allreduce of the whole vector", _NATIVE, "s--", over="density"
        )
        _line(left, some, "wire_us", "whole vector at the wire's rate", _BEST, "-", over="density")
    shown = ", ".join(show_bytes(size) for size in sizes)
    left.set(title=f"{name}, vector of {shown}: time, median", ylabel="us", yscale="log")
    right.axhline(1, color="black", linewidth=0.8)
    right.set(title=f"{name}: times faster than Allreduce", ylabel="speedup", yscale="log")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="entries of a rank")
        _percent(axes, [row["density"] for row in rows if row["density"]])
        _dress(axes)


def _percent(axes: Axes, shares: list[float]) -> None:
    """Put powers of ten, as percent, on the horizontal axis."""
    first, last = floor(log10(min(shares, default=1))), ceil(log10(max(shares, default=1)))
    powers = range(first, last + 1)
    axes.set_xticks([10.0**one for one in powers], [f"{10.0 ** (one + 2):.3g}%" for one in powers])
    axes.minorticks_off()


def _draw_bars(figure: Any, name: str, rows: list[Row]) -> None:
    """Draw what has no size: one bar a time."""
    bars = [(row["algorithm"], row["time_us_p50"], _COLOURS[0]) for row in rows]
    for key, label, colour in _LIBRARY:
        bars += [(label, value, colour) for value in _known(rows, key)[:1]]
    axes = figure.subplots(1, 1)
    labels, values, colours = zip(*reversed(bars), strict=True)
    drawn = axes.barh(labels, values, color=colours, height=0.6)
    axes.bar_label(drawn, fmt=" %.3g")
    axes.set(title=f"{name}: time, median", xlabel="us")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_patterns(figure: Any, name: str, rows: list[Row]) -> None:
    """Draw calls that change: our bar and the library's, of settled rows."""
    settled = [row for row in reversed(rows) if row["block"] == "settled"]
    axes = figure.subplots(1, 1)
    native, label, colour = _LIBRARY[0]
    for key, side, fill, shift in (
        ("us_per_call_p50", "closeranks", _COLOURS[0], 0.2),
        (native, label, colour, -0.2),
    ):
        places = [at + shift for at in range(len(settled))]
        drawn = axes.barh(places, [row[key] for row in settled], 0.4, color=fill, label=side)
        axes.bar_label(drawn, fmt=" %.3g", fontsize=6)
    axes.set_yticks(range(len(settled)), [row["pattern"] for row in settled])
    axes.set(title=f"{name}: time of a call, median", xlabel="us", xscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _known(rows: Sequence[Row], key: str) -> list[float]:
    """Return the values of a column where it was measured."""
    return [row[key] for row in rows if row.get(key) is not None]


def _library(axes: Axes, rows: list[Row]) -> None:
    """Draw the library's own times."""
    for (key, label, colour), style in zip(_LIBRARY, ("^--", "s:"), strict=True):
        _line(axes, rows, key, label, colour, style)


def _line(
    axes: Axes, rows: list[Row], key: str, label: str, colour: str, style: str,
    over: str = "size_bytes",
) -> None:  # fmt: skip
    """Draw one column over another, where it was measured; name it once."""
    points = [(row[over], row[key]) for row in rows if row.get(key) is not None]
    if not points:
        return
    x, y = zip(*points, strict=True)
    if label in axes.get_legend_handles_labels()[1]:
        label = "_"
    axes.plot(x, y, style, color=colour, label=label, markersize=4, linewidth=1.4)


def _finish(axes: Axes, sizes: list[int]) -> None:
    """Put sizes on the horizontal axis and a grid behind."""
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes")
    step = -(-len(sizes) // 9)
    shown = sizes[::step]
    axes.set_xticks(shown, [show_bytes(size) for size in shown])
    axes.minorticks_off()
    _dress(axes)


def _dress(axes: Axes) -> None:
    """Put a grid behind the lines, and their names beside them."""
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)


def _draw_matrix(figure: Any, rows: list[Row]) -> None:
    """Draw the largest size as a square of colours."""
    largest = max(row["size_bytes"] for row in rows)
    square = bandwidths([row for row in rows if row["size_bytes"] == largest])
    axes = figure.subplots(1, 1)
    image = axes.imshow(square, cmap="viridis", vmin=0)
    axes.set(title=f"matrix, {show_bytes(largest)}", xlabel="receiver", ylabel="sender")
    figure.colorbar(image, ax=axes, label="GB/s")
    if len(square) <= 16:
        axes.set_xticks(range(len(square)))
        axes.set_yticks(range(len(square)))
        for source, row in enumerate(square):
            for target, value in enumerate(row):
                if source != target:
                    axes.text(target, source, f"{value:.2g}", ha="center", va="center", fontsize=7)
