"""Calls: the two kinds of worker, a tool's output and exceptions, and its own calls.

It never imports a module of the index, starts no process, and writes frames only through the one Outlet: a cancellation
must not cut a frame in two.
"""
