"""What the tools of all frameworks share. It never imports a framework but for dspy_tool, which is DSPy's."""
