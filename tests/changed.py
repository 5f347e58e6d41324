"""Name the tests of what has changed since the last commit, one path a line.

    python -m tests.changed

tests/ mirrors the package: what stands in comms/buffers/ is tested by
tests/comms/buffers/. A test that has changed names itself.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")


def changed() -> list[Path]:
    """Give the files that differ from the last commit, and those that git does not know."""
    commands = (
        ["git", "diff", "--name-only", "HEAD"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    lines: list[str] = []
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        lines += done.stdout.splitlines()
    return [Path(line) for line in lines]


def tests_of(path: Path) -> Path | None:
    """Give the file or the folder with the tests of a file, if there is one.

    Parameters
    ----------
    path : Path
        From the root of the checkout.
    """
    if path.suffix != ".py":
        return None
    parts = path.parts
    if parts[0] == "tests":
        if path.name.startswith("test_"):
            found = path
        else:  # what the tests of a folder share; what all share has no tests of its own
            found = path.parent
            return found if len(parts) > 2 else None
    elif parts[0] in ROOMS and len(parts) > 2:
        found = Path("tests", *parts[:-1])
    else:
        room = parts[:1] if parts[0] in ROOMS else ()
        found = Path("tests", *room, f"test_{path.stem.strip('_')}.py")
    return found if (ROOT / found).exists() else None


if __name__ == "__main__":
    for found in sorted({str(test) for path in changed() if (test := tests_of(path))}):
        print(found)  # noqa: T201 - what the Makefile reads
