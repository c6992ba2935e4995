"""From a function to its JSON schemas, and from JSON values to what the function takes and back.

It never calls a tool and never speaks to the agent. An annotation that is not understood is a warning, never a lost
tool.
"""
