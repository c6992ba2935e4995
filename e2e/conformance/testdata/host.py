"""The Python host of the suite: the tools of conf.py, served by this process as the index that argv names."""

import pathlib
import sys

import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).parent / "conf"))

import conf

from toolmesh import mesh

declared = tomllib.loads((pathlib.Path(__file__).parent / "conf" / "tools.toml").read_text())
for name in declared["index"]["tools"]:
    mesh.tool(getattr(conf, name.rpartition(".")[2]))
mesh.serve(index=sys.argv[2], servers=sys.argv[1])
