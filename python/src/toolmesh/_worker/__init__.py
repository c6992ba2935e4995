"""The side of an index that runs Python: a zygote that imports the tools once, and the workers that it forks.

These files use the standard library alone and import each other relatively: the agent writes them into its own folder
under a private package name, so that nothing is installed into an index's environment and no name can clash.

entry is the one way in, and mesh is what tools import. The rest is in rooms, of which each imports only those before
it: wire, state, sandbox, schemas, calls, startup. internal/archtest holds them to it.

Only the Go package ``executor`` starts them.
"""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep  # whose frames are ours
