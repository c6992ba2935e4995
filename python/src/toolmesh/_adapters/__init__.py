"""The common part of the tools of all frameworks. It never imports a framework, except in dspy_tool, for DSPy."""
