"""The common part of the tools of all frameworks. It never imports a framework but for dspy_tool, which is DSPy's."""
