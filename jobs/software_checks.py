"""The doctor's checks of Python, its packages, HDF5, numba and devices."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

from closeranks.collectives.fastpath.shortcut_versions import PROVEN, are_listed, versions
from closeranks.comms.jit.cache_folder import folder
from closeranks.jobs.check_result import Finding, looked

_REQUIRED = (
    "numpy", "ml_dtypes", "mpi4py", "numba", "h5py", "scipy", "click", "rich", "psutil",
    "ClusterShell",
)  # fmt: skip
_OPTIONAL = {"matplotlib": "plot", "scikit-learn": "demo"}


def look() -> Iterator[Finding]:
    """Check what is installed.

    Yields
    ------
    Finding
        One for each thing looked at.
    """
    yield _python()
    yield from looked("packages", lambda: [_packages()])
    yield from looked("extras", lambda: [_extras()], needed=False)
    yield from looked("HDF5", lambda: [_hdf5()])
    yield from looked("numba", lambda: [_numba()])
    yield _shortcuts()
    yield from looked("GPU", lambda: [_gpu()], needed=False)


def _python() -> Finding:
    """Tell which Python this is."""
    found = f"{platform.python_version()} ({sys.executable})"
    return Finding("Python", "ok", found)  # an older one does not install this package


def _version(package: str) -> str | None:
    """Tell the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Finding:
    """Check that everything required is installed."""
    versions = {package: _version(package) for package in _REQUIRED}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        remedy = f"{sys.executable} -m pip install {' '.join(missing)}"
        return Finding("packages", "fail", f"missing: {', '.join(missing)}", remedy)
    return Finding("packages", "ok", ", ".join(f"{name} {v}" for name, v in versions.items()))


def _extras() -> Finding:
    """Look which optional packages are there."""
    versions = {package: _version(package) for package in _OPTIONAL}
    missing = [package for package, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if not missing:
        return Finding("extras", "ok", found)
    extras = ",".join(_OPTIONAL[package] for package in missing)
    return Finding("extras", "warn", found, f"pip install 'closeranks[{extras}]' if wanted")


def _hdf5() -> Finding:
    """Check that HDF5 loads."""
    try:
        import h5py
    except (ImportError, OSError) as wrong:
        return Finding("HDF5", "fail", str(wrong), f"{sys.executable} -m pip install h5py")
    parallel = "parallel" if h5py.get_config().mpi else "serial"
    return Finding("HDF5", "ok", f"{h5py.version.hdf5_version}, {parallel}")


def _numba() -> Finding:
    """Check that numba can compile for this processor, and where its code is kept."""
    try:
        import numba

        numba.njit("int64(int64)")(_successor)
        kept = folder()
    except Exception as wrong:  # whatever a compiler raises is the finding
        return Finding("numba", "fail", f"{type(wrong).__name__}: {wrong}", "reinstall numba")
    where = f"code kept in {kept}" if kept else "no place to keep code: every process compiles"
    said = f"{numba.__version__}, llvmlite {_version('llvmlite')}, {where}"
    return Finding("numba", "ok" if kept else "warn", said, "" if kept else "set CLOSERANKS_CODE")


def _successor(number: int) -> int:
    """Add one; something small to compile."""
    return number + 1


def _shortcuts() -> Finding:
    """Tell whether compiled shortcuts were proven in these versions."""
    python, numpy = versions()
    here = f"Python {python}, NumPy {numpy}"
    if are_listed():
        return Finding("shortcuts", "ok", f"compiled, for {here}")
    known = ", ".join(f"{one} with {other}" for one, other in sorted(PROVEN))
    return Finding("shortcuts", "warn", f"off: not proven in {here}; short calls take longer",
                   f"Python and NumPy in which they are: {known}")  # fmt: skip


def _gpu() -> Finding:
    """Look for NVIDIA GPUs and for what drives them from Python."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("GPU", "ok", "none")
    done = subprocess.run(
        [tool, "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    names = done.stdout.strip().splitlines()
    if done.returncode != 0 or not names:
        return Finding("GPU", "warn", "nvidia-smi finds none", "check the driver")
    found = f"{len(names)} x {names[0]}"
    if any(_version(package) for package in ("cupy", "cupy-cuda12x", "cupy-cuda13x")):
        return Finding("GPU", "ok", found)
    return Finding(
        "GPU",
        "warn",
        f"{found}, no CuPy",
        "pip install 'closeranks[cuda]' ([cuda13] for CUDA 13)",
    )
