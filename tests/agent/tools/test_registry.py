import asyncio
import sys
from typing import Any

import pytest

from nanobot.agent.tools.base import Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import Provenance


class Echo(Tool):
    name = "echo"
    description = "Says it again"
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}  # noqa: RUF012
    aliases = ("say",)

    async def execute(self, text: str) -> str:
        return text


class Odd(Tool):
    """Does whatever it was made with."""

    description = "Odd"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self, does: Any, name: str = "odd") -> None:
        self.name = name
        self._does = does

    async def execute(self, **kwargs: Any) -> Any:
        return self._does()


class FromTheOriginal(Tool):
    """A tool as people wrote them for the original design: properties and keywords, no context."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return "weather"

    @property
    def description(self) -> str:  # type: ignore[override]
        return "The weather"

    @property
    def parameters(self) -> dict[str, Any]:  # type: ignore[override]
        return {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    async def execute(self, **kwargs: Any) -> str:
        return f"Sunny in {kwargs['city']}"


def registry_of(*tools: Tool) -> ToolRegistry:
    registry = ToolRegistry()
    for tool in tools:
        registry.register(tool)
    return registry


def does(action: Any) -> ToolRegistry:
    return registry_of(Odd(action))


def raises(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


async def test_execute_gives_the_text_of_the_tool():
    assert await registry_of(Echo()).execute("echo", {"text": "hi"}) == "hi"


async def test_a_tool_written_for_the_original_works(ctx: ToolContext):
    registry = registry_of(FromTheOriginal())

    result = await registry.call("weather", {"city": "Łódź"}, ctx)

    assert result.content == "Sunny in Łódź"
    assert registry.get_definitions()[0]["function"]["name"] == "weather"


async def test_an_alias_finds_the_tool_and_is_not_told_to_models():
    registry = registry_of(Echo())

    assert await registry.execute("say", {"text": "hi"}) == "hi"
    assert [definition["function"]["name"] for definition in registry.get_definitions()] == ["echo"]


async def test_an_unknown_tool_names_the_nearest():
    said = await registry_of(Echo()).execute("ecko", {})

    assert "Error" in said
    assert "Did you mean echo?" in said


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (raises(ValueError("no such city")), "Error: odd failed with ValueError: no such city"),
        (raises(SystemExit(3)), "Error: odd failed with SystemExit: 3"),
        (raises(RecursionError()), "Error: odd failed with RecursionError: no reason given"),
        (lambda: None, "The tool ended and returned nothing."),
        (lambda: "", "The tool ended with an empty text."),
        (lambda: {"a": [1]}, '{"a": [1]}'),
        (lambda: 7, "7"),
        (lambda: asyncio.sleep(0, "late"), "late"),
        (lambda: "Error: as text", "Error: as text"),
    ],
)
async def test_whatever_a_tool_does_is_a_result(action, said):
    result = await does(action).call("odd", {})

    assert result.content == said
    assert result.error is said.startswith("Error")


@pytest.mark.parametrize("params", [None, [], "text", 5])
async def test_arguments_of_any_kind_are_answered(params):
    assert "must be one JSON object" in await registry_of(Echo()).execute("echo", params)


async def test_wrong_arguments_say_what_is_missing_and_do_not_run_the_tool():
    ran: list[bool] = []

    class Watched(Echo):
        async def execute(self, text: str) -> str:
            ran.append(True)
            return text

    said = await registry_of(Watched()).execute("echo", {"txt": "hi"})

    assert "text is required (a string)" in said
    assert "Did you mean text?" in said
    assert not ran


async def test_a_cancel_goes_through():
    registry = does(lambda: asyncio.sleep(60))
    task = asyncio.create_task(registry.call("odd", {}))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_definitions_are_sorted_and_the_same_object_until_the_set_changes():
    registry = registry_of(Odd(None, "b"), Odd(None, "a"))

    first = registry.get_definitions()

    assert registry.get_definitions() is first
    assert [definition["function"]["name"] for definition in first] == ["a", "b"]
    registry.unregister("a")
    assert [definition["function"]["name"] for definition in registry.get_definitions()] == ["b"]
    assert len(registry) == 1
    assert "a" not in registry
    assert registry.has("b")
    assert registry.names == ["b"]


async def test_a_result_carries_where_its_words_came_from():
    by_default = await does(lambda: "x").call("odd", {})
    by_itself = await does(lambda: ToolResult("x", provenance=Provenance.WEB)).call("odd", {})

    assert by_default.provenance is Provenance.TOOL
    assert by_itself.provenance is Provenance.WEB


async def test_the_context_is_handed_only_to_who_asks(ctx: ToolContext):
    class Asking(Tool):
        name = "echo"
        description = Echo.description
        parameters = Echo.parameters

        async def execute(self, text: str, *, ctx: ToolContext) -> str:
            return f"{text} in {ctx.session_key}"

    assert (await registry_of(Asking()).call("echo", {"text": "hi"}, ctx)).content == "hi in cli:direct"
    assert (await registry_of(Echo()).call("echo", {"text": "hi"}, ctx)).content == "hi"


def test_right_arguments_do_not_import_jsonschema():
    import subprocess

    code = (
        "import sys, asyncio, pathlib\n"
        "from nanobot.agent.tools.builtin import ToolPolicies, build_tools\n"
        "from nanobot.security.files.paths import PathPolicy\n"
        "tools = build_tools(ToolPolicies(PathPolicy(pathlib.Path('.'))))\n"
        "asyncio.run(tools.execute('list_dir', {'path': '.', 'max_entries': 3}))\n"
        "print(sorted({'jsonschema', 'pydantic', 'httpx', 'loguru', 'rich', 'litellm'} & sys.modules.keys()))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "[]\n", done.stderr
