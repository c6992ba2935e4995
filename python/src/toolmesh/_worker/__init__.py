"""The Python side of an index: a zygote that imports the tools once, and the workers that it forks.

These files use only the standard library and import each other relatively. The agent writes them into its own folder
under a private package name, so that nothing is installed into an index's environment and no name can clash.

startup is the only entrance, and tools import mesh, by way of site/toolmesh. The other packages may import only those
before them in this list: wire, state, sandbox, schemas, calls, startup. internal/archtest checks that.

Only the Go package ``executor`` starts them.
"""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep  # tracebacks leave out the frames of files below it
