"""Tools of the mesh in the frameworks that people use: the real packages, scripted models."""

import asyncio
import json

import httpx2
import pytest

import toolmesh
from toolmesh import Host


def by_name(tools, name):
    (found,) = [one for one in tools if one.name == name]
    return found


class TestLangChain:
    def tools(self, mesh, prefix=""):
        from toolmesh.langchain import tools

        return tools(mesh, prefix)

    def test_content_artifact_and_schema(self, mesh):
        size = by_name(self.tools(mesh, "rich."), "rich_rich_size")
        assert size.args_schema == mesh.tool("rich.rich.size").input_schema
        message = size.invoke({"type": "tool_call", "id": "1", "name": size.name, "args": {"text": "four"}})
        assert (message.content, message.artifact, message.status) == ("4", 4, "success")
        numbers = by_name(self.tools(mesh, "rich."), "rich_rich_numbers")
        call = {"type": "tool_call", "id": "1", "name": numbers.name, "args": {"count": 2}}
        assert asyncio.run(numbers.ainvoke(call)).artifact == [0, 1]

    def test_a_failure_is_shown_and_ends_nothing(self, mesh):
        for args, text in (({"text": 4}, "invalid_arguments"), ({}, "invalid_arguments")):
            call = {"type": "tool_call", "id": "1", "name": "rich_rich_size", "args": args}
            tool = by_name(self.tools(mesh, "rich."), "rich_rich_size")
            for message in (tool.invoke(call), asyncio.run(tool.ainvoke(call))):
                assert message.status == "error" and text in message.content

    def test_arguments_of_models_are_understood(self, mesh):
        tool = by_name(self.tools(mesh, "rich."), "rich_rich_numbers")
        call = {"type": "tool_call", "id": "1", "name": tool.name, "args": {"Count": "2", "pause": None}}
        assert tool.invoke(call).artifact == asyncio.run(tool.ainvoke(call)).artifact == [0, 1]
        assert "invalid_arguments" in tool.invoke({**call, "args": {"count": "two"}}).content

    def test_names_of_lists_that_are_put_together(self, mesh, node):
        one, other = Host(index="tw-in", **node), Host(index="tw", **node)
        one.tool(lambda: 1, name="pay")
        other.tool(lambda: 2, name="in-pay")
        with one, other:
            both = self.tools(mesh, "tw-in.") + self.tools(mesh, "tw.")
            assert len(both) == len({tool.name for tool in both}) == 2
            ids = ("tw-in.pay", "tw.in-pay")
            declared = [mesh.format("openai", [tool])[0]["function"]["name"] for tool in ids]
            assert [mesh.execute({"name": name}) for name in declared] == [1, 2]

    def test_parameters_with_names_that_langchain_keeps(self, mesh):
        tool = by_name(self.tools(mesh, "odd."), "odd_reserved")
        given = {"config": "mine", "callbacks": 3, "run_manager": "me", "self": "I"}
        call = {"type": "tool_call", "id": "1", "name": tool.name, "args": given}
        assert tool.invoke(call).artifact == given
        assert asyncio.run(tool.ainvoke(call)).artifact == given

    def test_an_agent_of_langgraph(self, mesh):
        from langchain.agents import create_agent
        from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
        from langchain_core.messages import AIMessage

        class Scripted(GenericFakeChatModel):
            def bind_tools(self, tools, **_):
                return self

        def calls(*some):
            return AIMessage("", tool_calls=[{"id": str(number), "name": name, "args": args}
                                             for number, (name, args) in enumerate(some)])

        script = [calls(("rich_rich_size", {"text": "four"}), ("rich_rich_fails", {"account": "a"})), AIMessage("done")]
        agent = create_agent(Scripted(messages=iter(script)), self.tools(mesh, "rich."))
        found = agent.invoke({"messages": [("user", "how long?")]})["messages"]
        assert [one.content for one in found[2:]] == ["4", "rich.rich.fails: tool_error: Overdrawn: a lacks 7", "done"]

    def test_the_tool_node(self, mesh):
        from langchain_core.messages import AIMessage
        from langgraph.graph import START, MessagesState, StateGraph
        from langgraph.prebuilt import ToolNode

        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode(self.tools(mesh, "rich.")))
        graph.add_edge(START, "tools")
        call = AIMessage("", tool_calls=[{"id": "1", "name": "rich_rich_echo", "args": {"value": [1, None]}}])
        found = asyncio.run(graph.compile().ainvoke({"messages": [call]}))["messages"][-1]
        assert (found.content, found.artifact) == ("[1, null]", [1, None])


