"""The sandbox levels, from inside: they bound what the processes of an index may touch.

It is in effect before any code of an index is imported, so it never imports any, and uses the system directly: no
thread, no file of the index, nothing that is not needed to give something up. It imports nothing of the worker.
"""
