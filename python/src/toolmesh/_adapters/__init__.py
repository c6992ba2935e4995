"""The common part of the tools of all frameworks. Only dspy_tool, which is for DSPy, imports a framework."""
