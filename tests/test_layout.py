"""The shape of the house: links, lengths, names, words."""

from __future__ import annotations

import ast
import importlib
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


def _packages() -> Iterator[tuple[Path, list[Path]]]:
    """Every folder of the package with its modules, ``__init__`` aside."""
    for room in ROOMS:
        for folder in sorted({path.parent for path in (ROOT / room).rglob("*.py")}):
            yield folder, [p for p in folder.glob("*.py") if p.name != "__init__.py"]


def test_every_folder_of_modules_is_a_package() -> None:
    """`find_packages` leaves out a folder without one, and the wheel lacks its modules."""
    assert [str(folder) for folder, _ in _packages() if not (folder / "__init__.py").exists()] == []


def test_packages_have_three_to_twenty_files() -> None:
    counts = {folder: len(files) for folder, files in _packages() if folder.parent != ROOT}
    assert {str(folder): n for folder, n in counts.items() if n > 20} == {}
    few = [folder for folder, n in counts.items() if n < 3]
    said = {folder: (folder / "__init__.py").read_text() for folder in few}
    assert [str(f) for f, text in said.items() if "extension point" not in text] == []


def test_a_package_names_its_files() -> None:
    """Its docstring is the list of what one may read in it; the rooms name packages."""
    missing = []
    for folder, files in _packages():
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        named = set(re.findall(r"`(\w+)`", said))
        missing += [str(p.relative_to(ROOT)) for p in files if p.stem not in named]
    assert [name for name in missing if name.count("/") > 1] == []


def _classes() -> Iterator[tuple[str, str]]:
    """Every public class at the top of a module, with its file."""
    for path in _sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(path.relative_to(ROOT))


def test_no_class_name_stands_twice() -> None:
    found: dict[str, list[str]] = {}
    for name, file in _classes():
        found.setdefault(name, []).append(file)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_no_module_is_called_as_a_function_that_its_package_shows() -> None:
    """``import closeranks.collectives.plan`` would give one or the other by chance."""
    wrong = []
    for folder, files in _packages():
        face = ast.parse((folder / "__init__.py").read_text())
        shown = {
            alias.asname or alias.name
            for node in ast.walk(face)
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        below = {path.stem for path in files} | {p.name for p in folder.iterdir() if p.is_dir()}
        wrong += [f"{folder.relative_to(ROOT)}: {name}" for name in shown & below]
    assert wrong == []


#: Names of the public contract, by the path at which users' programs import them.
PUBLIC = {
    "closeranks": (
        "MEAN", "CheckpointError", "Communicator", "Error", "Link", "PeerError", "PeerLate",
        "PeerLost", "Revoked", "Topology", "UsageError", "checkpoint", "collectives", "comms",
        "discover", "init", "partitioning",
    ),
    "closeranks.collectives": ("algorithms", "cost", "plan", "simulate", "Cost", "Plan", "MEAN"),
    "closeranks.collectives.communicator": ("Communicator",),
    "closeranks.collectives.coded": (
        "Arbitrary", "Backup", "BalancedBlockDesign", "Bursty", "CodedAllreduce",
        "CommunicationEfficient", "CyclicMDS", "CyclicRepetition", "Expander",
        "FractionalRepetition", "GilbertElliott", "GradientCode", "GradientCoding", "MSGC",
        "PartialRepetition", "Recorder", "Repetition", "Result", "Scheme", "simulate", "SRSGC",
        "Trace", "Tree", "tune", "Uncoded", "UnequalShares",
    ),
    "closeranks.collectives.sparse": (
        "Route", "SparseVector", "allgather_chunks", "reduce_scatter_chunks", "topk_allreduce",
    ),
    "closeranks.comms.topology": ("Topology",),
    "closeranks.partitioning": (
        "Broadcast", "Conversion", "Halo", "Layout", "Mesh", "MeshCost", "Partial", "Placement",
        "Split", "Volume", "cartesian", "conversion", "place", "place_graph", "redistribute",
    ),
    "closeranks.checkpoint": ("Checkpointer", "Pending", "PerRank", "Shard", "interval"),
    "closeranks.checkpoint.erasure": ("Code",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names]
)
def test_public_names_are_where_the_contract_says(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_names_of_the_contract_are_kept_free() -> None:
    """Parts that are to come bring these; nothing else may be called so."""
    kept = {"TopK", "Sign"}
    assert {name: file for name, file in _classes() if name in kept} == {}


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
