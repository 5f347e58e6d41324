"""A benchmark is one module: the command, the suite and the tables read its registration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from closeranks.errors import UsageError
from closeranks.jobs.bench import command
from closeranks.jobs.bench.benches import registration
from closeranks.jobs.bench.benches.registration import (
    Benchmark,
    Item,
    LoneRun,
    TableColumn,
    an_item_a_size,
    benchmarks,
    own_table,
    run_alone,
)
from closeranks.jobs.bench.formats import OsuFormat, ResultTable
from closeranks.jobs.bench.measuring.session import BenchRequest, Session
from closeranks.jobs.bench.suite import run

MakeSession = Callable[..., Session]
MakeRow = Callable[..., dict[str, Any]]

#: Stands for the communicator of a rank that prints nothing.
_PLAIN: Any = SimpleNamespace(Get_rank=lambda: 1)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., click.Command]]:
    """Register benchmarks of a module that no other knows; gives the command then."""

    def add(*found: Benchmark) -> click.Command:
        module: Any = ModuleType("hello")
        module.BENCHMARKS = found
        monkeypatch.setitem(sys.modules, "closeranks.jobs.bench.benches.hello", module)
        monkeypatch.setattr(registration, "MODULES", (*registration.MODULES, "hello"))
        benchmarks.cache_clear()
        return command.build()

    yield add
    benchmarks.cache_clear()


def test_a_module_is_all_that_a_benchmark_takes(
    register: Callable[..., click.Command], session: MakeSession, row: MakeRow
) -> None:
    def measure(where: Session, item: Item) -> Iterator[dict[str, Any]]:
        for greeting in where.request.own["greetings"]:
            yield row(name="hello", algorithm=item.algorithm, greeting=greeting)

    benchmark = Benchmark(
        "hello",
        items=an_item_a_size(),
        measure=measure,
        columns=(TableColumn("greeting", "greeting", 10, str),),
        test="Greeting Test",
        unit="Latency (us)",
        options=(click.Option(["--greeting"], help="Words of hello."),),
        sizes="2K",
    )
    page = CliRunner().invoke(register(benchmark), ["--help"], terminal_width=80).output
    assert "--greeting TEXT             Words of hello." in page
    assert "for route and hello 2K, for chunks 256K." in " ".join(page.split())
    assert page.split()[-3:] == ["chunks", "hello", "all"]

    where = session(names=("hello",), own={"greetings": ("hi", "ho")}, own_sizes={"hello": (2048,)})
    where = replace(where, plain=_PLAIN)
    lines: list[str] = []
    rows = run(where, ResultTable(where), lines.append)
    assert [one["greeting"] for one in rows] == ["hi", "ho"]
    title, head, first, second = lines[-6:-2]
    assert title == "# hello, algorithm auto"
    assert [line.split()[-1] for line in (head, first, second)] == ["greeting", "hi", "ho"]

    run(where, OsuFormat(where), lines.append)
    assert any(line.startswith("# OSU-style MPI Greeting Test") for line in lines)
    assert lines[-1].split() == ["65536", "3600.50", "Pass"]


def test_a_table_of_its_own_has_its_head_once(
    register: Callable[..., click.Command], session: MakeSession, row: MakeRow
) -> None:
    def measure(_where: Session, item: Item) -> Iterator[dict[str, Any]]:
        yield from (row(name="hello", size_bytes=item.nbytes, number=k) for k in range(2))

    lines = own_table(lambda: "#  number", lambda one: f"   {one['number']}")
    register(Benchmark("hello", items=an_item_a_size(), measure=measure, lines=lines))
    where = session(names=("hello",), sizes=(8, 16))
    where = replace(where, plain=_PLAIN)
    written: list[str] = []
    run(where, ResultTable(where), written.append)
    assert written[-8:-2] == ["#  number", "   0", "   1"] * 2


def test_a_benchmark_that_is_named_alone_takes_its_own_options(
    register: Callable[..., click.Command], tmp_path: Path
) -> None:
    seen: list[Any] = []

    def alone(request: BenchRequest) -> int:
        seen.append(request.own["greeting"])
        rows = ({"wrong": wrong} for wrong in (0, 1))
        return run_alone(request, rows, lambda one: not one["wrong"])

    def refuse(request: BenchRequest) -> None:
        if request.own["greeting"] == "bye":
            raise UsageError("bench hello", "not yet", "stay")

    made = register(
        Benchmark(
            "hello",
            options=(click.Option(["--greeting"]),),
            check=refuse,
            lone=LoneRun("it is shy", ("json_path",), alone),
        )
    )
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(made, ["hello", "--greeting", "hi", "--json", str(path)])
    assert (done.exit_code, seen) == (1, ["hi"])
    assert json.loads(path.read_text()) == [{"wrong": 0}, {"wrong": 1}]
    for words, said in {
        "hello scan": "bench hello: it is shy; name it alone, without --draw",
        "hello --greeting bye": "bench hello: not yet; stay",
        "hello --op max": "bench hello: no meaning for --op; leave that out",
        "faults --greeting hi": "bench faults: no meaning for --greeting; leave that out",
    }.items():
        assert str(CliRunner().invoke(made, words.split()).exception) == said
    assert len(seen) == 1


def test_every_registered_name_is_there_once() -> None:
    modules = [sys.modules[f"{command.__package__}.benches.{one}"] for one in registration.MODULES]
    names = [one.name for module in modules for one in module.BENCHMARKS]
    assert list(benchmarks()) == names
    assert len(set(names)) == len(names) == 37
