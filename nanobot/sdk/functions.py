"""Functions as tools: name, schema and texts come from the signature and the docstring."""

import asyncio
import functools
import hashlib
import inspect
import re
import threading
import typing
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from nanobot.agent.tools.base import Access, AccessKind, Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.images import FOLDER
from nanobot.agent.tools.mcp.listing import normalize_schema
from nanobot.agent.tools.validation import find_problems
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.images import ImageError, fit_image

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SETTINGS = "__nanobot_tool__"
_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Params):?\s*$")
_NEXT_SECTION = re.compile(r"[A-Z][A-Za-z ]+:?\s*$")
_SPHINX = re.compile(r":param (?:[\w.\[\], |]+ )?\*{0,2}(\w+):\s*(.*)")
_GOOGLE = re.compile(r"\*{0,2}(\w+)(?: ?\([^)]*\))?: (.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+)(?: : .*)?()")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that a tool shows to the model."""

    source: str | Path | bytes
    """Its path, or its bytes (PNG, JPEG, GIF, WebP)."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a tool gives to the model, which can read or send it if its path is allowed."""

    path: str | Path

    def __str__(self) -> str:
        return f"[file: {Path(self.path).absolute()}]"


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What `@tool` sets."""

    needs_approval: bool | Callable[..., Any] = False
    timeout: float | None = None
    read_only: bool = False


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *, needs_approval: bool | Callable[..., Any] = False, timeout: float | None = None, read_only: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Set how a function is used as a tool. The function itself stays as it is.

    `needs_approval`: the owner is asked before each call; a function decides by the arguments. `timeout`: seconds after
    which a call has failed. `read_only`: it changes nothing, so it may be called again after a crash, and is called
    without a question also while untrusted content is in play.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        setattr(function, _SETTINGS, ToolSettings(**settings))
        return function

    return mark if function is None else mark(function)


def as_tool(given: Tool | Callable[..., Any]) -> Tool:
    """Return the tool of a function; a Tool is returned as it is. Raises TypeError for what cannot be one."""
    if isinstance(given, Tool):
        return given
    if not callable(given):
        raise TypeError(f"{given!r} is no tool: pass a function, or an object of the class Tool.")
    return FunctionTool(given, getattr(given, _SETTINGS, ToolSettings()))


class FunctionTool(Tool):
    """A function as a tool. One that is not async runs in a thread."""

    def __init__(self, function: Callable[..., Any], settings: ToolSettings) -> None:
        self._function = function
        self._settings = settings
        if settings.read_only:
            self.effect = Effect.READ
        self.name = getattr(function, "__name__", type(function).__name__)
        if not _NAME.fullmatch(self.name) or isinstance(function, functools.partial):
            raise TypeError(f"{function!r} has no name for a model: pass a function defined with `def`.")
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 the method of a callable object
        )
        self._context_name, self._arguments = _arguments_of(function, self.name)
        summary, texts = parse_docstring(inspect.getdoc(function) or "")
        self.description = summary or self.name.replace("_", " ")
        schema = self._arguments.json_schema(schema_generator=_WithoutTitles)
        for name, field in schema.get("properties", {}).items():  # the texts of the signature count more
            if name in texts:
                field.setdefault("description", texts[name])
        self._schema, self.parameters = schema, normalize_schema(schema)

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """Return what does not fit the schema, else what pydantic objects to."""
        if problems := find_problems(params, self._schema):
            return problems
        try:
            self._values(params)
        except ValidationError as error:
            return [f"{'.'.join(map(str, item['loc']))}: {item['msg']}." for item in error.errors(include_url=False)]
        return []

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return the function as a whole; nothing for one that only reads and needs no approval."""
        needs_approval = self._settings.needs_approval
        if callable(needs_approval):
            needs_approval = needs_approval(**self._values(arguments))
            if inspect.isawaitable(needs_approval):
                needs_approval = await needs_approval
        if self._settings.read_only and not needs_approval:
            return ()
        return (Access(AccessKind.TOOL, self.name, needs_approval=bool(needs_approval)),)

    async def execute(self, *, ctx: ToolContext | None = None, **arguments: Any) -> ToolResult:
        """Call the function. Cancelling drops the result of one that runs in a thread; `ctx.is_stopped` tells it."""
        stopped, values = threading.Event(), self._values(arguments)
        if self._context_name is not None:
            if ctx is None:
                return ToolResult.failed(f"{self.name} works in a turn only.")
            ask: Callable[..., Any] = functools.partial(ctx.ask, tool=self.name)
            values[self._context_name] = replace(
                ctx, is_stopped=stopped.is_set, ask=ask if self._is_async else _blocking(ask)
            )
        try:
            async with asyncio.timeout(self._settings.timeout) as limit:
                if self._is_async:
                    returned = await self._function(**values)
                else:
                    returned = await asyncio.to_thread(self._function, **values)
                    if inspect.isawaitable(returned):
                        returned = await returned
        except TimeoutError:
            if not limit.expired():
                raise
            return ToolResult.failed(f"{self.name} took more than {self._settings.timeout:g} s and was stopped.")
        finally:
            stopped.set()
        if isinstance(returned, ToolResult):
            return returned
        if isinstance(returned, File):
            return ToolResult(str(returned))
        if isinstance(returned, Image):
            folder = ctx.workspace if ctx is not None else Path()
            return await asyncio.to_thread(_show, returned, folder / FOLDER)
        text = returned if isinstance(returned, str) else _ANYTHING.dump_json(returned, fallback=str).decode()
        return ToolResult(text or "(nothing)")

    def _values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them, with its defaults. Raises ValidationError."""
        return cast("dict[str, Any]", self._arguments.validate_python(arguments))


def _blocking(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return a function for other threads, which waits for one of this event loop."""
    loop = asyncio.get_running_loop()
    return lambda *args: asyncio.run_coroutine_threadsafe(function(*args), loop).result()


