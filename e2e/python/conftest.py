"""A mesh for the tests here: the one that MESH_E2E_URL names, and such as tests start themselves with MESH_E2E_BIN."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "python" / "src"))

# They have an environment of their own: make test-frameworks.
collect_ignore = [] if importlib.util.find_spec("dspy") else ["frameworks"]


def warm(data: pathlib.Path) -> None:
    """Puts the worker's bytecode that tests of Go have left into a new folder: to compile it takes half a second."""
    made = pathlib.Path(os.environ.get("MESH_TEST_BIN", "/nowhere")) / "worker"
    if made.is_dir() and not data.exists():
        data.mkdir(0o700)
        (data / "executor").mkdir(0o755)
        shutil.copytree(made, data / "executor" / "worker")


class Started:
    """A mesh of a test's own."""

    def __init__(self, folder: pathlib.Path, listen: str = "127.0.0.1:0", more: Sequence[str] = ()) -> None:
        self.folder = folder
        self.binary = os.environ["MESH_E2E_BIN"]
        self.environment = {
            **{name: value for name, value in os.environ.items()
               if not name.startswith(("MESH_", "NATS_")) and name != "PYTHONPYCACHEPREFIX"},
            "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "share"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        warm(folder / "data")
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            [self.binary, "up", "--nats-listen", listen, "--data-dir", str(folder / "data"), *more],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"nats=(\S+)", line)
        assert found, (folder / "log").read_text()
        self.url = found.group(1)

    def run(self, *command: str) -> str:
        """The output of a command of mesh."""
        return subprocess.run([self.binary, *command], env=self.environment, check=True,
                              capture_output=True, text=True).stdout

    def kill(self) -> None:
        """Ends it at once: nobody waits until it has drained."""
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., Started]]:
    """Starts a mesh whose data is the test's, and ends it."""
    all_of_them: list[Started] = []

    def begin(listen: str = "127.0.0.1:0") -> Started:
        all_of_them.append(Started(tmp_path, listen))
        return all_of_them[-1]

    yield begin
    for one in all_of_them:
        if one.process.poll() is None:
            one.kill()


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A mesh that serves indexes/rich, and the example lab."""
    one = Started(tmp_path_factory.mktemp("rich"))
    one.run("install", str(HERE / "indexes" / "rich"))
    one.run("install", str(HERE.parent.parent / "examples" / "indexes" / "lab"))
    yield one
    one.kill()


@pytest.fixture(scope="module")
def binary() -> Iterator[None]:
    """Hosts find the binary that is tested."""
    before = os.environ.get("TOOLMESH_BINARY")
    os.environ["TOOLMESH_BINARY"] = os.environ["MESH_E2E_BIN"]
    yield
    del os.environ["TOOLMESH_BINARY"]
    if before is not None:
        os.environ["TOOLMESH_BINARY"] = before


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A mesh that anybody may serve in."""
    one = Started(tmp_path_factory.mktemp("open"), more=["--open"])
    yield one
    one.kill()
