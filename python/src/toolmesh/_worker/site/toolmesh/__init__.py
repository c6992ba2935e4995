"""toolmesh where it is not installed: in a worker, and in the Python processes that multiprocessing starts for its
tools. They get the worker's sys.path, and import the modules of the index anew."""

import os
import sys

sys.path.insert(0, os.path.abspath(os.path.join(__file__, "..", "..", "..", "..")))
try:
    from _toolmesh_worker import mesh  # type: ignore[import-not-found]  # as the agent writes it
    from _toolmesh_worker.calls import errors  # type: ignore[import-not-found]
    from _toolmesh_worker.schemas import files  # type: ignore[import-not-found]
finally:
    del sys.path[0]

globals().update(errors.NAMES, mesh=mesh, File=files.File)
sys.modules["toolmesh.mesh"] = mesh