def _show(image: Image, folder: Path) -> ToolResult:
    """Show a picture to the model: as a copy, which the session names. Blocks."""
    try:
        data = image.source if isinstance(image.source, bytes) else Path(image.source).read_bytes()
        fitted = fit_image(data)
        copy = folder / (hashlib.sha256(fitted.data).hexdigest()[:32] + fitted.suffix)
        make_private_folder(folder)
        write_atomic(copy, fitted.data)
    except (ImageError, OSError) as error:
        return ToolResult.failed(f"The picture cannot be shown. {error}")
    width, height = fitted.original_size
    text = f"A picture of {width} x {height} pixels."
    picture = {"type": "image_url", "image_url": {"url": str(copy)}}
    return ToolResult([{"type": "text", "text": text}, picture], display=text)


class _WithoutTitles(GenerateJsonSchema):
    """Without the titles that pydantic makes of names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[str | None, TypeAdapter[Any]]:
    """Return the name of the parameter that takes the ToolContext, and an adapter for all others."""
    signature = inspect.signature(function)
    target = function if inspect.isroutine(function) else type(function).__call__
    hints = typing.get_type_hints(inspect.unwrap(target), include_extras=True)
    context_name, parameters = None, []
    for parameter in signature.parameters.values():
        if hints.get(parameter.name) is ToolContext:
            context_name = parameter.name
        elif parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model gives arguments by name, so {parameter} cannot be one.")
        elif parameter.name == "ctx":
            raise TypeError(f"{name}: a parameter named ctx must be a ToolContext.")
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    def arguments(**values: Any) -> dict[str, Any]:
        return values

    vars(arguments)["__signature__"] = signature.replace(parameters=parameters)
    arguments.__annotations__ = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
    adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", arguments))
    return context_name, adapter


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph, and the descriptions of parameters in Google's, NumPy's or Sphinx's style."""
    summary = " ".join(re.split(r"\n\s*\n|\n(?=\s*:\w)", text.strip())[0].split())
    texts: dict[str, str] = {}
    name, indent, is_open = "", 0, False
    for line in text.splitlines():
        stripped, depth = line.strip(), len(line) - len(line.lstrip())
        if not stripped or set(stripped) == {"-"}:
            continue
        match = _SPHINX.match(stripped)
        if _SECTION.match(stripped):
            name, is_open = "", True
        elif match is None and name and depth > indent:
            texts[name] = f"{texts[name]} {stripped}".strip()
        else:
            if match is None and is_open:
                is_other = _NEXT_SECTION.match(stripped)
                match = _GOOGLE.fullmatch(stripped) or (None if is_other else _NUMPY.fullmatch(stripped))
            name, indent, is_open = match[1] if match is not None else "", depth, is_open and match is not None
            if match is not None:
                texts[name] = match[2] or ""
    return summary, {name: text for name, text in texts.items() if text}
