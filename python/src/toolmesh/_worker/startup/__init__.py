"""The processes: the root, the zygote, the base that zygotes are copies of, the parent of a command.

It never runs a call: calls takes over a forked worker. It imports no code of an index before a sandbox level is in
effect. Before the first fork it makes objects that all workers share.
"""
