"""Loads a tool from a file of the user, or raises why it cannot."""

import hashlib
import inspect
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Effect, Tool

MAX_FILE_BYTES = 512 * 1024
_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class InvalidToolError(Exception):
    """The file has no valid tool. The text says why, in whole sentences."""


def load_tool(path: Path, allowed_dirs: Sequence[Path]) -> Tool:
    """Run the file and create its tool. Raises InvalidToolError, and whatever the file raises."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidToolError(f"It is larger than {MAX_FILE_BYTES // 1024} kB.")
    source = path.read_bytes().decode("utf-8-sig")
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    module = types.ModuleType(f"nanobot_own_tools.{name_from(path)}_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and annotations look up the module of a class there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose here
    except BaseException:
        del sys.modules[module.__name__]
        raise
    members = [member for member in vars(module).values() if inspect.isclass(member)]
    kind = next((kind for kind in members if issubclass(kind, Tool) and kind.__module__ == module.__name__), None)
    if kind is None:
        raise InvalidToolError("It has no class that is a nanobot.agent.tools.base.Tool.")
    parameters = inspect.signature(kind.__init__).parameters
    kwargs: dict[str, Any] = {"allowed_dirs": list(allowed_dirs)} if "allowed_dirs" in parameters else {}
    tool: Tool = kind(**kwargs)
    check_tool(tool)
    return tool


def check_tool(tool: Tool) -> None:
    """Check the tool's attributes. Raises InvalidToolError."""
    name, text, schema = (getattr(tool, word, None) for word in ("name", "description", "parameters"))
    if not isinstance(name, str) or not _VALID_NAME.match(name):
        raise InvalidToolError("Its `name` has to be a text of letters, digits, _ and -, 64 at most.")
    if not isinstance(text, str) or not text.strip():
        raise InvalidToolError("Its `description` has to be a text: the model chooses by it.")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidToolError('Its `parameters` have to be a JSON schema with "type": "object".')
    if not isinstance(tool.effect, Effect):
        raise InvalidToolError("Its `effect` has to be one of nanobot.agent.tools.base.Effect.")


def name_from(path: Path) -> str:
    """Return a valid name of a tool for a file whose own cannot be known."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem)[:64] or "tool"
