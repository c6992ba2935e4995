"""Call a tool with the key of a session through our own package: package.py URL FILE SESSION."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "python" / "src"))

import toolmesh

url, file, session = sys.argv[1:]
question = {"account": "alice", "amount": 20}
for _ in range(20):  # each connection finds out which inbox its key has
    with toolmesh.Mesh(url, nkey=file, session=session) as mesh:
        print(mesh.call("lab.bank.withdraw", question))
with toolmesh.Mesh(url, nkey=file, session="another") as mesh:
    try:
        mesh.call("lab.bank.withdraw", question)
    except toolmesh.MeshError as failure:
        assert failure.code == "permission_denied", failure
    else:
        raise AssertionError("the key opens another session")
