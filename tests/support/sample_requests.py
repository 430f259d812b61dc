"""Requests: what tests make them of, and what stands in those that a server saw."""

import json
from itertools import pairwise
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.testing.model_server import FakeModels, Request

HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]


def tool(name: str, **types: str) -> ToolSchema:
    """A tool with parameters of these types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


LIST_DIR = tool("list_dir", path="string")
TOOLS = [LIST_DIR, tool("write_file", path="string", content="string"), tool("wait", seconds="integer")]


def results(request: Request) -> list[str]:
    """The texts of the tool results in a request of any format, in their order."""
    found = [str(item["output"]) for item in request.json.get("input", []) if item["type"] == "function_call_output"]
    for row in request.json.get("messages", []):
        if row["role"] == "tool":
            found.append(str(row["content"]))
        elif isinstance(row["content"], list):
            found += [json.dumps(block["content"]) for block in row["content"] if block["type"] == "tool_result"]
    return found


def heads_of_each_other(server: FakeModels) -> bool:
    """Whether each request is, byte for byte up to its closing brackets, the head of the next."""
    bodies = [request.body for request in server.chats]
    return all(later.startswith(earlier[:-2]) for earlier, later in pairwise(bodies))


def same_head(server: FakeModels) -> bool:
    """The same for the Anthropic format, whose cache markers wander: system, tools and all earlier rows stay."""
    bodies = [_without_markers(request.json) for request in server.chats]
    return all(
        (earlier["system"], earlier["tools"]) == (later["system"], later["tools"])
        and later["messages"][: len(earlier["messages"])] == earlier["messages"]
        for earlier, later in pairwise(bodies)
    )


def _without_markers(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_markers(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_markers(item) for key, item in value.items() if key != "cache_control"}
    return value
