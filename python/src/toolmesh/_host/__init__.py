"""The child process that is a Python host's node, and the call that code of a host serves.

It never imports the client.
"""
