"""The side of an index that runs Python: a zygote that imports the tools once,
and the workers that it forks.

These files use the standard library alone and import each other relatively:
the agent writes them into its own folder under a private package name, so that
nothing is installed into an index's environment and no name can clash.

Started by the Go package ``executor``; nobody else runs them.
"""

PROTOCOL = 1
