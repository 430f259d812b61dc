"""The stand-in understands simple requests, and answers them through the tools it is offered."""

import pytest

from nanobot.messages.types import ChatMessage, ToolFailure
from nanobot.providers.base import CallContext, LLMResponse, call_context_scope
from nanobot.providers.offline_provider import NOTICE, OfflineProvider
from tests.support.sample_requests import tool

NAMES = ["list_dir", "read_file", "write_file", "edit_file", "exec", "grep", "glob", "web_search", "web_fetch", "cron"]


async def answer(*rows: ChatMessage, offered: list[str] | None = None) -> LLMResponse:
    return await OfflineProvider().chat(rows, [tool(name) for name in NAMES if offered is None or name in offered])


def said(text: str) -> ChatMessage:
    return {"role": "user", "content": text, "runtime_context": "[Runtime Context — metadata only, not instructions]"}


async def after(question: str, *results: str, failed: bool = False) -> LLMResponse:
    """The answer when each call it makes gives the next of these results."""
    rows: list[ChatMessage] = [said(question)]
    response = await answer(*rows)
    for result in results:
        calls = [call.to_message() for call in response.tool_calls]
        rows.append({"role": "assistant", "content": None, "tool_calls": calls})
        given: ChatMessage = {"role": "tool", "name": "x", "content": result}
        if failed:
            given["failure"] = ToolFailure.NOT_DONE.value
        rows += [{**given, "tool_call_id": call["id"]} for call in calls]
        response = await answer(*rows)
    return response


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What is in my workspace?", "list_dir", {"path": "."}),
        ("list files", "list_dir", {"path": "."}),
        ("ls", "list_dir", {"path": "."}),
        ("What's in the folder memory/?", "list_dir", {"path": "memory/"}),
        ("show me AGENTS.md", "read_file", {"path": "AGENTS.md"}),
        ("Please read the file notes/a-b.txt.", "read_file", {"path": "notes/a-b.txt"}),
        ("write hello to notes.txt", "write_file", {"path": "notes.txt", "content": "hello\n"}),
        ('Write "hello world" into the file a.md!', "write_file", {"path": "a.md", "content": "hello world\n"}),
        ("create a file called a.txt with hello", "write_file", {"path": "a.txt", "content": "hello\n"}),
        ("run ls -la", "exec", {"command": "ls -la"}),
        ("Can you run `echo hi`?", "exec", {"command": "echo hi"}),
        ("search for TODO", "grep", {"pattern": "TODO"}),
        ("find *.py files", "glob", {"pattern": "*.py"}),
        ("search the web for cats", "web_search", {"query": "cats"}),
        ("fetch https://example.com/a?b=c.", "web_fetch", {"url": "https://example.com/a?b=c"}),
        ("remember that I like tea", "read_file", {"path": "memory/MEMORY.md"}),
        ("remind me every 5 minutes to drink", "cron", {"action": "add", "message": "drink", "every_seconds": 300}),
    ],
)
async def test_a_request_becomes_the_call_it_asks_for(question, name, arguments):
    response = await answer(said(question))

    assert [(call.name, call.arguments) for call in response.tool_calls] == [(name, arguments)]


async def test_a_reminder_is_set_for_a_moment_with_its_offset():
    response = await answer(said("Remind me in 10 minutes to stretch"))

    assert response.tool_calls[0].arguments["message"] == "stretch"
    assert response.tool_calls[0].arguments["at"][-6] in "+-"


WEB = "[From the web: data.]\\n\\n"


@pytest.mark.parametrize(
    ("question", "result", "told"),
    [
        ("ls", "AGENTS.md  (1.2 kB)\nmemory/\n(More than 2 entries)", "Your workspace contains: AGENTS.md, memory/."),
        (
            "fetch https://x.test/",
            f'{{"status": 200, "text": "{WEB}Hello"}}',
            "This is what https://x.test/ says:\n\nHello",
        ),
        (
            "fetch https://x.test/",
            '{"status": 404, "text": "Gone"}',
            "The server answered 404. This is what https://x.test/ says:\n\nGone",
        ),
        ("fetch https://x.test/", '{"status": ... cut', 'This is what https://x.test/ says:\n\n{"status": ... cut'),
        ("search the web for cats", "[From the web: data.]\n\n1. Cats", "The web says about `cats`:\n\n1. Cats"),
        ("show me run.log", "Error: the disk is full", "This is run.log:\n\nError: the disk is full"),
    ],
)
async def test_a_result_is_told_in_words(question, result, told):
    assert (await after(question, result)).content == f"{told}\n\n{NOTICE}"


async def test_a_failure_of_a_tool_is_told_as_it_is_and_one_that_is_missing_is_named():
    failed = await after("show me a.txt", "Error: a.txt does not exist.", failed=True)
    missing = await answer(said("search the web for cats"), offered=["list_dir"])
    tools = await answer(said("which tools do you have?"))

    assert (failed.content or "").startswith("That did not work. Error: a.txt does not exist.")
    assert "`web_search`" in (missing.content or "")
    assert "web_fetch" in (tools.content or "")


async def test_remembering_reads_the_memory_and_adds_a_line_behind_the_last():
    memory = "     1\t# Memory\n     2\t\n     3\t- likes rain"

    edit = await after("remember that I like tea", memory)
    begun = await after("remember that I like tea", "Error: memory/MEMORY.md does not exist.", failed=True)
    done = await after("remember that I like tea", memory, "Edited memory/MEMORY.md")

    assert edit.tool_calls[0].name == "edit_file"
    assert edit.tool_calls[0].arguments["old_text"] == "- likes rain"
    assert edit.tool_calls[0].arguments["new_text"] == "- likes rain\n- I like tea"
    assert (done.content or "").startswith("I will remember: I like tea.")
    assert begun.tool_calls[0].name == "write_file"
    assert "- I like tea" in begun.tool_calls[0].arguments["content"]


@pytest.mark.parametrize(
    "question", ["hello", "help", "What can you do?", "what is the meaning of life?", "", "What tools do you have?"]
)
async def test_every_answer_says_that_no_model_is_set_up_and_what_to_type(question):
    response = await answer(said(question))

    assert (response.content or "").endswith(NOTICE)
    assert "nanobot onboard" in NOTICE
    assert "\n" not in NOTICE


async def test_our_own_words_to_the_model_are_not_taken_for_a_question():
    response = await answer(said("run ls"), {"role": "user", "content": "Go on.", "origin": "system"})

    assert response.tool_calls[0].name == "exec"


async def test_a_reminder_that_is_due_is_told_and_not_taken_for_a_request():
    with call_context_scope(CallContext("cron")):
        response = await answer(said('list files\n\n[Scheduled job "a", due 18:00.]'))

    assert (response.content or "").startswith("Reminder: list files\n\n(No model is set up")
    assert response.tool_calls == []
