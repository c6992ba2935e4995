"""What the tests of the frameworks share: quiet packages that ask no network, and a mesh to call."""

import os
import tempfile
from collections.abc import Iterator

os.environ.update({
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": tempfile.mkdtemp(), "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "TOOLMESH_BINARY": os.environ["MESH_E2E_BIN"],
})

import pytest  # noqa: E402

from toolmesh import Host, Mesh  # noqa: E402


@pytest.fixture(scope="session")
def node(rich) -> dict:
    """What a Host connects by."""
    return {"servers": rich.url, "nkey": str(rich.folder / "data" / "keys" / "node.nk")}


@pytest.fixture(scope="session")
def mesh(rich, node) -> Iterator[Mesh]:
    """A mesh with the indexes rich and lab, and odd, which this process serves."""
    host = Host(index="odd", **node)

    @host.tool
    def reserved(config: str, callbacks: int = 0, run_manager: str = "", self: str = "") -> dict:  # noqa: PLR0917
        """Its parameters have names that frameworks keep for themselves."""
        return {"config": config, "callbacks": callbacks, "run_manager": run_manager, "self": self}

    @host.tool(parallel_safe=True, resource_key=["file", "{path}"])
    def read(path: str, lines: int | None = None) -> str:
        """Reads a file.

        Args:
            path: Where it is.
        """
        return f"{path}:{lines}"

    with host, Mesh(rich.url) as one:
        yield one
