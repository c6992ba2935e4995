"""The suite of stores, from its source distribution, against toolmesh.stores: docs/python/stores.md has the reasons."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest

import toolmesh

HERE = pathlib.Path(__file__).parent
SUITES = HERE.parents[2] / ".venv" / "suites"  # where make puts it, by python/requirements-suites.txt

# What is not run: the functions by which stores makes its own environments, and what asks GitHub or its registry.
RUN = ["tests/test_parse", "tests/test_format", "tests/test_indexes/test_base_index.py",
       "tests/test_indexes/test_local_index.py", "tests/test_indexes/test_index.py::test_invalid_index"]

# Tests that fail, and the row of the page that says why.
FAIL = {
    r"test_openai_chat_format": "Union as a list of types",
    r"test_openai_responses_format": "Union as a list of types",
    r"test_anthropic_format": "every parameter is required, no default is shown",
    r"test_gemini_format": "a subset of OpenAPI with `nullable`",
    r"test_list_type_formatting\[google-gemini\]": "a subset of OpenAPI with `nullable`",
    r"test_complex_argtype_openai_chat": "each has an empty description",
    r"test_unsupported_type": "TypeError for all tools",
    r"test_base_index_format_tools": "each has an empty description",
    r"test_wrap_tool_w_defaults\[sample_tool_w_defaults2\]": "null stands for the default, always",
    r"test_cast_bound_args\[cast_tool1[01]\]": "what cannot be cast is passed on",
    r"test_wrap_tool_option_no_default": "where stores raises TypeError",
    r"test_base_index_match_multiple": "names are regular expressions",
    r"test_local_index_with_deps": "a folder without an environment of its own",
    r"test_local_index_with_env_var": "a folder without an environment of its own",
    r"test_llm_parse_json_dirty_strings\[dirty_string0\]": "a text in doubled quotes",
    r"test_llm_parse_json_dirty_strings\[dirty_string2\]": "keys that were not asked for",
}


def test_the_suite_of_stores(rich, tmp_path):
    found = sorted(SUITES.glob("stores-*.tar.gz"))
    if not found:
        assert not os.environ.get("CI"), "the suite of stores is missing: make test-frameworks fetches it"
        pytest.skip("the suite of stores is not here: the package registry could not be reached")
    with tarfile.open(found[-1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("stores-*")
    outcomes = tmp_path / "outcomes"
    environment = {
        **rich.environment, "MESH_NATS_URL": rich.url, "TOOLMESH_BINARY": rich.binary, "OUTCOMES": str(outcomes),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(pathlib.Path(toolmesh.__file__).parent.parent)])}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "stores_shim", "-p", "no:cacheprovider", *RUN],
                          cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert outcomes.exists(), done.stdout + done.stderr
    ended = json.loads(outcomes.read_text())
    assert len(ended) == 121, sorted(ended)
    wrong = []
    for name, outcome in ended.items():
        expected = next((reason for pattern, reason in FAIL.items() if re.search(pattern, name)), "")
        if outcome == "passed" and expected:
            wrong.append(f"{name} passes, though it is listed: {expected}")
        elif outcome != "passed" and not expected:
            wrong.append(f"{name} fails, and is not listed: {outcome}")
    wrong += [f"{pattern} is listed, and there is no such test" for pattern in FAIL
              if not any(re.search(pattern, name) for name in ended)]
    assert not wrong, "\n".join(wrong)
    page = (HERE.parents[2] / "docs" / "python" / "stores.md").read_text()
    for pattern, reason in FAIL.items():
        assert reason in page, f"the page does not say: {reason}"
        assert re.match(r"test_[a-z_]*[a-z]", pattern)[0] in page, f"the page does not name {pattern}"
