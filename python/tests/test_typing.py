"""What type checkers say of programs that use the package: mypy, on one with mistakes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses
from typing import Optional

from toolmesh import AsyncMesh, Host, Mesh, local, mesh

@dataclasses.dataclass
class Forecast:
    city: str

here = Mesh()
reveal_type(here.call("a"))  # Any
reveal_type(here.call("a", returns=Forecast))  # program.Forecast
reveal_type(here.call("a", returns=list[int], timeout=3))  # list[int]
here.call("a", returns=Optional[int])
here.call("a", returns=int, timout=3)  # no-overload
for one in here.stream("a", returns=Forecast):
    reveal_type(one)  # program.Forecast
reveal_type(here.session("s"))  # Mesh
reveal_type(here.install("a/b")[0](1, x=2))  # Any
reveal_type(here.submit("a").result(timeout=1))  # Any
with local() as entered:
    reveal_type(entered)  # Mesh

async def main() -> None:
    reveal_type(await AsyncMesh().call("a", returns=Forecast))  # program.Forecast
    reveal_type(await here.acall("a", returns=Forecast))  # program.Forecast
    reveal_type(await (await AsyncMesh().tool("a"))(1))  # Any

@mesh.tool(parallel_safe=True)
def add(x: int) -> int:
    return x

reveal_type(add)  # def (x: int) -> int
mesh.tool(paralel_safe=True)  # no-overload
mesh.tool(add, timeout=[1])  # no-overload
mesh.serve(indx="b")  # no-such
mesh.submit("a", atempts=3)  # no-such
here.collect("a", idel=3)  # no-such
Host(index="b").tool(add, nam="x")  # no-overload
Host(indx="b")  # no-such
"""


@pytest.mark.timeout(300)
def test_mypy_finds_misspelt_keywords(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-version=3.10", "--no-error-summary",
         f"--cache-dir={tmp_path / 'cache'}", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "MYPYPATH": str(pathlib.Path(__file__).parent.parent / "src")})
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        found = re.match(r"program\.py:(\d+): (error|note): (.*)", line)
        assert found or "defined in" in line or "/src/toolmesh/" in line, done.stdout + done.stderr
        if found and (found[2] == "error" or "Revealed" in found[3]):
            said.setdefault(int(found[1]), found[3])
    wrong = []
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        _, marked, expected = line.partition("  # ")
        got = said.get(number, "")
        if not marked:
            ok = not got
        elif expected.startswith("no-"):
            ok = "Unexpected keyword argument" in got or "No overload variant" in got
        else:
            ok = got in (f'Revealed type is "{expected}"', f'Revealed type is "toolmesh.client.{expected}"')
        if not ok:
            wrong.append(f"{line}: {got}")
    assert not wrong, "\n".join(wrong) + done.stderr
