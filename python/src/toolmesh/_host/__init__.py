"""The child process that is a Python host's node, and the current call of a host's code.

It never imports the client.
"""
