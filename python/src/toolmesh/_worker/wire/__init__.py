"""The frames between agent and worker: their numbers, reading and writing.

docs/worker-protocol.md describes them, the Go package executor/internal/frame is the other side. This package does not
interpret bodies and imports nothing of the worker.
"""
