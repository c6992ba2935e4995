"""The API of the library stores 0.1.7, on a mesh: change the import and go on.

    from toolmesh.stores import Index

    index = Index(["owner/repo:v1.2", "./my_index", my_function], env_var={"owner/repo:v1.2": {"API_KEY": "…"}})
    index.execute("weather.forecast", {"city": "Oslo"})

What is the same, what differs and why: docs/python/stores.md.
"""

from .format import ProviderFormat
from .indexes import Index
from .parse import llm_parse_json

__all__ = ["Index", "ProviderFormat", "llm_parse_json"]
