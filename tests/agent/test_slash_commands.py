"""Slash commands: words to nanobot, not to the model."""

import asyncio
from pathlib import Path

import pytest

from nanobot.agent.command import Command, parse_command
from nanobot.bus.events import InboundMessage
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.messages.types import Origin, Provenance
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.providers.base import LLMResponse
from nanobot.providers.errors import ContextOverflowError
from nanobot.testing import Bot, Pause, calls, open_bot


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", Command("new")),
        ("  /NEW  ", Command("new")),
        ("/status@my_bot", Command("status")),
        ("/model gpt-5", Command("model", "gpt-5")),
        ("/etc/hosts looks odd", None),
        ("what does /new do?", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_command_is_the_whole_message(text: str, command: Command | None):
    assert parse_command(text) == command


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("statsu", "/status"), ("continue", "/resume"), ("jobs", "/cron"), ("revert", "/undo"), ("forget", "/memory"),
     ("cancel", "/stop")],
)  # fmt: skip
async def test_an_unknown_command_gets_the_nearest_name_and_no_model_call(bot: Bot, typed: str, suggested: str):
    assert f"Did you mean {suggested}" in await bot.say(f"/{typed}")
    assert bot.provider.requests == []


async def test_a_command_as_long_as_a_book_is_not_told_back(bot: Bot):
    assert len(await bot.say(f"/{'x' * 100_000}")) < 200


async def test_a_typo_never_suggests_what_would_lose_something(bot: Bot):
    for typed in ("resets", "clearx", "newe", "restartt", "dream-restores", "approves", "undoo"):
        reply = await bot.say(f"/{typed}")

        for name in ("/reset", "/clear", "/new", "/restart", "/dream-restore", "/approve", "/undo"):
            assert f"{name}?" not in reply and f"{name} or" not in reply


@pytest.mark.parametrize("name", ["/new", "/clear", "/reset"])
async def test_new_starts_afresh_and_keeps_the_old_one_in_the_archive(bot: Bot, name: str):
    bot.provider.script("one", "two")
    await bot.say("remember the plum")

    reply = await bot.say(name)
    await bot.say("what was it?")

    assert "new session" in reply
    assert "plum" not in str(bot.provider.requests[-1][1:])
    archived = list((bot.workspace / "sessions" / "archive").iterdir())
    assert len(archived) == 1
    assert "plum" in archived[0].read_text(encoding="utf-8")


COMMANDS = """
    new clear reset stop retry undo copy compact sessions resume status model history context usage cost raise restart
    help pairing approve deny approvals memory dream dream-log dream-restore skills search tasks goal cron mcp
"""
FOR_OWNERS = "raise restart pairing approve deny approvals undo"


async def test_new_on_a_fresh_session_says_so(bot: Bot):
    assert "already" in await bot.say("/new")


def named_in(help_text: str) -> list[str]:
    rows = [line.split("  ")[0] for line in map(str.strip, help_text.splitlines()) if line.startswith("/")]
    return [word.strip(",") for row in rows for word in row.split() if word.startswith("/")]


async def test_help_lists_every_command_once_under_headings_in_sixty_columns(bot: Bot):
    reply = await bot.say("/help")

    assert sorted(named_in(reply)) == sorted(f"/{name}" for name in COMMANDS.split())
    assert "\nMemory\n" in reply
    assert "owner only" not in reply
    assert max(map(len, reply.splitlines())) < 60


async def test_help_in_a_chat_has_names_that_can_be_tapped_and_nothing_for_owners(bot: Bot):
    guest = await asked(bot, from_channel("/help"))
    owner = await asked(bot, from_channel("/help", provenance=Provenance.OWNER))

    for_owners = {f"/{name}" for name in FOR_OWNERS.split()}
    assert "/dream_log" in guest
    assert not any("-" in name for name in named_in(owner))
    assert not for_owners & set(named_in(guest))
    assert for_owners <= set(named_in(owner))
    assert "/copy" not in owner


async def test_start_greets_shortly_with_buttons(bot: Bot):
    async with bot.serving() as bus:
        await bus.publish_inbound(from_channel("/start"))
        greeting = await bus.consume_outbound()

    assert greeting is not None
    assert "\n" not in greeting.content
    assert "/help" in [button.value for button in greeting.buttons]
    assert bot.requests == []


async def test_history_shows_what_was_said_without_our_own_words(bot: Bot):
    bot.provider.script(calls(("list_dir", {"path": "."})), "a file", "")
    bot.provider.script("at last")
    await bot.say("look")
    await bot.say("and?")

    reply = await bot.say("/history 3")

    assert "you: and?" in reply
    assert "bot: at last" in reply
    assert "Runtime Context" not in reply
    assert "empty" not in reply
    for count in ("0", "²", "-3", "many"):
        assert "/history 20" in await bot.say(f"/history {count}")


async def test_status_and_context_show_one_figure_what_the_provider_counted_and_what_came_since(bot: Bot):
    bot.provider.script(LLMResponse("done", usage={"prompt_tokens": 3_000, "completion_tokens": 500}))
    await bot.say("hello")

    for command in ("/status", "/context"):
        assert "Window: 3,500 of 65,536 tokens (5%)" in await bot.say(command)


