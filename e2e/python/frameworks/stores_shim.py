"""A pytest plugin by which the suite of stores meets toolmesh.stores under the name stores."""

import asyncio
import inspect
import json
import os
import sys
import types

import pytest

import toolmesh.stores
from toolmesh.stores import format, indexes, parse


def module(name, **content):
    made = types.ModuleType(name)
    vars(made).update(content)
    return made


# Two functions that are public in no way, and are what half of the suite asks: each is one of Index.
wrap_tool = lambda function: indexes.BaseIndex([function]).tools[0]  # noqa: E731
format_tools = lambda tools, provider: indexes.BaseIndex(tools).format_tools(provider)  # noqa: E731

sys.modules.update({
    "stores": toolmesh.stores, "stores.parse": parse, "stores.indexes": indexes,
    "stores.format": module("stores.format", ProviderFormat=format.ProviderFormat, format_tools=format_tools),
    "stores.indexes.base_index": module("stores.indexes.base_index", BaseIndex=indexes.BaseIndex, wrap_tool=wrap_tool),
    "stores.indexes.venv_utils": module("stores.indexes.venv_utils", HASH_FILE=".deps_hash"),
    "stores.constants": module("stores.constants", VENV_NAME=".venv"),
})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Its coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


outcomes = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        outcomes[report.nodeid] = "passed" if report.passed else str(report.longrepr)[-600:]


def pytest_sessionfinish():
    with open(os.environ["OUTCOMES"], "w") as file:
        json.dump(outcomes, file)
