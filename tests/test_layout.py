"""The shape of the house: links, lengths, names, words."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")
VAGUE = {
    "base", "common", "core", "helper", "helpers", "impl", "manager", "misc", "tools",
    "util", "utils",
}  # fmt: skip
#: Words that only this package would know, for which there is a standard one.
PRIVATE = {
    "crew", "desk", "ferry", "gate", "grave", "graves", "mates", "nears", "nest", "rollcall",
    "shelf", "urn", "usher", "voice", "ward", "warden", "will", "wills",
}  # fmt: skip
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK", "NotImplemented" + "Error")

pytestmark = pytest.mark.skipif(
    not (ROOT / "comms").is_dir(), reason="not a checkout: the rooms are not at the root"
)


def _sources() -> list[Path]:
    """Every file of the package, each once."""
    files = [ROOT / "setup.py", *(ROOT / "closeranks").glob("*.py")]
    return files + [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def _functions() -> Iterator[tuple[str, int]]:
    """Every function of the package with its length in lines, docstring aside."""
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node):
                    length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", length


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_reached_through_its_link(room: str) -> None:
    link = ROOT / "closeranks" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room
    assert link.samefile(ROOT / room)


def test_nothing_else_is_linked_in() -> None:
    assert {p.name for p in (ROOT / "closeranks").iterdir() if p.is_symlink()} == set(ROOMS)


def test_no_file_is_longer_than_700_lines() -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in _sources()}
    assert {name: n for name, n in lines.items() if n > 700} == {}


def test_functions_are_short() -> None:
    lengths = dict(_functions())
    assert {name: n for name, n in lengths.items() if n > 60} == {}
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 25


def test_names_say_something() -> None:
    parts = {(p, part) for p in _sources() for part in p.relative_to(ROOT).with_suffix("").parts}
    assert [str(p.relative_to(ROOT)) for p, part in parts if part in VAGUE] == []


def _names(path: Path) -> Iterator[str]:
    """Every name of a module, class, function or parameter in a file, its folders too."""
    yield from path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def test_names_are_of_standard_words() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _sources()
        for name in _names(path)
        if {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)} & PRIVATE
    }
    assert sorted(found) == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(word in line for word in UNFINISHED) and not line.lstrip().startswith("except ")
    ]
    assert found == []
