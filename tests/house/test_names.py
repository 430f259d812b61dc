"""The names that people import are there, with the parameters and defaults that were promised.

A row is a promise: where the name lives, and how it is called. More parameters are fine as long as they have defaults.
Rooms of later releases join the table when they are built.
"""

import importlib
import inspect
from typing import Any

import pytest

from nanobot.agent.skills import SkillsLoader
from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import text_of
from nanobot.providers.base import LLMProvider, LLMResponse
from nanobot.session.manager import Session, SessionManager

PROMISED = """
nanobot                       Nanobot.from_config(path=None)
nanobot                       async Nanobot.run(message)
nanobot                       Nanobot.stream(message)
nanobot                       Nanobot.connect(url=None)
nanobot                       Nanobot.branch(session, at=None)
nanobot                       async Nanobot.run_streamed(message)
nanobot.sync                  Nanobot.run(message)
nanobot.sync                  Nanobot.stream(message)
nanobot.sync                  Nanobot.branch(session, at=None)
nanobot.bus.events            InboundMessage(channel, sender_id, chat_id, content, timestamp=, media=, metadata=, session_key_override=None)
nanobot.bus.events            OutboundMessage(channel, chat_id, content, reply_to=None, media=, metadata=)
nanobot.bus.queue             MessageBus()
nanobot.bus.queue             async MessageBus.publish_inbound(message)
nanobot.bus.queue             async MessageBus.consume_inbound()
nanobot.bus.queue             async MessageBus.publish_outbound(message)
nanobot.bus.queue             async MessageBus.consume_outbound()
nanobot.session.manager       Session(key, messages=, created_at=, updated_at=, metadata=, last_consolidated=0)
nanobot.session.manager       Session.add_message(role, content, **extra)
nanobot.session.manager       Session.get_history(max_messages=500)
nanobot.session.manager       Session.clear()
nanobot.session.manager       SessionManager(workspace)
nanobot.session.manager       SessionManager.get_or_create(key)
nanobot.session.manager       SessionManager.save(session)
nanobot.session.manager       SessionManager.invalidate(key)
nanobot.session.manager       SessionManager.list_sessions()
nanobot.agent.context         ContextBuilder(workspace)
nanobot.agent.context         ContextBuilder.build_system_prompt()
nanobot.agent.context         ContextBuilder.build_messages(history, current_message, media=None, channel=None, chat_id=None)
nanobot.agent.memory          MemoryStore(workspace)
nanobot.agent.memory          MemoryStore.read_long_term()
nanobot.agent.memory          MemoryStore.write_long_term(content)
nanobot.agent.memory          MemoryStore.append_history(entry)
nanobot.agent.memory          MemoryStore.get_memory_context()
nanobot.agent.memory          MemoryStore.read_today()
nanobot.agent.memory          MemoryStore.append_today(content)
nanobot.agent.memory          MemoryStore.get_recent_memories(days=7)
nanobot.agent.memory          async MemoryStore.consolidate(session, provider, model)
nanobot.agent.skills          SkillsLoader(workspace)
nanobot.agent.skills          SkillsLoader.list_skills()
nanobot.agent.skills          SkillsLoader.load_skill(name)
nanobot.agent.skills          SkillsLoader.get_always_skills()
nanobot.agent.skills          SkillsLoader.build_skills_summary()
nanobot.agent.tools.base      async Tool.execute(**kwargs)
nanobot.agent.tools.base      Tool.validate_params(params)
nanobot.agent.tools.base      Tool.to_schema()
nanobot.agent.tools.registry  ToolRegistry()
nanobot.agent.tools.registry  ToolRegistry.register(tool)
nanobot.agent.tools.registry  ToolRegistry.unregister(name)
nanobot.agent.tools.registry  ToolRegistry.get(name)
nanobot.agent.tools.registry  ToolRegistry.has(name)
nanobot.agent.tools.registry  ToolRegistry.get_definitions()
nanobot.agent.tools.registry  async ToolRegistry.execute(name, params)
nanobot.agent.subagent        async SubagentManager.spawn(task, label=None)
nanobot.agent.loop            async AgentLoop.run()
nanobot.agent.loop            async AgentLoop.stop()
nanobot.agent.loop            async AgentLoop.process_direct(content, session_key="cli:direct", channel="cli", chat_id="direct", on_progress=None)
nanobot.providers.base        async LLMProvider.chat(messages, tools=, model=, max_tokens=, temperature=)
nanobot.providers.base        LLMProvider.chat_stream(messages, tools=, model=, max_tokens=, temperature=)
nanobot.providers.base        LLMProvider.get_default_model()
nanobot.providers.base        LLMResponse(content, tool_calls=, finish_reason="stop", usage=, reasoning_content=None, thinking_blocks=None)
nanobot.providers.base        ToolCallRequest(id, name, arguments)
nanobot.providers.base        Finished(response)
nanobot.providers.registry    find_by_name(name)
nanobot.providers.registry    find_by_model(model)
nanobot.providers.registry    ProviderSpec(name, display_name)
nanobot.config.schema         Config()
nanobot.config.schema         Config.get_provider_name(model=None)
nanobot.config.loader         load_config(path=None)
nanobot.config.loader         save_config(config, path=None)
nanobot.config.loader         get_config_path()
nanobot.config.loader         get_data_dir()
nanobot.cron.service          CronService(store_path, on_job=None)
nanobot.cron.service          CronService.add_job(name, schedule, message, deliver=False, channel=None, to=None, delete_after_run=False)
nanobot.cron.service          CronService.list_jobs(include_disabled=False)
nanobot.cron.service          CronService.remove_job(job_id)
nanobot.cron.service          CronService.enable_job(job_id, enabled=True)
nanobot.cron.service          async CronService.run_job(job_id, force=False)
nanobot.cron.service          async CronService.start()
nanobot.cron.service          CronService.stop()
nanobot.cron.service          CronService.status()
nanobot.cron.types            CronSchedule(kind, at_ms=None, every_ms=None, expr=None, tz=None)
nanobot.cron.types            CronJob(id, name)
nanobot.cron.types            CronPayload()
nanobot.cron.types            CronJobState()
"""  # noqa: E501 a row is a line
ROWS = [row.split(None, 1) for row in PROMISED.strip().splitlines()]