def scripted_model(*answers):
    """A model of the OpenAI Agents SDK that says what it is told to."""
    from agents import Model, ModelResponse, Usage

    class Scripted(Model):
        def __init__(self):
            self.seen, self.tools, self.answers = [], [], list(answers)

        async def get_response(self, system_instructions, input, model_settings, tools, *_, **__):
            self.seen.append(input)
            self.tools = tools
            return ModelResponse(output=self.answers.pop(0), usage=Usage(), response_id=None)

        def stream_response(self, *_, **__):
            raise NotImplementedError

    return Scripted()


class TestOpenAIAgents:
    def run(self, mesh, prefix, *calls):
        from agents import Agent, Runner
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        from toolmesh.openai_agents import tools

        model = scripted_model(
            [ResponseFunctionToolCall(arguments=arguments, call_id=str(number), name=name, type="function_call")
             for number, (name, arguments) in enumerate(calls)],
            [ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[
                ResponseOutputText(annotations=[], text="done", type="output_text")])])
        agent = Agent(name="one", model=model, tools=tools(mesh, prefix))
        found = asyncio.run(Runner.run(agent, "?"))
        assert found.final_output == "done"
        return model, [one["output"] for one in model.seen[-1] if one.get("type") == "function_call_output"]

    def test_an_agent(self, mesh):
        model, outputs = self.run(
            mesh, "rich.", ("rich-rich-size", '{"text": "four"}'), ("rich-rich-numbers", '{"count": 2}'),
            ("rich-rich-fails", '{"account": "a"}'), ("rich-rich-size", '{"text": 4}'),
            ("rich-rich-size", '{"text": "four",}'))
        assert outputs[:3] == ["4", "[0, 1]", "error: rich.rich.fails: tool_error: Overdrawn: a lacks 7"]
        assert "invalid_arguments" in outputs[3] and outputs[4] == "4"  # broken JSON is mended

    def test_optional_parameters_stay_optional(self, mesh):
        model, outputs = self.run(mesh, "odd.", ("odd-read", '{"path": "/a", "lines": null}'), ("odd-read", '{"path": "/a"}'),
                                  ("odd-reserved", '{"config": "x", "callbacks": null, "run_manager": null, "self": null}'))
        assert outputs[:2] == ["/a:None", "/a:None"]
        assert json.loads(outputs[2]) == {"config": "x", "callbacks": 0, "run_manager": "", "self": ""}
        declared = {one["name"]: one for one in mesh.format("openai-responses", ["odd.read", "odd.reserved"])}
        for tool in model.tools:
            assert tool.params_json_schema == declared[tool.name]["parameters"]
            assert tool.strict_json_schema is bool(declared[tool.name].get("strict"))


    def test_another_rendering_changes_nothing(self, mesh):
        from toolmesh.openai_agents import tools

        (read,) = [one for one in tools(mesh, "odd.") if one.name == "odd-read"]
        for provider in ("anthropic", "gemini", "mcp"):
            mesh.format(provider, ["odd.read", "odd.reserved"])
        assert asyncio.run(read.on_invoke_tool(None, '{"path": "/a", "lines": "3"}')) == "/a:3"
        (reserved,) = [one for one in tools(mesh, "odd.") if one.name == "odd-reserved"]
        mesh.format("anthropic", ["odd.reserved"])
        given = '{"config": "x", "callbacks": null, "run_manager": null, "self": null}'
        assert json.loads(asyncio.run(reserved.on_invoke_tool(None, given)))["callbacks"] == 0


