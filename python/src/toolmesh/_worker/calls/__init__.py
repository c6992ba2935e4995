"""One call and many: the two kinds of worker, what a tool prints, what it raises, the calls that it makes itself.

It never imports a module of the index, starts no process, and writes no frame but through the one Outlet: a
cancellation must not cut one in two.
"""
