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


def covering(path: Path) -> Path | None:
    """Give the file or the folder with the tests of a file, if there is one.

    Parameters
    ----------
    path : Path
        From the root of the checkout.
    """
    if path.suffix != ".py":
        return None
    folder, stem = path.parent, path.stem.strip("_")
    if path.parts[0] == "tests":
        if not path.name.startswith("test_"):  # what all tests share has no tests of its own
            path = folder if len(path.parts) > 2 else path.with_name(f"test_{stem}.py")
        candidates = [path]
    elif path.parts[0] in ROOMS:
        mirror = "tests" / folder
        whole = [mirror, mirror.with_name(f"test_{folder.name}.py")] if len(path.parts) > 2 else []
        candidates = [*whole, mirror / f"test_{stem}.py"]
    else:
        candidates = [Path("tests", f"test_{stem}.py")]
    return next((found for found in candidates if (ROOT / found).exists()), None)


if __name__ == "__main__":
    for found in sorted({str(test) for path in changed() if (test := covering(path))}):
        print(found)  # noqa: T201 - what the Makefile reads
