"""The processes: the root, the zygote, the base that zygotes are copies of, the one above a command.

It never runs a call: a worker that it has forked is handed to calls. Until a sandbox level is in effect it imports
no code of an index; before the first fork it makes all that workers would each make for themselves.
"""
