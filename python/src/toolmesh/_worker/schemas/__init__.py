"""From a function to its JSON schemas, and between JSON values and Python values.

It never calls a tool and never speaks to the agent. An unknown annotation is a warning; the tool is still served.
"""
