"""A selection copies nothing of the matrix: proven by the memory map and by a limit on private memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo

GIGABYTE = 10**9

SELECT_UNDER_LIMIT = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))
import fastomp_nvm as fo
with fo.open_store(sys.argv[1]) as store:
    found = fo.select(store, k=20)
    print(json.dumps([store.matrix.nbytes, found.indices.tolist(), found.bytes_read]))
"""

COPY_UNDER_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))
import numpy, fastomp_nvm as fo
numpy.array(fo.open_store(sys.argv[1]).matrix)
"""


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a 4 GB mmap store block by block."""
    from fastomp_nvm.stores.contract import Target
    from fastomp_nvm.stores.names import NumberedNames
    from storage_backends.build.builder import StoreBuilder
    from storage_backends.build.schema import TableSchema

    folder = tmp_path_factory.mktemp("large")
    if shutil.disk_usage(folder).free < 6 * GIGABYTE:
        pytest.skip("less than 6 GB free on the disk of the temporary folder")
    n_obs, n_features, block = 4000, 250_000, 256
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((block, n_obs), dtype=np.float32)
    signal = rng.standard_normal(n_obs, dtype=np.float32)
    url = f"mmap://{folder}/store"
    with StoreBuilder(url, TableSchema.plain(n_obs, NumberedNames(n_features))) as build:
        for number, first in enumerate(range(0, n_features, block)):
            values = np.roll(noise[: min(block, n_features - first)], number, axis=1)
            values[number % len(values)] += 0.01 * (number % 50) * signal
            build.write_columns(first, values)
        build.finish({"y": Target(signal.astype(np.float64))})
    yield url
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_gigabytes_are_selected_from_under_one_gigabyte_of_private_memory(large_store: str) -> None:
    """Under RLIMIT_DATA = 1 GB, select finishes on a 4 GB store, and a copy of that store does not."""
    done = subprocess.run([sys.executable, "-c", SELECT_UNDER_LIMIT, large_store], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, indices, bytes_read = json.loads(done.stdout)
    assert size == 4 * GIGABYTE
    assert len(indices) == 20
    assert bytes_read >= size
    copied = subprocess.run([sys.executable, "-c", COPY_UNDER_LIMIT, large_store], capture_output=True, text=True, check=False)
    assert copied.returncode != 0, "the limit catches nothing: it would not have caught a hidden copy either"
    assert "MemoryError" in copied.stderr


@pytest.mark.parametrize("scheme", ["mmap", "pmem"])
def test_views_lie_inside_the_mapping_of_the_file(tmp_path: Path, scheme: str) -> None:
    """The matrix and every slice of it are addresses inside the file's mapping, not owned, not writable."""
    X = np.random.default_rng(0).normal(size=(100, 300))
    with fo.create_store(f"{scheme}://{tmp_path}/s", X, X[:, 0]) as store:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line and ".npy" in line]
        ranges = [tuple(int(edge, 16) for edge in line.split()[0].split("-")) for line in lines]
        for view in (store.matrix, store.matrix[7], store.matrix[10:20, 5:]):
            address = view.__array_interface__["data"][0]
            assert any(low <= address and address + view.nbytes <= high for low, high in ranges)
            assert not view.flags.owndata
            assert not view.flags.writeable
        with pytest.raises(ValueError, match=r"read-only|assignment destination"):
            store.matrix[0, 0] = 1.0
