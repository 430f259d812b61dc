"""A server made with the MCP SDK. Arguments: `sse` or `streamable-http`, and the port on loopback."""

import base64
import sys

import uvicorn
from mcp.server.mcpserver import Image, MCPServer

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

server = MCPServer("web")


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
def picture() -> Image:
    return Image(data=base64.b64decode(PIXEL), format="png")


@server.resource("note://today")
def note() -> str:
    return "Water the plants."


@server.prompt()
def greeting(name: str) -> str:
    return f"Greet {name}."


app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
