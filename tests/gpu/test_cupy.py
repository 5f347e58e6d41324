"""CuPy's arrays and PyTorch's tensors on a real device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).parent / "collectives_on_device.py"


def _reason() -> str:
    """Say why there is no device for tests; "" where there is one."""
    try:
        import cupy
    except ImportError as error:
        return f"no CuPy: {error}"
    return "" if cupy.cuda.is_available() else "no CUDA device that CuPy sees"


REASON = _reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]


def _roundtrip(array: Any) -> Any:
    """Read a device array, and write twice its values."""
    from closeranks.comms.buffers.buffer_spec import message

    found = message(array, "test", writable=True)
    data = found.data()
    space = found.space()
    space.view(found.memory.dtype)[:] = 2 * data.view(found.memory.dtype)
    found.store(space)
    return data.view(found.memory.dtype)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
def test_arrays_and_their_faces(dtype: str) -> None:
    import cupy

    host = (np.arange(60) % 50).astype(dtype).reshape(3, 4, 5)
    faces: list[Any] = [np.s_[:], np.s_[1], np.s_[:, 2], np.s_[:, :, 3], np.s_[::-1, 1:3]]
    for face in faces:
        array, expected = cupy.asarray(host), host.copy()
        assert (_roundtrip(array[face]).reshape(-1) == host[face].reshape(-1)).all()
        expected[face] *= 2
        assert (array.get() == expected).all()


def test_it_waits_for_long_work_of_the_current_stream() -> None:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(5):
            array = cupy.zeros(1 << 22)
            for _ in range(50):
                array += 1
            assert (_roundtrip(array) == 50).all()
            assert (array.get() == 100).all()


def test_tensors() -> None:
    torch = pytest.importorskip("torch", reason="no PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
        tensor += 1
        assert (_roundtrip(tensor) == np.arange(1 << 20) + 1).all()
        assert (tensor.cpu().numpy() == 2 * (np.arange(1 << 20) + 1)).all()
        half = torch.ones(1000, device="cuda", dtype=torch.bfloat16)
        assert (_roundtrip(half).astype(float) == 1).all()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("nbytes", [1, 4097, 1 << 22])
def test_erasure_codes(nbytes: int, apart: bool) -> None:
    import cupy

    from closeranks.checkpoint import Code

    for data, parity in ((1, 1), (4, 2), (8, 3), (5, 11)):
        code, host = (
            Code(data, parity),
            np.random.default_rng(1).integers(0, 256, (data, nbytes), np.uint8),
        )
        wanted = np.concatenate([host, code.encode(host)])
        with cupy.cuda.Stream(non_blocking=True):
            table = cupy.asarray(wanted)
            made: Any = code.encode(list(table[:data]) if apart else table[:data])
            np.testing.assert_array_equal(made.get(), wanted[data:])
            present = np.arange(data + parity) >= parity
            table[:parity] = 0
            found: Any = code.reconstruct(list(table) if apart else table, present)
            np.testing.assert_array_equal(found.get(), wanted)


def test_every_product_of_two_bytes() -> None:
    import cupy

    from closeranks.checkpoint.erasure import cuda_code
    from closeranks.checkpoint.erasure.generator_matrix import PRODUCTS

    block = cupy.arange(256).astype(cupy.uint8)[None]
    made = cuda_code.encode(np.arange(256, dtype=np.uint8)[:, None], block, None)
    np.testing.assert_array_equal(made.get(), PRODUCTS)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checkpoints(mpirun: Run, ranks: int) -> None:
    done = mpirun(ranks, str(PROGRAM.with_name("checkpoint_on_device.py")), timeout_s=110)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("right") == ranks, done.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives(mpirun: Run, ranks: int) -> None:
    done = mpirun(ranks, str(PROGRAM), timeout_s=110)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("right") == ranks, done.stdout
