"""An agent inside a worker, whose tools are anybody's: here, the Go functions of the service that calls it."""

import os
import tempfile
from typing import Any

# Before the import: dspy keeps a cache, litellm asks the network for prices.
os.environ.setdefault("DSPY_CACHEDIR", os.path.join(tempfile.gettempdir(), "dspy"))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy  # noqa: E402
from dspy.utils import DummyLM  # noqa: E402

from toolmesh import mesh  # noqa: E402


def react(question: str, tool_ids: list[str]) -> dict[str, Any]:
    """Answers a question with tools of the session.

    Args:
        question: what is asked
        tool_ids: the tools that it may use
    """
    tools = [_tool(mesh.describe(one)) for one in tool_ids]
    agent = dspy.ReAct("question -> answer", tools=tools, max_iters=len(tools) + 3)
    with dspy.context(lm=_model(question, tools)):
        found = agent(question=question)
    return {"answer": found.answer, "seen": [value for key, value in found.trajectory.items() if "observation" in key]}


def total(lines: list[str], price: str) -> int:
    """What the lines of an order cost together, by a tool that knows prices."""
    return sum(mesh.call(price, {"line": line}) for line in lines)


def _tool(told: dict[str, Any]) -> dspy.Tool:
    """A tool of the mesh as one of dspy, by what the mesh says of it."""
    tool_id, streaming = told["id"], told.get("annotations", {}).get("streaming")

    def call(**arguments: Any) -> Any:
        # Nested in the call that runs here: in its session, one deeper, in its time.
        return tuple(mesh.stream(tool_id, arguments)) if streaming else mesh.call(tool_id, arguments)

    properties = told["input_schema"].get("properties", {})
    return dspy.Tool(call, name=tool_id.replace(".", "_").replace("-", "_"), desc=told.get("description", ""),
                     args=properties, arg_types=dict.fromkeys(properties, Any))


def _model(question: str, tools: list[dspy.Tool]) -> Any:
    """The model that is set, or a script: each tool once, asked the question."""
    name = os.environ.get("REACT_MODEL")
    if name:
        return dspy.LM(name)
    steps = [{"next_thought": "I ask.", "next_tool_name": one.name, "next_tool_args": dict.fromkeys(one.args, question)}
             for one in tools]
    return DummyLM([*steps, {"next_thought": "I know.", "next_tool_name": "finish", "next_tool_args": {}},
                    {"reasoning": "They said so.", "answer": f"All of {question} is known."}])
