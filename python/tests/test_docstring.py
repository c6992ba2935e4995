"""Three styles of docstrings."""

import inspect

import pytest

from toolmesh._worker.schemas.docstring import parse

GOOGLE = """Fetches rows.

    More about it:
    with a colon.

    Args:
        table (Table): The table
            to read, see: elsewhere.
        keys (dict[str, int], optional): Which rows.
        *rest: the others
        **options: further

    Returns:
        A dict: of rows.

    Raises:
        IOError: always
    """

NUMPY = """Fetches rows.

    More about it.

    Parameters
    ----------
    table : Table
        The table
        to read.
    keys, others : dict, optional
        Which rows.
    *rest
        the others

    Returns
    -------
    dict
        rows
    """

SPHINX = """Fetches rows.

    More about it.

    :param table: The table
        to read.
    :type table: Table
    :param dict keys: Which rows.
    :returns: rows
    :raises IOError: always
    """


@pytest.mark.parametrize("doc,description,parameters", [
    (GOOGLE, "Fetches rows.\n\nMore about it:\nwith a colon.", {
        "table": "The table to read, see: elsewhere.", "keys": "Which rows.",
        "rest": "the others", "options": "further",
    }),
    (NUMPY, "Fetches rows.\n\nMore about it.", {
        "table": "The table to read.", "keys": "Which rows.", "others": "Which rows.", "rest": "the others",
    }),
    (SPHINX, "Fetches rows.\n\nMore about it.", {"table": "The table to read.", "keys": "Which rows."}),
    ("Only text.", "Only text.", {}),
    ("", "", {}),
    ("Text.\n\nNote: this is not a section of arguments.", "Text.\n\nNote: this is not a section of arguments.", {}),
    ("Short.\n\nReturns:\n    something", "Short.", {}),
    ("\n    Args:\n        a: first", "", {"a": "first"}),
])
def test_parse(doc, description, parameters):
    assert parse(inspect.cleandoc(doc))[:2] == (description, parameters)