class TestPydanticAI:
    def run(self, mesh, prefix, *rounds):
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel

        from toolmesh.pydantic_ai import tools

        script, seen = list(rounds), []

        def model(messages, info):
            seen.append((messages[-1], info))
            if not script:
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart(name, args) for name, args in script.pop(0)])

        agent = Agent(FunctionModel(model), tools=tools(mesh, prefix))
        assert asyncio.run(agent.run("?")).output == "done"
        return seen

    def test_an_agent(self, mesh):
        seen = self.run(mesh, "rich.", [("rich_rich_size", {"text": 4})],
                        [("rich_rich_size", {"text": "four"}), ("rich_rich_numbers", {"count": 2}),
                         ("rich_rich_fails", {"account": "a"})])
        (retry,) = seen[1][0].parts
        assert retry.outcome == "retried" and "invalid_arguments" in retry.content
        one, other, failed = seen[2][0].parts
        assert (one.content, other.content) == (4, [0, 1])
        assert "Overdrawn: a lacks 7" in str(failed.content) and failed.outcome == "failed"

    def test_arguments_of_models_are_understood(self, mesh):
        seen = self.run(mesh, "rich.", [("rich_rich_numbers", {"count": "2", "pause": None})])
        assert seen[1][0].parts[0].content == [0, 1]

    def test_declarations_have_the_tools_schema(self, mesh):
        (_, info) = self.run(mesh, "odd.")[0]
        read, reserved = sorted(info.function_tools, key=lambda one: one.name)
        assert (read.sequential, reserved.sequential) == (False, True)
        assert read.parameters_json_schema == mesh.tool("odd.read").input_schema

    def test_parameters_with_odd_names(self, mesh):
        given = {"config": "mine", "callbacks": 3, "run_manager": "me", "self": "I"}
        seen = self.run(mesh, "odd.", [("odd_reserved", given)])
        assert seen[1][0].parts[0].content == given


class TestAnthropic:
    def answers(self, *calls):
        """The API's answers: a round of calls, then the end; and what was asked."""
        asked = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            asked.append(json.loads(request.content))
            content = [{"type": "text", "text": "done"}] if len(asked) > 1 else [
                {"type": "tool_use", "id": f"t{number}", "name": name, "input": given}
                for number, (name, given) in enumerate(calls)]
            return httpx2.Response(200, json={
                "id": "m", "type": "message", "role": "assistant", "model": "scripted", "content": content,
                "stop_reason": "end_turn" if len(asked) > 1 else "tool_use", "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1}})

        return asked, httpx2.MockTransport(answer)

    CALLS = (("rich-rich-size", {"text": "four"}), ("rich-rich-numbers", {"count": "2", "pause": None}),
             ("rich-rich-fails", {"account": "a"}), ("rich-rich-size", {"text": 4}))

    def check(self, asked, mesh):
        declared = {one["name"]: one for one in asked[0]["tools"]}
        assert declared["rich-rich-size"] == mesh.format("anthropic", ["rich.rich.size"])[0]
        results = asked[1]["messages"][-1]["content"]
        assert [one["content"] for one in results[:3]] == [
            "4", "[0, 1]", "rich.rich.fails: tool_error: Overdrawn: a lacks 7"]
        assert [bool(one.get("is_error")) for one in results] == [False, False, True, True]
        assert "invalid_arguments" in results[3]["content"]

    def test_the_runner(self, mesh):
        from anthropic import Anthropic

        from toolmesh.anthropic import tools

        asked, transport = self.answers(*self.CALLS)
        client = Anthropic(api_key="none", http_client=httpx2.Client(transport=transport))
        runner = client.beta.messages.tool_runner(
            model="scripted", max_tokens=10, tools=tools(mesh, "rich."), messages=[{"role": "user", "content": "?"}])
        assert runner.until_done().content[0].text == "done"
        self.check(asked, mesh)

    def test_the_asynchronous_runner(self, mesh):
        from anthropic import AsyncAnthropic

        from toolmesh.anthropic import async_tools

        asked, transport = self.answers(*self.CALLS)

        async def main():
            client = AsyncAnthropic(api_key="none", http_client=httpx2.AsyncClient(transport=transport))
            runner = client.beta.messages.tool_runner(
                model="scripted", max_tokens=10, tools=async_tools(mesh, "rich."),
                messages=[{"role": "user", "content": "?"}])
            return await runner.until_done()

        assert asyncio.run(main()).content[0].text == "done"
        self.check(asked, mesh)


def test_a_tool_removed_after_it_was_listed(node, mesh):
    from toolmesh.langchain import tools

    host = toolmesh.Host(index="brief", **node)
    host.tool(lambda: 1, name="one")
    with host:
        (tool,) = tools(mesh, "brief.")
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": {}})
    assert message.status == "error" and message.content.startswith("unavailable")


@pytest.mark.parametrize("name", ["dspy", "langchain", "openai_agents", "pydantic_ai", "anthropic", "rath"])
def test_every_page_of_the_frameworks_is_there(name):
    assert __import__(f"toolmesh.{name}", fromlist=["tools"]).tools.__doc__
