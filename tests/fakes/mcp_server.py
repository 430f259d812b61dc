"""An MCP server to be run as a child, with the manners its arguments ask for. It needs nothing but Python.

It speaks the protocol of 2025-11-25 (https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle and
server/tools), and refuses what that refuses: calls before the handshake, methods and tools it does not have.
"""

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANNERS = set(sys.argv[1:])
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

_out = threading.Lock()
_initialized = False
_cancelled: set[object] = set()
_extra_tools: list[str] = []


def send(**message: Any) -> None:
    with _out:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def echo(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return text(json.dumps(arguments, ensure_ascii=False))


def die(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    sys.stderr.write("I am dying\n")
    sys.stderr.flush()
    os._exit(7)


def die_once(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    mark = Path(arguments["mark"])
    if not mark.exists():
        mark.touch()
        os._exit(7)
    return text("this time it went well")


def big(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return text("x" * arguments["size"])


def slow(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    token = (request["params"].get("_meta") or {}).get("progressToken")
    for step in range(arguments["steps"]):
        time.sleep(0.05)
        if token is not None and arguments.get("tells", True):
            params = {"progressToken": token, "progress": step, "message": f"step {step}"}
            send(method="notifications/progress", params=params)
    return text("cancelled" if request["id"] in _cancelled else "done at last")


def was_cancelled(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return text(f"{len(_cancelled)} cancelled")


def pid(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return text(str(os.getpid()))


def environment(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return text(json.dumps(dict(os.environ)))


def picture(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    sound = {"type": "audio", "data": base64.b64encode(b"la la").decode(), "mimeType": "audio/wav"}
    inner = {"uri": "note://1", "text": "a note", "mimeType": "text/plain"}
    return {"content": [image, sound, {"type": "resource", "resource": inner}]}


def half_a_letter(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return {**text("half \ud83d, whole \U0001f600"), "structuredContent": {"nothing": float("nan")}}


def fails(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return {**text("the lamp is broken"), "isError": True}


def structured(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    return {"content": [], "structuredContent": {"degrees": 21}}


def learn(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    _extra_tools.append(arguments["name"])
    send(method="notifications/tools/list_changed")
    return text("learnt")


def garbage(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    with _out:
        sys.stdout.write("{not json\n\n[1, 2, 3]\nprint debugging!\n")
    return text("said some garbage")


def storm(arguments: dict[str, Any], _: Any) -> dict[str, Any]:
    methods = ("tools/list_changed", "prompts/list_changed", "cancelled")
    lines = [json.dumps({"jsonrpc": "2.0", "method": f"notifications/{method}"}) for method in methods]
    words = "\n".join([*lines, "Loading...", ""]).encode() * 200
    threading.Thread(target=lambda: [os.write(1, words) for _ in iter(int, 1)], daemon=True).start()
    return text("")


TOOLS: dict[str, Callable[[dict[str, Any], Any], dict[str, Any]]] = {
    "echo": echo,
    "die": die,
    "die_once": die_once,
    "big": big,
    "slow": slow,
    "was_cancelled": was_cancelled,
    "pid": pid,
    "environment": environment,
    "picture": picture,
    "half_a_letter": half_a_letter,
    "fails": fails,
    "structured": structured,
    "learn": learn,
    "garbage": garbage,
    "storm": storm,
}
ANNOTATIONS = {"die_once": {"idempotentHint": True}, "pid": {"readOnlyHint": True}}


def listed() -> list[dict[str, Any]]:
    schema: dict[str, Any] = {"type": "object"}
    schemas = {}
    if "hostile" in MANNERS:
        bomb = {f"b{level}": {"allOf": [{"$ref": f"#/$defs/b{level + 1}"}] * 2} for level in range(40)}
        words = {"type": "string", "description": "w" * 1_000_000, "pattern": "(a+)+$"}
        schemas["echo"] = {
            "$defs": {**bomb, "self": {"$ref": "#/$defs/self"}, "ctx": {}},
            "type": "object",
            "properties": {"text": words, "bomb": {"$ref": "#/$defs/b0"}, "self": {"$ref": "#/$defs/self"}, "ctx": {}},
        }
    if "wordy" in MANNERS:
        schema = {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "description": "word " * 80} for n in range(20)},
        }
    names = [*TOOLS, *_extra_tools, *(f"tool_{number}" for number in range(3000 if "many" in MANNERS else 0))]
    return [
        {"name": name, "inputSchema": schemas.get(name, schema), "annotations": ANNOTATIONS.get(name, {})}
        for name in names
    ]


def answer(request: dict[str, Any]) -> None:
    global _initialized
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        _initialized = True
        info = {"name": "child", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        send(id=request["id"], result=result)
    elif method == "ping":
        send(id=request["id"], result={})
    elif not _initialized or method not in {"tools/list", "tools/call"}:
        send(id=request["id"], error={"code": -32601, "message": f"no method {method}"})
    elif method == "tools/list":
        send(id=request["id"], result={"tools": listed()})
    elif params["name"] not in TOOLS:
        send(id=request["id"], error={"code": -32602, "message": f"no tool {params['name']}"})
    else:
        send(id=request["id"], result=TOOLS[params["name"]](params.get("arguments") or {}, request))


def main() -> None:
    if "hangs" in MANNERS:
        time.sleep(60)
    if "babbles" in MANNERS:
        while True:
            print("Loading... 42% of something", flush=True)
            time.sleep(0.01)
    if "daemon" in MANNERS:
        # Leaves the session and ignores everything it may: the double fork of a daemon.
        code = "import os, signal, time\nos.fork() and os._exit(0)\nos.setsid()\nsignal.signal(15, 1)\ntime.sleep(60)"
        subprocess.Popen([sys.executable, "-I", "-S", "-c", code, "daemon-of-an-mcp-server"], stdin=subprocess.DEVNULL)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            _cancelled.add(message["params"]["requestId"])
        elif "id" in message and "method" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
    if "stays" in MANNERS:
        time.sleep(60)


if __name__ == "__main__":
    main()
