"""Docstrings, pages and the README say what is there."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpydoc.validate
import pytest
from numpydoc.hooks.validate_docstrings import AstValidator

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")
SECTIONS = ("GL01", "GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS03", "SS06")
ENTRIES = ("PR01", "PR02", "PR03", "PR04", "PR07", "PR10", "RT01", "RT03", "YD01")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.skipif(
    not (ROOT / "comms").is_dir(), reason="not a checkout: the rooms are not at the root"
)


class _Validator(AstValidator):  # type: ignore[misc]
    """Read signatures from the source, dataclasses and properties included."""

    @property
    def is_generator_function(self) -> bool:
        return False

    @property
    def method_returns_something(self) -> bool:
        """Tell by the annotation; without arguments the summary says it."""
        node = self.node
        if _marked(node, "property", "cached_property", "overload"):
            return False
        if not self.signature_parameters or self.yields:
            return False
        returns = ast.unparse(node.returns) if node.returns else "None"
        return returns not in {"None", "NoReturn", "Never", "Self"}

    @property
    def signature_parameters(self) -> tuple[str, ...]:
        node = self.node
        if not isinstance(node, ast.ClassDef):
            return tuple(super().signature_parameters)
        if any(getattr(child, "name", "") in {"__init__", "__new__"} for child in node.body):
            made = next(c for c in node.body if getattr(c, "name", "") in {"__init__", "__new__"})
            inner = _Validator(
                ast_node=made, filename=self._source_file, obj_name="", ancestry=[node]
            )
            return inner.signature_parameters
        documented = tuple(parameter.name for parameter in self.doc["Parameters"])
        fields = tuple(
            child.target.id
            for child in node.body
            if isinstance(child, ast.AnnAssign)
            and isinstance(child.target, ast.Name)
            and not child.target.id.startswith("_")
        )
        if not documented:
            return ()
        inherited = bool(node.bases) and set(fields) <= set(documented)
        return documented if inherited else fields


def _marked(node: ast.AST, *names: str) -> bool:
    """Tell whether a definition carries one of some decorators."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(mark).split("(")[0].split(".")[-1] in names for mark in decorators)


def _public(node: ast.AST, path: Path, above: tuple[ast.AST, ...]) -> Iterator[tuple[str, ast.AST]]:
    """Give every public class, function and method below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.If, ast.Try)):
            yield from _public(child, path, above)
        if not isinstance(child, (*FUNCTION, ast.ClassDef)) or child.name.startswith("_"):
            continue
        if _marked(child, "overload", "setter"):
            continue
        yield f"{path.relative_to(ROOT)}:{child.lineno} {child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from _public(child, path, (*above, child))


def _sources() -> list[Path]:
    files = [*(ROOT / "closeranks").glob("*.py")]
    return files + [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def _exported(init: Path) -> set[str]:
    """Give the names that an ``__init__`` lists in ``__all__``."""
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


EXPORTED = {room: _exported(ROOT / room / "__init__.py") for room in ("closeranks", *ROOMS)}


def _brief(node: ast.AST, owner: ast.AST, path: Path) -> bool:
    """Tell whether one line is enough: for what is not one of the public names.

    Public is what the package or a room lists in ``__all__``; in a room that
    lists nothing, every name without an underscore but methods of one line.
    """
    listed = EXPORTED[path.relative_to(ROOT).parts[0]]
    holder = owner if isinstance(owner, ast.ClassDef) else node
    if getattr(holder, "name", "") in listed | EXPORTED["closeranks"]:
        return False
    short = "\n" not in (ast.get_docstring(node) or "\n")  # type: ignore[arg-type]
    return bool(listed) or (short and holder is owner)


def _complaints(path: Path) -> Iterator[str]:
    """Give what numpydoc finds wrong in one file."""
    tree = ast.parse(path.read_text())
    owner = {id(c): n for n in ast.walk(tree) for c in ast.iter_child_nodes(n)}
    for name, node in _public(tree, path, (tree,)):
        if _marked(node, "command", "group"):
            continue  # its docstring is the help text that a terminal shows
        ancestry = [owner[id(node)]]
        report = numpydoc.validate.validate(
            name, _Validator, ast_node=node, filename=path, ancestry=ancestry
        )
        for code, text in report["errors"]:
            if code in SECTIONS or (code in ENTRIES and not _brief(node, ancestry[0], path)):
                yield f"{name}: {code} {text}"


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_are_documented(path: Path) -> None:
    found = list(_complaints(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_fit_a_page(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no module docstring"
    documented = (*FUNCTION, ast.ClassDef, ast.Module)
    texts = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, documented)]
    lines = [line for text in texts for line in text.splitlines()]
    wide = [line for line in lines if len(line) > 79 and "://" not in line]
    assert not wide, "wider than 79 columns:\n" + "\n".join(wide)


def _pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text) + re.findall(r'src="([^"]+)"', text)
    inside = [
        target for target in targets if "://" not in target and not target.startswith("mailto")
    ]
    assert [target for target in inside if not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    assert [str(page) for page in pages if str(page) not in index and page.name != "index.md"] == []


def _programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("page", ["README.md", "docs/partitioning.md", "docs/coded.md"])
def test_programs_of_a_page_run(mpirun: Run, tmp_path: Path, page: str) -> None:
    programs = _programs(page)
    assert programs
    for number, code in enumerate(programs):
        program = tmp_path / f"program_{number}.py"
        program.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{code}")
        done = mpirun(4, str(program), timeout_s=60)
        assert done.returncode == 0, done.stdout


def test_the_figure_is_what_draw_makes(tmp_path: Path) -> None:
    import closeranks as cr

    drawn = tmp_path / "hierarchy.svg"
    cr.Topology.regular(site=2, node=2, package=2, rank=2).draw(drawn)
    assert drawn.read_text() == (ROOT / "docs" / "figures" / "hierarchy.svg").read_text()


def test_readme_lists_the_verbs_there_are() -> None:
    from closeranks.__main__ import cli

    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^\| `closeranks (\w+)", readme, flags=re.MULTILINE)
    assert sorted(listed) == sorted(cli.list_commands(None))  # type: ignore[arg-type]
