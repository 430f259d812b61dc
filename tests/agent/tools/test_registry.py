import asyncio
import subprocess
import sys
from typing import Any

import pytest

from nanobot.agent.tools.base import Tool, ToolContext, ToolResult, string, takes
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import Provenance


class Echo(Tool):
    name = "echo"
    description = "Says it again"
    parameters = takes("text", text=string())
    aliases = ("say",)

    def __init__(self, name: str = "echo") -> None:
        self.name = name

    async def execute(self, text: str) -> str:
        return text


class Odd(Tool):
    """Does whatever it was made with."""

    name = "odd"
    description = "Odd"
    parameters = takes()

    def __init__(self, does: Any) -> None:
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


def raises(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("echo", {"text": "hi"}, "hi"),
        ("say", {"text": "hi"}, "hi"),
        ("weather", {"city": "Łódź"}, "Sunny in Łódź"),
        ("ecko", {}, "Did you mean echo?"),
        ("echo", {"txt": "hi"}, "text is required (a string). txt is not a parameter. Did you mean text?"),
        ("echo", None, "must be one JSON object"),
        ("echo", [], "must be one JSON object"),
        ("echo", "text", "must be one JSON object"),
        ("echo", 5, "must be one JSON object"),
    ],
)
async def test_a_call_by_name_or_alias_answers_or_says_what_would_be_right(name: str, params: Any, said: str):
    registry = registry_of(Echo(), FromTheOriginal())

    assert said in await registry.execute(name, params)
    assert [definition["function"]["name"] for definition in registry.get_definitions()] == ["echo", "weather"]


async def test_a_tool_is_not_run_with_wrong_arguments():
    ran: list[bool] = []
    odd = Odd(lambda: ran.append(True))
    odd.parameters = Echo.parameters

    assert "was not run" in await registry_of(odd).execute("odd", {})
    assert not ran


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
        (lambda: ToolResult("page", provenance=Provenance.WEB), "page"),
    ],
)
async def test_whatever_a_tool_does_is_a_result_with_where_its_words_came_from(action, said):
    result = await registry_of(Odd(action)).call("odd", {})

    assert result.content == said
    assert result.error is said.startswith("Error")
    assert result.provenance is (Provenance.WEB if said == "page" else Provenance.TOOL)


async def test_a_cancel_goes_through():
    registry = registry_of(Odd(lambda: asyncio.sleep(60)))
    task = asyncio.create_task(registry.call("odd", {}))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_definitions_are_sorted_and_the_same_object_until_the_set_changes():
    registry = registry_of(Echo("b"), Echo("a"))

    first = registry.get_definitions()

    assert registry.get_definitions() is first
    assert [definition["function"]["name"] for definition in first] == ["a", "b"]
    registry.unregister("a")
    assert [definition["function"]["name"] for definition in registry.get_definitions()] == ["b"]
    assert (len(registry), "a" in registry, registry.has("b"), registry.names) == (1, False, True, ["b"])


async def test_the_context_is_handed_only_to_who_asks(ctx: ToolContext):
    class Asking(Echo):
        async def execute(self, text: str, *, ctx: ToolContext) -> str:  # type: ignore[override]
            return f"{text} in {ctx.session_key}"

    registry = registry_of(Asking("asking"), Echo())

    results = [await registry.call(name, {"text": "hi"}, ctx) for name in ("asking", "echo")]
    assert [result.content for result in results] == ["hi in cli:direct", "hi"]


def test_right_arguments_do_not_import_jsonschema():
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
