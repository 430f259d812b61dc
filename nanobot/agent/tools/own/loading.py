"""A file of the user's becomes a tool, or a reason why not."""

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
from nanobot.agent.tools.own.check import refusals

LARGEST_FILE = 512 * 1024
_LOADED_WITHIN_S = 10.0
_MOST_REASONS = 5
_GOOD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a file: a tool, or a reason; and the name it wants in either case."""

    name: str
    tool: Tool | None = None
    reason: str = ""


def load_tool(path: Path, allowed_dirs: Sequence[Path]) -> Loaded:
    """Load one file. Blocks, for some seconds at most; never raises, whatever the file does."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            return Loaded(_named(path.stem), reason=f"It is larger than {LARGEST_FILE // 1024} kB.")
        source = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return Loaded(_named(path.stem), reason=f"It cannot be read: {error}.")
    wanted = _wanted_name(source) or _named(path.stem)
    if found := refusals(source):
        more = f" And {len(found) - _MOST_REASONS} more." if len(found) > _MOST_REASONS else ""
        return Loaded(wanted, reason=" ".join(found[:_MOST_REASONS]) + more)
    return _within_time(path, source, wanted, allowed_dirs)


def _within_time(path: Path, source: str, wanted: str, allowed_dirs: Sequence[Path]) -> Loaded:
    """Its top level is Python that runs: in a thread nobody has to wait for."""
    came: list[Loaded] = []

    def load() -> None:
        try:
            tool = _made(path, source, allowed_dirs)
            came.append(Loaded(tool.name, tool))
        except (Exception, SystemExit) as error:  # the wall of a tool, at its making
            said = str(error) if isinstance(error, UnfitToolError) else f"{type(error).__name__}: {str(error)[:500]}."
            came.append(Loaded(wanted, reason=said))

    thread = threading.Thread(target=load, name=f"loading {path.name}", daemon=True)
    thread.start()
    thread.join(_LOADED_WITHIN_S)
    return came[0] if came else Loaded(wanted, reason=f"Loading it took more than {_LOADED_WITHIN_S:g} s.")


class UnfitToolError(Exception):
    """It is no tool. The text says why, whole sentences."""


def _made(path: Path, source: str, allowed_dirs: Sequence[Path]) -> Tool:
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    module = types.ModuleType(f"nanobot_own_tools.{_named(path.stem)}_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and annotations look for the module of a class there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the owner's wish
    except BaseException:
        del sys.modules[module.__name__]
        raise
    own = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
    kind = next((one for one in own if issubclass(one, Tool)), None)
    if kind is None:
        raise UnfitToolError("It has no class that is a nanobot.agent.tools.base.Tool.")
    takes = inspect.signature(kind.__init__).parameters
    more: dict[str, Any] = {"allowed_dirs": list(allowed_dirs)} if "allowed_dirs" in takes else {}
    tool = kind(**more)
    check_tool(tool)
    return tool


def check_tool(tool: Tool) -> None:
    """Whether it says of itself what a tool has to say. Raises UnfitToolError."""
    name, text, schema = (getattr(tool, word, None) for word in ("name", "description", "parameters"))
    if not isinstance(name, str) or not _GOOD_NAME.match(name):
        raise UnfitToolError("Its `name` has to be a text of letters, digits, _ and -, 64 at most.")
    if not isinstance(text, str) or not text.strip():
        raise UnfitToolError("Its `description` has to be a text: the model chooses by it.")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise UnfitToolError('Its `parameters` have to be a JSON schema with "type": "object".')
    if not isinstance(tool.effect, Effect):
        raise UnfitToolError("Its `effect` has to be one of nanobot.agent.tools.base.Effect.")


def _wanted_name(source: str) -> str | None:
    """The name a file gives its tool, read without running it."""
    try:
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for line in (line for node in classes for line in node.body):
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            named = any(isinstance(target, ast.Name) and target.id == "name" for target in line.targets)
            if named and isinstance(line.value.value, str) and _GOOD_NAME.match(line.value.value):
                return line.value.value
    return None


def _named(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[:64] or "tool"
