"""Print docs/mpi4py-suite.md from what the runs of tests/test_mpi4py_suite.py have left.

``python mpi4py_table.py ROWS...``: files of one number of ranks each.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

HEAD = """# mpi4py's own tests

The test suite of mpi4py {release}, run with closeranks communicators in the place of
`MPI.COMM_WORLD` and `MPI.COMM_SELF`. It shows where closeranks differs from mpi4py.

    make mpi4py-suite     # runs it with both libraries, and writes this page

- Every element type is tested; one type where more than two ranks share a core.
- Every kind of array is tested, except arrays on GPUs.
- A seed draws the order of files and tests.
- The ordinary tests run one number of ranks and one type a day.

A cell is passed / failed / skipped. A skipped test is also skipped by the same file with mpi4py's
own communicators, with three exceptions:

| reason | meaning |
|---|---|
| wants the predefined communicator itself | the test fails with any duplicate, too (tried) |
| reads a private table of mpi4py's | locks that only mpi4py's own `bcast` takes |
| fails without us, too | a feature that MPICH's wheel was built without |

Two files are left out. `test_ulfm` revokes a communicator: here that ends its
[family](glossary.md), and later calls raise `closeranks.Revoked`. `test_util_dtlib` is half a
minute of datatypes without a communicator.
"""


def main(paths: list[str]) -> None:
    """Print the whole page."""
    runs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    out = [HEAD.format(release=version("mpi4py"))]
    for library in dict.fromkeys(run["library"] for run in runs):
        out += section(library, [run for run in runs if run["library"] == library])
    sys.stdout.write("\n".join(out) + "\n")


def section(library: str, runs: list[dict[str, Any]]) -> list[str]:
    """The table of one library."""
    runs.sort(key=lambda run: run["ranks"])
    seeds = ", ".join(f"{run['seed']} on {run['ranks']}{_types(run)}" for run in runs)
    heads = " | ".join(f"{run['ranks']} rank{'s' * (run['ranks'] > 1)}" for run in runs)
    out = [f"## {library}", "", f"Seeds: {seeds}.", "", f"| file | {heads} | why skipped |"]
    out += ["|---" * (len(runs) + 2) + "|"]
    for name in sorted({row["file"] for run in runs for row in run["rows"]}):
        cells, why = [], Counter[str]()
        for run in runs:
            row = next((row for row in run["rows"] if row["file"] == name), None)
            if row is None:
                cells.append("")
                continue
            skipped = sum(row["skipped"].values())
            cells.append(f"{row['passed']} / {row['failed']} / {skipped}")
            why |= Counter(row["skipped"])
        said = ", ".join(
            f"{reason or 'no reason given'} ({n})" for reason, n in sorted(why.items())
        )
        out.append(f"| {name} | {' | '.join(cells)} | {said} |")
    return [*out, ""]


def _types(run: dict[str, Any]) -> str:
    """Say which type, where it was one."""
    types = run.get("types", "all")
    return "" if types == "all" else f" (type {types} alone)"


if __name__ == "__main__":
    main(sys.argv[1:])
