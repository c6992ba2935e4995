"""The sandbox levels, from inside: they restrict the processes of an index.

A level is in effect before any code of an index is imported. So it never imports any, and uses the system
directly: no threads, no files of the index, only calls that give rights up. It imports nothing of the worker.
"""
