"""What requests in these tests are made of."""

from nanobot.messages.types import ChatMessage, ToolSchema

HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]


def tool(name: str, **types: str) -> ToolSchema:
    """A tool with parameters of these types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


LIST_DIR = tool("list_dir", path="string")
TOOLS = [LIST_DIR, tool("write_file", path="string", content="string"), tool("wait", seconds="integer")]
