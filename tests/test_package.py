"""What gets installed: from the source archive, into an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")
BACKEND = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('.'))"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (ROOT / "comms").is_dir(), reason="not a checkout"),
]


def _run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _build(kind: str, folder: Path) -> Path:
    """Build from a folder with the setuptools of this environment."""
    said = _run(sys.executable, "-c", BACKEND, f"build_{kind}", folder=folder)
    return folder / said.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source archive, made from a copy of this tree."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is older than 77")
    folder = tmp_path_factory.mktemp("build")
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=hidden)
    with tarfile.open(_build("sdist", folder / "tree")) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("closeranks-*")
    assert not any(path.is_symlink() for path in unpacked.rglob("*"))
    return _build("wheel", unpacked)


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    here = {f"closeranks/{path.name}" for path in (ROOT / "closeranks").glob("*.py")}
    for room in ROOMS:
        files = [*(ROOT / room).rglob("*.py"), *(ROOT / room).rglob("*.sbatch")]
        here |= {f"closeranks/{path.relative_to(ROOT)}" for path in files}
    assert names == here | {"closeranks/py.typed"}


def test_it_installs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "home", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps")
    _run(*pip, "--quiet", str(wheel), folder=empty)
    code = (
        "import closeranks, sys, importlib.util as u; from pathlib import Path; "
        "assert Path(sys.prefix) in Path(closeranks.__file__).parents, closeranks.__file__; "
        "assert u.find_spec('jobs') is None; "
        f"assert all(u.find_spec('closeranks.' + room) for room in {ROOMS}); "
        "print(closeranks.__version__)"
    )
    import closeranks

    assert _run(python, "-c", code, folder=empty).strip() == closeranks.__version__
    assert (home / "bin" / "closeranks").is_file()
