"""Stores on pymm shelves: the contract of every medium, and protection from each of pymm's hazards.

Runs over a double of ``pymm`` built from what the real one was seen to do, and over the real one where ``FASTOMP_TEST_PYMM`` names
a directory for it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import types
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm import create_store, open_store, select
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError, UnavailableError
from storage_backends.pymm import directory as pymm_directory
from storage_backends.testing.store_contract import StoreContract

ROOT = Path(__file__).parents[2]
DOUBLES = ROOT / "tests" / "doubles"


@pytest.fixture
def pymm_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the double where ``import pymm`` finds it."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.delitem(sys.modules, "pymm", raising=False)
    yield
    gc.collect()
    sys.modules.pop("pymm", None)


@pytest.mark.usefixtures("pymm_double")
class TestDouble(StoreContract):
    medium = "shelf"
    durability = "process"

    def make_url(self, directory: Path) -> str:
        return f"shelf://{directory}/shelf#store"


if os.environ.get("FASTOMP_TEST_PYMM"):

    class TestReal(StoreContract):
        medium = "shelf"
        durability = "process"

        @pytest.fixture
        def place(self, tmp_path: Path) -> Iterator[Path]:
            folder = Path(os.environ["FASTOMP_TEST_PYMM"]) / uuid.uuid4().hex
            folder.mkdir()
            yield folder
            shutil.rmtree(folder, ignore_errors=True)

        def make_url(self, directory: Path) -> str:
            return f"shelf://{directory}/shelf#store"


class Processes:
    """Runs code in processes of their own, over the double or over the real pymm."""

    def __init__(self, kind: str) -> None:
        self._environment = {**os.environ, "PYTHONPATH": f"{DOUBLES}{os.pathsep}{ROOT}" if kind == "double" else str(ROOT)}

    def __call__(self, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(code, words), env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )

    def start(self, code: str, *words: str) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self._command(code, words), env=self._environment, **pipes)

    def _command(self, code: str, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-c", textwrap.dedent(code), *words]


@pytest.fixture(params=["double", *(["real"] if os.environ.get("FASTOMP_TEST_PYMM") else [])])
def run(request: pytest.FixtureRequest) -> Processes:
    """Return a runner of code in a separate process."""
    return Processes(request.param)


CREATE = """
import sys, numpy as np
from fastomp_nvm import create_store
values = np.random.default_rng(3).normal(size=(60, 700))
create_store(sys.argv[1], values, values[:, :6].sum(axis=1)).close()
"""

VERIFY = """
import sys
from fastomp_nvm import open_store
try:
    open_store(sys.argv[1]).verify()
except Exception as error:
    print(error)
