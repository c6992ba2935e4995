"""What a level does, it does to no other process."""

from __future__ import annotations

import ast
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

CODE = """
import os
from toolmesh._worker.sandbox import levels

def mounts():
    with open("/proc/self/mountinfo") as file:
        return file.read()

before = mounts()
child = os.fork()
if child == 0:
    try:
        levels.confine("strict", "namespace", os.environ["TMPDIR"], (), ())
        os._exit(mounts() == before)
    except BaseException:
        os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), mounts() == before)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
def test_mounts_are_private_to_their_process(tmp_path: object) -> None:
    """Also where the agent has made no namespace for them. The test is in one of its own:
    what it guards against takes the machine's files away."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    src = os.path.join(os.path.dirname(os.path.dirname(__file__)), "src")
    env = {**os.environ, "PYTHONPATH": src, "TMPDIR": str(tmp_path)}
    ran = subprocess.run([unshare, "--mount", sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    if "unshare failed" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.stdout == "0 True\n", ran.stderr


ALONE = """
import errno, os, sys
from toolmesh._worker.sandbox import levels

top, abi = sys.argv[1], int(sys.argv[2])
data, beside = top + "/data", top + "/beside"
levels._FOLDERS = data + "/folders"
if abi:
    levels._abi = lambda: abi
try:
    levels.confine("guard", levels.REAPER, "", (), [(top + "/link/given", levels.WRITE)])
except levels.Refused:
    pass  # who could make such a link would have the agent's folder
else:
    raise SystemExit("given through a link")
given = {"given": levels.WRITE, "seen": levels.READ, "shown": levels.SEE, "tmp": levels.OWN}
levels.confine("guard", levels.REAPER, "", (), [(data + "/" + name, access) for name, access in given.items()])
levels.prepare("guard")
levels.domain("guard")

def tried(what, *args):
    try:
        what(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]

def read(path):
    with open(path) as file:
        file.read()

def write(path):
    with open(path, "a"):
        pass

print({
    "read": tried(read, data + "/secret"), "read another's": tried(read, data + "/other/file"),
    "empty": tried(os.truncate, data + "/shown/file", 0),
    "write": tried(write, data + "/shown/file"), "make": tried(write, data + "/shown/new"),
    "link": tried(os.link, data + "/secret", beside + "/link"), "move": tried(os.rename, data, top + "/moved"),
    "go around": tried(read, top + "/link/secret"), "make above": tried(write, top + "/new"),
} if sys.argv[3] == "refused" else {
    "read": tried(read, data + "/shown/file"), "read what is given": tried(read, data + "/seen/file"),
    "write temporary files": tried(write, data + "/tmp/new"), "write what is given": tried(write, data + "/given/new"),
    "write beside": tried(write, beside + "/new"), "write a file beside": tried(write, top + "/file"),
    "move": tried(os.rename, beside + "/file", data + "/tmp/moved"),
    "move back": tried(os.rename, data + "/tmp/moved", beside + "/back"),
    "list": tried(os.listdir, top), "null": tried(write, "/dev/null"),
})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("abi", [0, 2])
def test_the_agents_files_without_mounts(tmp_path: pathlib.Path, abi: int) -> None:
    """Kernels before 6.2 (the second) let Landlock know nothing of truncating."""
    from toolmesh._worker.sandbox import filters, levels

    if levels._abi() < 3 or os.uname().machine not in filters.AUDIT:
        pytest.skip("no Landlock, or no filter")
    for folder in ("data/worker", "data/shown", "data/seen", "data/tmp", "data/given", "data/other", "beside"):
        os.makedirs(tmp_path / folder)
    for file in ("data/secret", "data/other/file", "data/shown/file", "data/seen/file", "beside/file", "file"):
        (tmp_path / file).write_text("x")
    (tmp_path / "link").symlink_to("data")
    data = str(tmp_path / "data")
    (tmp_path / "data" / "folders").write_text("\0".join([data, "", f"{data}/worker"]))

    def outcomes(which: str) -> dict[str, str]:
        src = os.path.join(os.path.dirname(os.path.dirname(__file__)), "src")
        command = [sys.executable, "-c", ALONE, str(tmp_path), str(abi), which]
        ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": src}, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        found: dict[str, str] = ast.literal_eval(ran.stdout)
        return found

    refused = outcomes("refused")
    assert refused.pop("link") in ("EXDEV", "EACCES")
    assert refused == dict.fromkeys(refused, "EACCES")
    allowed = outcomes("allowed")
    assert allowed == dict.fromkeys(allowed, "ok")
    assert (tmp_path / "data" / "shown" / "file").read_text() == "x"
