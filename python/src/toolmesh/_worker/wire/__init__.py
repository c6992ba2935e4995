"""The frames between agent and worker: their numbers, how they are cut and written.

docs/worker-protocol.md is its page, the Go package executor/internal/frame its other side. It never knows what a
frame's body means, and imports nothing of the worker.
"""