"""


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(60, 700))


@pytest.mark.usefixtures("pymm_double")
def test_the_answer_does_not_depend_on_the_shelf(tmp_path: Path, values: np.ndarray) -> None:
    """A selection over a shelf has the bits of one over a file."""
    y = values[:, :4].sum(axis=1)
    found = []
    for url in (f"shelf://{tmp_path}/s#a", f"mmap://{tmp_path}/m"):
        with create_store(url, values, y) as store:
            found.append(select(store, k=6))
    assert found[0].medium == "shelf"
    assert found[0].features == found[1].features
    assert found[0].column_coef.tobytes() == found[1].column_coef.tobytes()


@pytest.mark.usefixtures("pymm_double")
def test_a_shelf_is_never_filled(tmp_path: Path, values: np.ndarray) -> None:
    """An allocation that may not fit is refused before pymm is called, and the shelf opens again."""
    url = f"shelf://{tmp_path}/s#a"
    with create_store(url, values) as store:
        with pytest.raises(MediumError, match="more do not fit"):
            store.region("huge", 1 << 30)
        assert list(store.regions()) == []
    with open_store(url) as store:
        store.verify()


def test_an_array_that_missed_the_shelf_is_an_error(tmp_path: Path, run: Processes) -> None:
    """Should pymm run full all the same, the array in ordinary memory is not used."""
    code = """
    import sys, numpy as np
    from storage_backends.pymm import directory as pymm_directory
    from fastomp_nvm import create_store
    pymm_directory._OVERHEAD = 0.01
    pymm_directory.room_for = lambda length: 1
    from storage_backends.pymm import shelf as pymm_shelf
    pymm_shelf.room_for = lambda length: 1
    try:
        create_store(f"shelf://{sys.argv[1]}/s#a", np.ones((1000, 9000), dtype=np.float32))  # pymm makes it 32 MiB
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    """
    done = run(code, str(tmp_path))
    assert "MediumError" in done.stdout
    assert "is full: pymm put 'matrix' into ordinary memory" in done.stdout


def test_a_new_shelf_avoids_those_that_are_open(tmp_path: Path, run: Processes) -> None:
    """With few addresses to choose from, every shelf still gets one of its own, and when none is left it is refused."""
    code = """
    import sys, numpy as np
    from fastomp_nvm import create_store
    from storage_backends.pymm import directory as pymm_directory
    pymm_directory._ADDRESSES = 3
    values = np.random.default_rng(3).normal(size=(60, 700))
    stores = [create_store(f"shelf://{sys.argv[1]}/{number}#a", values) for number in range(3)]
    for store in stores:
        store.verify()
    try:
        create_store(f"shelf://{sys.argv[1]}/4#a", values)
    except Exception as error:
        print(error)
    """
    assert "no free range" in run(code, str(tmp_path)).stdout


@pytest.mark.usefixtures("pymm_double")
def test_two_shelves_of_a_process_have_addresses_of_their_own(tmp_path: Path, values: np.ndarray) -> None:
    """Stores in two directories, and two stores of one, do not overwrite each other; equal addresses are refused."""
    urls = [f"shelf://{tmp_path}/one#a", f"shelf://{tmp_path}/one#b", f"shelf://{tmp_path}/two#b"]
    stores = [create_store(url, values + number) for number, url in enumerate(urls)]
    for store in stores:
        store.verify()
    url = f"shelf://{tmp_path}/two#a"
    assert Processes("double")(CREATE, url).returncode == 0
    first, last = (tmp_path / "one" / "a.json", tmp_path / "two" / "a.json")
    last.write_text(json.dumps({**json.loads(last.read_text()), "address": json.loads(first.read_text())["address"]}))
    with pytest.raises(StoreError, match="need the same addresses"):
        open_store(url)
    for store in stores:
        store.close()


def test_a_second_process_gets_an_error_and_not_a_signal(tmp_path: Path, run: Processes) -> None:
    """A shelf that another process opened, closed there or not, is refused with a sentence until that process ends."""
    url = f"shelf://{tmp_path}/s#a"
    code = """
    import os, sys, numpy as np
    from fastomp_nvm import create_store, open_store
    store = create_store(sys.argv[1], np.random.default_rng(0).normal(size=(60, 700)))
    for step in (lambda: None, store.close, lambda: open_store(sys.argv[1]).verify()):
        step()
        os.write(1, b".")
        sys.stdin.read(1)
    """
    with run.start(code, url) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        for _ in range(3):
            assert owner.stdout.read(1) == b"."
            refused = run(VERIFY, url)
            assert refused.returncode == 0
            assert "used by another process" in refused.stdout
            owner.stdin.write(b".")
            owner.stdin.flush()
    assert owner.returncode == 0
    done = run(VERIFY, url)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_process_without_our_lock_is_respected(tmp_path: Path, run: Processes) -> None:
    """A shelf that another program has open through pymm is refused with an error, not a signal."""
    url = f"shelf://{tmp_path}/s#a"
    assert run(CREATE, url).returncode == 0
    (data,) = tmp_path.glob("s/a.*/*.data")
    code = """
    import os, sys, pymm
    pymm.shelf(sys.argv[1], pmem_path=sys.argv[2])
    os.write(1, b"!ready")
    sys.stdin.read()
    """
    with run.start(code, data.stem, str(data.parent)) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        seen = b""
        while not seen.endswith(b"!ready"):
            piece = owner.stdout.read1()
            assert piece, seen
            seen += piece
        assert "used by another process" in run(VERIFY, url).stdout
        owner.stdin.close()
    assert run(VERIFY, url).stdout == ""


@pytest.mark.usefixtures("pymm_double")
def test_the_memory_of_a_replaced_store_is_given_back(tmp_path: Path, values: np.ndarray) -> None:
    """A removed shelf stays mapped, but its pages are freed once there is no view of them."""
    url = f"shelf://{tmp_path}/s#a"
    store = create_store(url, values)
    (data,) = tmp_path.glob("s/a.*/*.data")
    with open(data, "rb") as file:
        view = store.matrix[3]
        expected = view.copy()
        create_store(url, values, replace=True).close()
        assert (view == expected).all()
        del view
        assert os.fstat(file.fileno()).st_blocks > 0
        store.close()
        assert not data.exists()
        assert os.fstat(file.fileno()).st_blocks == 0


def test_a_forked_child_is_refused(tmp_path: Path, run: Processes) -> None:
    """Matrix and regions of a store opened before a fork are refused in the child, which lives to say so and ends as it wants."""
    code = """
    import os, sys, numpy as np
    from fastomp_nvm import create_store
    store = create_store(f"shelf://{sys.argv[1]}/s#a", np.ones((5, 5)) + np.eye(5))
    region = store.region("r", 64)
    child = os.fork()
    if not child:
        seen = []
        for attempt in (lambda: store.matrix, lambda: region.read(0, 8), lambda: store.region("q", 8)):
            try:
                attempt()
            except Exception as error:
                seen.append("forked" in str(error))
        sys.exit(0 if seen == [True] * 3 else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = run(code, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_noise_does_not_reach_our_output(tmp_path: Path, run: Processes) -> None:
    """Command-line JSON stays one object although pymm prints from Python and from C."""
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(30, 20)))
    code = "import sys; from fastomp_nvm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    url = f"shelf://{tmp_path}/s#a"
    assert run(code, "ingest", str(tmp_path / "X.npy"), url).returncode == 0
    done = run(code, "select", url, "--k", "2", "--target", "f0", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["medium"] == "shelf"


def test_a_foreign_module_of_that_name_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's pymm, or none at all, is an error that names the source of the real one."""
    monkeypatch.setitem(sys.modules, "pymm", types.ModuleType("pymm"))
    with pytest.raises(UnavailableError, match=r"another package of that name.*github\.com/IBM/pymm"):
        create_store(f"shelf://{tmp_path}/s#a", np.eye(3))
    monkeypatch.setitem(sys.modules, "pymm", None)
    with pytest.raises(UnavailableError, match="cannot be imported"):
        create_store(f"shelf://{tmp_path}/s#a", np.eye(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("pymm_double")
@pytest.mark.parametrize("name", ["", "a-tx", "a-value", "a/b", ".hidden", "x" * 101])
def test_names_that_break_a_shelf_are_refused(tmp_path: Path, name: str) -> None:
    """Reserved and unsafe names never reach pymm."""
    with pytest.raises(StoreURLError, match="name of a store"):
        create_store(f"shelf://{tmp_path}/s#{name}", np.eye(3))


@pytest.mark.crash
def test_a_killed_build_leaves_no_store_and_is_swept(tmp_path: Path, run: Processes) -> None:
    """After SIGKILL in the middle of a build there is no store, and the next build removes the remains."""
    code = """
    import os, signal, sys, numpy as np
    from storage_backends.build.builder import StoreBuilder
    from storage_backends.build.schema import TableSchema
    builder = StoreBuilder(f"shelf://{sys.argv[1]}/s#a", TableSchema.plain(40, ["a", "b"]))
    builder.write_rows(0, np.ones((20, 2)))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(code, str(tmp_path)).returncode == -9
    assert len(list((tmp_path / "s").iterdir())) == 1
    code = """
    import sys, numpy as np
    from fastomp_nvm import create_store
    create_store(f"shelf://{sys.argv[1]}/s#a", np.ones((40, 2)) * [[1, 2]]).close()
    """
    done = run(code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "s").iterdir())) == 2  # the pointer and the one version


@pytest.mark.crash
def test_a_run_killed_on_a_shelf_is_resumed(tmp_path: Path, run: Processes) -> None:
    """A durable run whose process is killed goes on from the journal on the shelf, with the answer of an undisturbed one."""
    url = f"shelf://{tmp_path}/s#a"
    assert run(CREATE, url).returncode == 0
    code = """
    import json, os, signal, sys
    os.environ["FASTOMP_HOME"] = sys.argv[2]
    from fastomp_nvm.runs import drive as durable_runs
    def told(progress):
        if progress.round == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[4] == "start":
        found = durable_runs.start("r", sys.argv[1], k=6, algorithm="sds_omp", observer=told)
    else:
        found = durable_runs.resume("r")
    print(json.dumps([list(found.indices.tolist()), found.column_coef.tolist()]))
    """
    home = str(tmp_path / "home")
    assert run(code, url, home, "4", "start").returncode == -9
    resumed = run(code, url, home, "-1", "resume")
    assert resumed.returncode == 0, resumed.stderr
    fresh = run(code, url, str(tmp_path / "other"), "-1", "start")
    assert resumed.stdout == fresh.stdout


def test_the_overhead_is_on_the_safe_side() -> None:
    """The size of a shelf allows for the measured overhead: 31 arrays of a megabyte in 64 MiB."""
    wanted = 31 << 20
    assert pymm_directory.room_for(wanted) >= 64