async def test_context_tells_what_was_cached_and_what_would_go_next(bot: Bot):
    (bot.workspace / "notes.txt").write_text("plum tree and river\n" * 200, encoding="utf-8")
    for number in range(8):
        used = LLMResponse(f"answer {number}", usage={"prompt_tokens": 3_000, "cached_tokens": 2_700})
        bot.provider.script(calls(("read_file", {"path": "notes.txt"})), used)
        await bot.say(f"read it, {number}")

    reply = await bot.say("/context")

    assert "of it identity" in reply
    assert "of it list of skills" in reply
    assert "The last request: 3,000 tokens, 2,700 cached (90%), 300 not cached." in reply
    assert "the first to be dropped: results and pictures of old turns, " in reply


async def test_context_shows_the_window_that_the_model_told(bot: Bot):
    bot.provider.script(ContextOverflowError("This model's maximum context length is 10000 tokens."), "fine")
    await bot.say("hello")

    assert "of 9,500 tokens (" in await bot.say("/context")


async def test_model_is_changed_for_one_session_and_survives_a_restart(tmp_path):
    config = Config.model_validate({"modelPresets": {"fast": {"model": "small-one"}}})
    async with open_bot(tmp_path, "a", "b", config=config) as bot:
        changed = await bot.say("/model fast", session="cli:one")
        other = await bot.say("/model", session="cli:two")
    async with open_bot(tmp_path, config=config) as again:
        kept = await again.say("/model", session="cli:one")

    assert "fast" in changed or "small-one" in changed
    assert "scripted" in other
    assert "scripted" not in kept.split("\n")[0]


async def test_commands_are_never_shown_to_the_model(bot: Bot):
    bot.provider.script("hi")
    await bot.say("/help")
    await bot.say("/status")

    await bot.say("hello")

    assert "/help" not in str(bot.provider.requests[0][1:])


# --- for owners


def from_channel(content: str, sender: str = "5", provenance: Provenance = Provenance.PERSON) -> InboundMessage:
    return InboundMessage("telegram", sender, "5", content, provenance=provenance)


async def asked(bot: Bot, message: InboundMessage) -> str:
    return (await bot.run_turn(message)).text


async def test_an_owner_lets_a_stranger_in_from_a_chat_and_from_the_terminal(bot: Bot):
    pairing = PairingStore(DataPaths(bot.home))
    codes = [found.code for name in ("7", "8") if (found := pairing.ask("discord", Sender.of(name)))]

    in_chat = await asked(bot, from_channel(f"/pairing approve {codes[0]}", provenance=Provenance.OWNER))
    in_terminal = await bot.say(f"/pairing approve {codes[1]}")

    assert in_chat == "7 on discord may talk to me now."
    assert in_terminal == "8 on discord may talk to me now."
    assert pairing.people("discord").approved == {"number:7", "number:8"}


@pytest.mark.parametrize("words", ["/pairing list", "/PAIRING@bot list", "/pairing approve {code}", "/restart"])
async def test_nobody_else_does_what_is_for_owners(bot: Bot, words: str):
    asked_for = PairingStore(DataPaths(bot.home)).ask("discord", Sender.of("7"))
    assert asked_for is not None

    reply = await asked(bot, from_channel(words.format(code=asked_for.code)))

    assert "Only an owner" in reply
    assert asked_for.code not in reply
    assert not PairingStore(DataPaths(bot.home)).people("discord").approved


async def test_who_is_allowed_but_no_owner_is_told_how_to_become_it(bot: Bot):
    reply = await asked(bot, from_channel("/pairing"))
    code = reply.split("approve ")[1].split()[0]

    PairingStore(DataPaths(bot.home)).approve(code, owner=True)

    assert PairingStore(DataPaths(bot.home)).people("telegram").owners == {"number:5"}


@pytest.mark.parametrize("origin", [Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT])
@pytest.mark.parametrize("words", ["/pairing approve {code}", "/restart"])
async def test_a_job_cannot_say_what_only_an_owner_may_type(tmp_path: Path, origin: Origin, words: str):
    restarts: list[str] = []
    async with open_bot(tmp_path, restart=lambda: restarts.append("now")) as bot:
        asked_for = PairingStore(DataPaths(bot.home)).ask("discord", Sender.of("7"))
        assert asked_for is not None
        job = InboundMessage.from_owner(
            "cli", "direct", words.format(code=asked_for.code), session_key="cron:1", origin=origin
        )

        reply = await asked(bot, job)

        assert "typed by an owner" in reply
        assert not PairingStore(DataPaths(bot.home)).people("discord").approved
    assert restarts == []


async def test_an_owner_restarts_the_gateway_at_once_even_while_a_turn_runs(tmp_path: Path):
    restarts: list[str] = []
    pause = Pause()
    async with open_bot(tmp_path, pause, "done", restart=lambda: restarts.append("now")) as bot:
        turn = asyncio.create_task(bot.say("work"))
        await pause.reached.wait()

        reply = await bot.say("/restart")

        assert restarts == ["now"]
        assert "Restarting" in reply
        pause.resume.set()
        assert await turn == "done"


async def test_where_there_is_no_gateway_restart_says_what_to_do(bot: Bot):
    assert "start nanobot again" in await bot.say("/restart")
