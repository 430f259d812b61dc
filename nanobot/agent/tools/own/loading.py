"""Loads a tool from a file of the user, or returns why it cannot."""

import ast
import hashlib
import inspect
import re
import sys
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Effect, Tool
from nanobot.utils.storage_error import error_text, os_reason

MAX_FILE_BYTES = 512 * 1024
_TIMEOUT_S = 10.0
_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class LoadedTool:
    """The tool of a file, or why there is none; and the name it wants in either case."""

    name: str
    tool: Tool | None = None
    reason: str = ""


def load_tool(path: Path, allowed_dirs: Sequence[Path]) -> LoadedTool:
    """Load one file. Blocks for some seconds at most; never raises, whatever the file does."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return LoadedTool(_name_from(path.stem), reason=f"It is larger than {MAX_FILE_BYTES // 1024} kB.")
        source = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return LoadedTool(_name_from(path.stem), reason=f"It cannot be read: {os_reason(error)}.")
    name = _find_name(source) or _name_from(path.stem)
    return _load_with_timeout(path, source, name, allowed_dirs)


def _load_with_timeout(path: Path, source: str, name: str, allowed_dirs: Sequence[Path]) -> LoadedTool:
    """Load in a thread of its own: the file's top level is code that may never end."""
    results: list[LoadedTool] = []

    def load() -> None:
        try:
            tool = _create_tool(path, source, allowed_dirs)
            results.append(LoadedTool(tool.name, tool))
        except (Exception, SystemExit) as error:  # isolate the user's code
            is_known = isinstance(error, InvalidToolError)
            reason = str(error) if is_known else f"{type(error).__name__}: {error_text(error)[:500]}."
            results.append(LoadedTool(name, reason=reason))

    thread = threading.Thread(target=load, name=f"loading {path.name}", daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return results[0] if results else LoadedTool(name, reason=f"Loading it took more than {_TIMEOUT_S:g} s.")


class InvalidToolError(Exception):
    """The file has no valid tool. The text says why, in whole sentences."""


def _create_tool(path: Path, source: str, allowed_dirs: Sequence[Path]) -> Tool:
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    module = types.ModuleType(f"nanobot_own_tools.{_name_from(path.stem)}_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and annotations look up the module of a class there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose here
    except BaseException:
        del sys.modules[module.__name__]
        raise
    classes = [
        member for member in vars(module).values() if inspect.isclass(member) and member.__module__ == module.__name__
    ]
    kind = next((candidate for candidate in classes if issubclass(candidate, Tool)), None)
    if kind is None:
        raise InvalidToolError("It has no class that is a nanobot.agent.tools.base.Tool.")
    parameters = inspect.signature(kind.__init__).parameters
    kwargs: dict[str, Any] = {"allowed_dirs": list(allowed_dirs)} if "allowed_dirs" in parameters else {}
    tool = kind(**kwargs)
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


def _find_name(source: str) -> str | None:
    """Return the name a file gives its tool, without running it."""
    try:
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for line in (line for node in classes for line in node.body):
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            is_name = any(isinstance(target, ast.Name) and target.id == "name" for target in line.targets)
            if is_name and isinstance(line.value.value, str) and _VALID_NAME.match(line.value.value):
                return line.value.value
    return None


def _name_from(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[:64] or "tool"