OFFERED = {
    "nanobot": ["__version__"],
    "nanobot.sdk": [
        "Nanobot",
        "RunResult",
        "RunStream",
        "ApprovalRequest",
        "OutputInvalid",
        "TurnFailed",
        "ToolContext",
    ],
    "nanobot.providers.registry": ["PROVIDERS"],
    "nanobot.cli.commands": ["app"],
}
"""Names that are not called."""

ATTRIBUTES = {
    InboundMessage: ["session_key"],
    MessageBus: ["inbound_size", "outbound_size"],
    LLMResponse: [
        "has_tool_calls", "error_status_code", "error_kind", "error_retry_after_s", "error_should_retry"
    ],
}  # fmt: skip


def parts(promise: str) -> tuple[bool, str, list[tuple[str, str | None]]]:
    """Whether it is awaited, its dotted name, and each parameter with its default (None: it must be given)."""
    is_async = promise.startswith("async ")
    name, _, inside = promise.removeprefix("async ").removesuffix(")").partition("(")
    pieces = [piece.partition("=") for piece in inside.split(", ") if piece]
    return is_async, name, [(word, default if equals else None) for word, equals, default in pieces]


@pytest.mark.parametrize(("module", "promise"), ROWS, ids=[f"{module}.{promise}" for module, promise in ROWS])
def test_a_name_is_there_and_is_called_as_promised(module, promise):
    is_async, dotted, wanted = parts(promise)
    found: Any = importlib.import_module(module)
    for name in dotted.split("."):
        found = getattr(found, name)

    there = [one for one in inspect.signature(found).parameters.values() if one.name != "self"]
    by_position = [one.name for one in there if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]

    assert inspect.iscoroutinefunction(found) == is_async
    names = [word for word, _ in wanted if not word.startswith("**")]
    assert by_position[: len(names)] == names
    for word, default in wanted:
        if word.startswith("**"):
            assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in there)
            continue
        (parameter,) = (one for one in there if one.name == word)
        assert (parameter.default is inspect.Parameter.empty) == (default is None)
        if default:
            assert repr(parameter.default).replace("'", '"') == default
    more = [one for one in there if one.name not in names and one.kind is not inspect.Parameter.VAR_KEYWORD]
    assert [one.name for one in more if one.default is inspect.Parameter.empty and one.kind.name[:3] != "VAR"] == []


@pytest.mark.parametrize(("module", "names"), OFFERED.items())
def test_a_name_that_is_not_called_is_there(module, names):
    assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize(("owner", "names"), ATTRIBUTES.items())
def test_what_they_carry_is_there(owner, names):
    assert [name for name in names if not hasattr(owner, name)] == []


def test_sessions_memory_and_skills_are_plain_libraries_without_an_event_loop(tmp_path):
    from nanobot.agent.context import ContextBuilder
    from nanobot.agent.memory import MemoryStore

    sessions, memory = SessionManager(tmp_path), MemoryStore(tmp_path)
    session = sessions.get_or_create("cli:direct")
    session.add_message("user", "hello", media=["a.png"])
    sessions.save(session)
    memory.write_long_term("tea")

    messages = ContextBuilder(tmp_path).build_messages(session.get_history(), "hi", None, "cli", "direct")

    assert SessionManager(tmp_path).get_or_create("cli:direct").messages[0]["content"] == "hello"
    assert (messages[-1]["role"], text_of(messages[-1]["content"])[-18:]) == ("user", "[/Runtime Context]")
    assert (memory.memory_file.name, memory.history_file.name) == ("MEMORY.md", "HISTORY.md")
    assert isinstance(SkillsLoader(tmp_path).list_skills(), list)


def test_the_shapes_of_the_design_are_made_as_they_always_were():
    message = InboundMessage("telegram", "7", "42", "hi")
    answer = OutboundMessage("telegram", "42", "hello", None, [], {})

    assert (message.session_key, answer.content) == ("telegram:42", "hello")
    assert LLMProvider(None, None).api_base is None
    assert LLMResponse("hi").has_tool_calls is False
    assert Config().get_provider_name("anthropic/claude-opus-4-5") in {None, "anthropic"}
    assert Session("a:b").last_consolidated == 0
