"""The wheels, installed into an empty environment, and the mesh that a program starts for itself."""

import os
import pathlib
import platform
import re
import runpy
import shutil
import subprocess
import sys
import time
import venv
import zipfile

import pytest
from conftest import HERE

ROOT = HERE.parent.parent
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
MAKES = runpy.run_path(str(ROOT / "python" / "wheels.py"))
HERE_RUNS = f"{platform.system().lower()}/{MACHINES[platform.machine()]}"

STARTS = """
from toolmesh import local
mesh = local(idle=3)
print(mesh._links.settings["servers"], [tool.id for tool in mesh.tools()], flush=True)
input()
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """The pure wheel, and this platform's, with the binary that is tested: make test-more builds it as for users."""
    pure = MAKES["pure"](tmp_path_factory.mktemp("dist"))
    binary = pathlib.Path(os.environ["MESH_E2E_BIN"]).read_bytes()
    return {"pure": pure, "platform": MAKES["carrying"](pure, HERE_RUNS, binary)}


def nothing_yet(home: pathlib.Path, path: str = "") -> dict[str, str]:
    """The environment of a user who has nothing yet but what is in these folders of the PATH."""
    named = {name: value for name, value in os.environ.items()
             if not name.startswith(("MESH_", "NATS_", "TOOLMESH_", "PYTHON", "XDG_"))}
    return {**named, "HOME": str(home), "PATH": f"{path}:/usr/bin:/bin"}


README = (ROOT / "python" / "README.md").read_text()


@pytest.fixture(scope="module")
def programs(wheels: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of programs of an environment that had nothing before the first page's line for pip, as pasted."""
    (command,) = re.findall(r"^pip install --find-links dist toolmesh$", README, re.MULTILINE)
    home = tmp_path_factory.mktemp("home")
    if uv := shutil.which("uv"):  # takes a tenth of the time, with the same pip
        subprocess.run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, home / "venv"], check=True)
    else:
        venv.create(home / "venv", with_pip=True)
    found = str(home / "venv" / "bin")
    folder = wheels["platform"].parent
    subprocess.run(["sh", "-c", command.replace(" dist ", f" {folder} ")], check=True, env=nothing_yet(home, found),
                   capture_output=True)
    return found


@pytest.fixture
def environment(programs: str, tmp_path: pathlib.Path) -> dict[str, str]:
    """That of a user who has these programs, and has called none."""
    return nothing_yet(tmp_path, programs)


def test_a_wheel_for_this_platform(environment: dict[str, str]) -> None:
    home = pathlib.Path(environment["HOME"])
    running = [subprocess.Popen(["python", "-X", "dev", "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    said = [one.stdout.readline() for one in running if one.stdout is not None]
    failed = [one.communicate()[1] for one in running if not all(said)]
    assert said[0] == said[1] and said[0].startswith("nats://127.0.0.1:"), failed
    log = next((home / ".local").rglob("toolmesh.log"))
    time.sleep(3.5)  # it is not idle while programs are connected
    assert "no client is connected" not in log.read_text()
    for one in running:
        out, err = one.communicate("\n", timeout=60)
        assert (one.returncode, err) == (0, "")
    records = home / ".local" / "state" / "toolmesh"
    end = time.monotonic() + 60
    while list(records.glob("*.mesh.json")):
        assert time.monotonic() < end, "the mesh does not end"
        time.sleep(0.05)
    assert "no client is connected" in log.read_text()


def test_the_command_and_the_first_page(environment: dict[str, str]) -> None:
    """As pasted."""
    program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    said = [subprocess.run([*command, "version"], check=True, env=environment, capture_output=True, text=True).stdout
            for command in (["mesh"], ["python", "-m", "toolmesh"])]
    assert said[0] == said[1] and said[0].startswith("mesh "), said
    try:
        done = subprocess.run(["python", "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True,
                              check=False)
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["Norway"]), done.stderr
    finally:
        subprocess.run(["mesh", "down"], env=environment, check=False, capture_output=True)


def test_the_pure_wheel_says_where_to_get_the_binary(wheels: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(wheels["pure"]) as read:
        names = read.namelist()
    assert "toolmesh/py.typed" in names and "toolmesh/_worker/startup/zygote.py" in names
    assert not any("tests" in name or "scripts/" in name for name in names)
    venv.create(tmp_path / "venv")
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                    "--disable-pip-version-check", str(wheels["pure"])], check=True)
    done = subprocess.run([python, "-c", "import toolmesh; toolmesh.local()"], capture_output=True, text=True,
                          env=nothing_yet(tmp_path), check=False)
    assert "toolmesh.Unavailable" in done.stderr and "wheel" in done.stderr and "TOOLMESH_BINARY" in done.stderr


def test_the_same_sources_give_the_same_wheel(wheels: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """With one binary: go build gives the same one for the same sources."""
    again = MAKES["pure"](tmp_path)
    (tmp_path / "first").mkdir()
    first = pathlib.Path(shutil.copy(wheels["pure"], tmp_path / "first"))
    for one, other in ((again, first), [MAKES["carrying"](pure, HERE_RUNS, b"a program") for pure in (again, first)]):
        assert one.name == other.name and one.read_bytes() == other.read_bytes()
