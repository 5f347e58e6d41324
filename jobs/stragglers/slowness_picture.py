"""A trace as a picture: how slow each rank was, and what schemes would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.errors import Unavailable
from closeranks.jobs.plan.placement_rows import seconds
from closeranks.jobs.stragglers.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Columns and rows of the heat map; more rounds or ranks share one, the slowest shows.
_MOST_COLUMNS: Final = 800
_MOST_ROWS: Final = 512
#: Schemes with a bar.
_MOST_BARS: Final = 12
_CHOSEN, _OTHER, _ESTIMATE = "#0072b2", "#9aa5b1", "#d9dee4"


def draw_forecast(found: Forecast, path: Path) -> None:
    """Draw a forecast; local.

    Parameters
    ----------
    found : Forecast
        What to draw.
    path : Path
        Ends with ``.svg`` or ``.png``.

    Raises
    ------
    Unavailable
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unavailable("drawings (matplotlib)", "pip install closeranks[plot]") from None
    rows = _shown(found.rows)
    figure = Figure(figsize=(11, 3.6 + 0.3 * len(rows)), layout="constrained")
    figure.suptitle(found.advice, fontsize=10, wrap=True)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 0.3 * len(rows) + 0.4))
    _heat_map(figure, upper, found.factors)
    _bars(lower, rows)
    figure.savefig(path, dpi=150)


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose what has a bar: the fastest, the chosen one and the uncoded sum."""
    kept = [row for row in rows if row["chosen"] or row["scheme"].startswith("Uncoded")]
    others = [row for row in rows if row not in kept][: _MOST_BARS - len(kept)]
    return sorted([*kept, *others], key=lambda row: float(row["seconds"]))


def _heat_map(figure: Figure, axes: Axes, factors: NDArray[np.float64]) -> None:
    """Draw rank over round, on a scale of factors that is even in their logarithm."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    rounds, n = factors.shape
    cells = _coarse(_coarse(factors, _MOST_COLUMNS).T, _MOST_ROWS)
    most = max(2.0, float(cells.max()))
    image = axes.imshow(
        cells, aspect="auto", interpolation="nearest", cmap="YlOrRd", origin="lower",
        norm=LogNorm(1, most, clip=True), extent=(0.5, rounds + 0.5, -0.5, n - 0.5),
    )  # fmt: skip
    axes.set(title="how slow each rank was", xlabel="round", ylabel="rank")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    ticks = [tick for tick in (1, 1.5, 2, 3, 5, 8, 15, 30, 100, 1000) if tick <= most]
    bar.set_ticks(ticks, labels=[f"{tick:g}x" for tick in ticks])
    bar.minorticks_off()


def _coarse(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Let neighbours of the first axis share a row; the largest shows."""
    firsts = np.unique(np.linspace(0, len(values), min(most, len(values)) + 1).astype(int)[:-1])
    return np.asarray(np.maximum.reduceat(values, firsts, axis=0))


def _bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw predicted seconds with their intervals, the fastest on top."""
    places = np.arange(len(rows))[::-1]
    values = np.array([row["seconds"] for row in rows])
    ends = np.array([[row["low_s"], row["high_s"]] for row in rows]).T
    colours = [
        _CHOSEN if row["chosen"] else _OTHER if row["exact"] else _ESTIMATE for row in rows
    ]  # fmt: skip
    errors = np.maximum(0, np.array([values - ends[0], ends[1] - values]))
    axes.barh(places, values, color=colours, xerr=errors, ecolor="#444444", capsize=2, height=0.7)
    for place, row, high in zip(places, rows, ends[1], strict=True):
        note = "" if row["exact"] else ", inexact sum"
        text = f"  {seconds(row['seconds'])}, {row['speedup']:.2f}x{note}"
        axes.text(max(high, row["seconds"]), place, text, va="center", fontsize=8)
    axes.set_yticks(places, labels=[row["scheme"] for row in rows], fontsize=8)
    axes.set(title="predicted seconds of a round, and 95 % intervals", xlabel="s")
    axes.set_xlim(0, 1.25 * float(ends[1].max()))
    axes.spines[["top", "right"]].set_visible(False)
