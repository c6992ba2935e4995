"""What a level does, it does to no other process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

CODE = """
import os
from toolmesh._worker.confining import levels

def mounts():
    with open("/proc/self/mountinfo") as file:
        return file.read()

before = mounts()
child = os.fork()
if child == 0:
    try:
        levels.zygote("strict", "namespace", os.environ["TMPDIR"])
        os._exit(mounts() == before)
    except BaseException:
        os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), mounts() == before)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
def test_mounts_stay_with_who_asked_for_them(tmp_path: object) -> None:
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
