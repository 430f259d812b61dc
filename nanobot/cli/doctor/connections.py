"""Checks that connect: the model with real requests (recorded in the ledger), MCP servers, platforms of channels."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from nanobot.channels.registry import load_channel
from nanobot.cli.commands.tools import connect_once
from nanobot.cli.common import require_gateway
from nanobot.cli.doctor.checks import CheckContext, DoctorCheck, Finding, error, health_check, note, warning
from nanobot.cli.setup.probe import MAX_TOKENS, current_selection, select_metered
from nanobot.config.provider_table import context_window
from nanobot.config.schema import Config
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError
from nanobot.messages.types import ChatMessage, Content, ToolSchema
from nanobot.providers.base import CallContext, Finished, TextDelta, call_context_scope
from nanobot.utils.text import count_noun

SMALL_WINDOW = 16_000
"""In a smaller window, the tools and the first pages of a file fill it."""
_RED_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKElEQVR4nO3NsQ0AAA"
    "zCMP5/un0CNkuZ41wybXsHAAAAAAAAAAAAxR4yw/wuPL6QkAAAAABJRU5ErkJggg=="
)
"""A PNG of 32 by 32 pixels, in base64."""
_COUNT = "Count from one to twenty, in words."
_PICTURE: Content = [
    {"type": "text", "text": "Which colour is this picture? Answer with one word."},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_RED_SQUARE}"}},
]
_ADD: ToolSchema = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


@health_check("model", "The model answers and calls tools", limit_s=90.0, uses_network=True)
def check_model(context: CheckContext) -> Iterator[Finding]:
    choice = current_selection(context.config, context.data_dir)
    if not choice.provider:
        yield error(f"{choice.model} cannot be used: {choice.reason}", "Set up a model with nanobot onboard.")
        return
    if choice.provider == "offline":
        yield note("no model is set up; a stand-in answers", "Set one up with nanobot onboard.")
        return
    try:
        yield from asyncio.run(_probe_model(context))
    except BudgetExceededError as exc:
        yield warning(f"The model was not tested: {exc}", "nanobot usage shows what was spent.")
    except NanobotError as exc:
        yield error(str(exc), "")


async def _probe_model(context: CheckContext) -> list[Finding]:
    """What the model can do. Raises NanobotError if it does not answer."""
    config = context.config
    async with select_metered(config, context.data_dir) as (chosen, provider):
        model, text_deltas = chosen.model, 0
        with call_context_scope(CallContext("trial")):
            async for delta in provider.chat_stream(_asking(_COUNT), None, model, MAX_TOKENS, 0.0):
                text_deltas += isinstance(delta, TextDelta)
                if isinstance(delta, Finished) and not (delta.response.content or "").strip():
                    raise ProviderError(f"{model} gave an empty answer. Try again, or use another model.")
            response = await provider.chat(
                _asking("Use the tool `add` to add 17 and 25."), [_ADD], model, MAX_TOKENS, 0.0
            )
            try:
                colour = await provider.chat(_asking(_PICTURE), None, model, MAX_TOKENS, 0.0)
                sees = "red" in (colour.content or "").lower()
            except ProviderError:  # a model that rejects an image cannot see
                sees = False
        listed = await provider.context_length(model)
    streams = text_deltas > 1
    calls_tools = any(call.name == "add" and call.problem is None for call in response.tool_calls)
    window = config.active_preset().context_window_tokens or listed or context_window(model)

    can = {"answers": True, "streams": streams, "calls tools": calls_tools, "sees images": sees}
    abilities = ", ".join(ability for ability, is_there in can.items() if is_there)
    findings = [note(f"{model} ({chosen.name}): {abilities}; a window of {window:,} tokens")]
    if not calls_tools:
        findings.append(
            error(
                f"{model} did not call a tool it was asked to call, so the agent cannot read files or act.",
                "Use a model with tool calling; on a local server, check that its chat template supports tools.",
            )
        )
    if window < SMALL_WINDOW:
        findings.append(
            warning(
                f"Its window of {window:,} tokens is small for an agent.",
                "Use a model with a larger window, or set agents.defaults.contextWindowTokens to its real size.",
            )
        )
    if not streams:
        findings.append(note("it does not stream", "Answers appear only when they are complete."))
    if not sees:
        findings.append(note("it gets only the names of images"))
    return findings


def _asking(content: Content) -> list[ChatMessage]:
    return [{"role": "user", "content": content}]


_SERVER_LIMIT_S = 65.0
"""The first `npx` downloads the server."""
_CHANNEL_LIMIT_S = 25.0


def connection_checks(config: Config) -> list[DoctorCheck]:
    """A check for each configured MCP server and each enabled channel."""
    servers = [
        DoctorCheck(f"mcp.{name}", f"The MCP server {name} answers", partial(_server_answers, name), _SERVER_LIMIT_S)
        for name in config.tools.mcp_servers
    ]
    channels = [
        DoctorCheck(f"channels.{name}", f"{name} accepts the login", partial(_can_log_in, name), _CHANNEL_LIMIT_S)
        for name in config.channels.enabled
    ]
    return [replace(check, uses_network=True) for check in (*servers, *channels)]


def _server_answers(name: str, context: CheckContext) -> Iterator[Finding]:
    """Use the running gateway's connection, since a server may not allow a second one; else connect once."""
    try:
        if context.gateway is not None:
            status = require_gateway({"do": "mcp server", "name": name})
            if not status["known"]:
                yield error("The running gateway does not have it.", "nanobot gateway restart")
                return
            tools, left_out, unknown = status["tools"], status["leftOut"], status["unknown"]
        else:
            server, _ = asyncio.run(connect_once(name, context))
            tools, left_out, unknown = len(server.offered_names()), server.left_out, server.unknown_tools()
    except NanobotError as exc:
        yield error(str(exc), f"Fix this, then try again: nanobot mcp test {name}")
        return
    if left_out:
        yield note(f"{count_noun(left_out, 'tool')} left out: too many")
    if unknown:
        yield warning(
            f"{name} has no {', '.join(unknown)}, but its enabledTools lists that.",
            f"nanobot mcp test {name} shows the names it has.",
        )
    yield note(f"answers, offers {count_noun(tools, 'tool')}")


def _can_log_in(name: str, context: CheckContext) -> Iterator[Finding]:
    """Use the running gateway's status; else log in once."""
    if context.gateway is not None:
        status = context.gateway["channels"].get(name)
        if status is None:
            yield error("The running gateway does not have it.", "nanobot gateway restart")
        elif status["state"] == "up":
            yield note("connected")
        else:
            yield error(
                f"{status['state']}: {status['lastError'] or 'no connection'}", f"nanobot channels login {name}"
            )
        return
    from nanobot.channels.setup import log_in  # slow to import

    try:
        load_channel(name, context.config.plugins.disabled)
    except NanobotError as exc:  # it says what to do
        yield error(str(exc), "")
        return
    try:
        asyncio.run(log_in(name, context.config, context.paths, lambda _: None))
    except NanobotError as exc:
        yield error(str(exc), f"Enter its settings again: nanobot channels login {name} --force")
    else:
        yield note("login accepted")
