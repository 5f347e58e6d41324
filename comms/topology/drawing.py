"""Write a topology's drawing to a file: SVG by hand, PNG by matplotlib."""

from __future__ import annotations

from html import escape
from pathlib import Path

from closeranks.comms import argument
from closeranks.comms.topology.box_layout import Box
from closeranks.errors import TopologyError, Unavailable

_DOTS = 100.0  # pixels of the drawing per inch


def save(whole: Box, path: str | Path) -> None:
    """Write a drawing.

    Parameters
    ----------
    whole : Box
        From `layout`.
    path : str or Path
        Ends with ``.svg`` or ``.png``.

    Raises
    ------
    TopologyError
        If it ends with anything else.
    Unavailable
        If PNG is asked for and matplotlib is not installed.
    """
    try:
        target = Path(path)
    except TypeError:
        problem = f"path is {argument.shown(path)}"
        raise TopologyError("draw", problem, "give a path that ends with .svg or .png") from None
    check_suffix(target)
    if target.suffix == ".svg":
        target.write_text(svg(whole), encoding="utf-8")
    else:
        _png(whole, target)


def check_suffix(path: Path) -> None:
    """Refuse what no picture can be written to; local.

    Parameters
    ----------
    path : Path
        Where a drawing shall go.

    Raises
    ------
    TopologyError
        If it ends with neither ``.svg`` nor ``.png``.
    """
    if path.suffix not in (".svg", ".png"):
        raise TopologyError("draw", f"{path.name!r} is no picture", "end it with .svg or .png")


def _png(whole: Box, target: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch
    except ImportError:
        remedy = "pip install closeranks[plot], or draw an .svg"
        raise Unavailable("PNG drawings (matplotlib)", remedy) from None
    width, height = whole.width + 32, whole.height + 32
    scale = min(1.0, 20000 / max(width, height))
    figure = Figure(figsize=(scale * width / _DOTS, scale * height / _DOTS), dpi=_DOTS * 1.5)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    points = 72 / _DOTS * scale
    for box in whole.walk():
        outline = FancyBboxPatch(
            (box.x, box.y),
            box.width,
            box.height,
            boxstyle=f"round,pad=0,rounding_size={8 if box.rows else 5}",
            facecolor=box.fill,
            edgecolor=box.stroke,
            linestyle="--" if box.dashed else "-",
        )
        axes.add_patch(outline)
        middle, top = box.x + box.width / 2, box.y + (15 if box.rows else 16)
        weight = "bold" if box.rows else "normal"
        axes.text(middle, top, box.title, ha="center", fontsize=11 * points, fontweight=weight)
        if box.note:
            bottom = box.y + box.height - 8
            axes.text(middle, bottom, box.note, ha="center", fontsize=10 * points, style="italic")
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png")


def svg(whole: Box) -> str:
    """Write placed boxes as SVG.

    Parameters
    ----------
    whole : Box
        From `layout`.

    Returns
    -------
    str
        A complete document without scripts or references.
    """
    width, height = whole.width + 32, whole.height + 32
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    lines = [head, '<rect width="100%" height="100%" fill="#ffffff"/>']
    for box in whole.walk():
        lines += _svg_box(box)
    return "\n".join([*lines, "</svg>", ""])


def _svg_box(box: Box) -> list[str]:
    dash = ' stroke-dasharray="4 3"' if box.dashed else ""
    radius = 8 if box.rows else 5
    outline = (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius}" fill="{box.fill}" stroke="{box.stroke}"{dash}/>'
    )
    made = [outline]
    middle = box.x + box.width / 2
    baseline = box.y + (15 if box.rows else 16)
    weight = ' font-weight="bold"' if box.rows else ""
    made.append(
        f'<text x="{middle:.1f}" y="{baseline:.1f}" font-size="11" text-anchor="middle" '
        f'fill="#1a202c"{weight}>{escape(box.title)}</text>'
    )
    if box.note:
        made.append(
            f'<text x="{middle:.1f}" y="{box.y + box.height - 8:.1f}" font-size="10" '
            f'font-style="italic" text-anchor="middle" fill="#4a5568">{escape(box.note)}</text>'
        )
    return made
