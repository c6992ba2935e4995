"""The frames between agent and worker: their numbers, reading and writing.

docs/worker-protocol.md describes them, the Go package executor/internal/frame is the other side. It never interprets
bodies, and imports nothing of the worker.
"""
