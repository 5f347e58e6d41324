"""Signatures of the communicator are those of `MPI.Intracomm`, name by name."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import mpi4py
import pytest
from mpi4py import MPI

import closeranks
from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.dispatch.persistent_operation import Persistent
from closeranks.collectives.dispatch.request import Request

#: Lower-case methods whose arguments are ours: a wait has a timeout.
OWN = {"wait", "test"}


def _methods(*classes: str) -> dict[str, ast.FunctionDef]:
    """The methods of some of mpi4py's classes, as its stubs declare them."""
    text = Path(mpi4py.__file__).with_name("MPI.pyi").read_text(encoding="utf-8")
    found = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.ClassDef)}
    return {
        one.name: one
        for name in classes
        for one in found[name].body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
    }


def _declared(method: ast.FunctionDef) -> list[tuple[str, object]]:
    """Names and defaults of a method of the stubs."""
    names = [one.arg for one in (*method.args.posonlyargs, *method.args.args)]
    defaults = [
        eval(compile(ast.Expression(one), "MPI.pyi", "eval"), vars(MPI).copy())  # mpi4py's own
        for one in method.args.defaults
    ]
    missing = [inspect.Parameter.empty] * (len(names) - len(defaults))
    return list(zip(names, [*missing, *defaults], strict=True))


def _ours(method: object) -> list[tuple[str, object]]:
    """Names and defaults of a method of ours; what it takes by name only is left out."""
    taken = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
    return [(one.name, one.default) for one in taken if one.kind is not one.KEYWORD_ONLY]


COMM = _methods("Comm", "Intracomm")
REQUEST = _methods("Request", "Prequest")


@pytest.mark.parametrize("name", sorted(COMM))
def test_a_method_of_the_communicator_takes_what_mpi4pys_takes(name: str) -> None:
    method = getattr(closeranks.Communicator, name)
    if inspect.isfunction(method):
        assert _ours(method) == _declared(COMM[name])
    else:
        assert name not in vars(closeranks.Communicator), "mpi4py's own"
        assert method.__doc__ == getattr(MPI.Intracomm, name).__doc__


def test_all_sixteen_are_ours() -> None:
    ours = {name for name in COMM if inspect.isfunction(getattr(closeranks.Communicator, name))}
    kinds = {name.capitalize() for name in ALGORITHMS}
    assert len(kinds) == 16
    assert {f"{kind}_init" for kind in kinds} | {f"I{kind.lower()}" for kind in kinds} < ours
    assert kinds < ours


@pytest.mark.parametrize("kind", [Request, Persistent])
def test_requests_take_what_mpi4pys_take(kind: type[MPI.Request]) -> None:
    for name in sorted(set(REQUEST) - OWN):
        method = getattr(kind, name, None)
        if inspect.isfunction(method):
            assert _ours(method) == _declared(REQUEST[name]), name
        elif inspect.ismethod(method):
            assert _ours(method) == _declared(REQUEST[name])[1:], name
