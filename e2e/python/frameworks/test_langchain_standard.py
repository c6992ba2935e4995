"""LangChain's standard tests of tools, on one of the mesh's."""

import pytest
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from toolmesh.langchain import tools


class Standard:
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def found(cls, mesh):
        (cls.one,) = tools(mesh, "rich.rich.size")

    @property
    def tool_constructor(self):
        return self.one

    @property
    def tool_invoke_params_example(self):
        return {"text": "four"}


class TestUnit(Standard, ToolsUnitTests):
    pass


class TestIntegration(Standard, ToolsIntegrationTests):
    pass
