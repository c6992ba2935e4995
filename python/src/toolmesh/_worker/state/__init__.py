"""State that a process of the worker shares between calls and across a fork: the state before the first call, its
limits, its children, what a fork copies.

It never runs a call and never speaks to the agent; it knows no tool.
"""
