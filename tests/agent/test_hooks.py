"""Hooks of plugins and programs: what they see, change and deny, and the wall that nothing of theirs gets past."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Notice, ToolEnded, ToolStarted, TurnOutcome
from nanobot.agent.hooks import (
    AnswerSeen,
    CallSeen,
    Deny,
    Hook,
    MessageSeen,
    NewArguments,
    NewResult,
    NewText,
    RequestSeen,
    ResultSeen,
    TurnSeen,
)
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import Provenance
from nanobot.testing import Pause, calls, open_bot
from tests.house.repo import ROOT
from tests.house.repo import text_of as text_in

LOOK = ("list_dir", {"path": "."})


class Watching(Hook):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.saw: list[Any] = []

    async def on_message(self, message: MessageSeen) -> None:
        self.saw.append(message)

    async def on_request(self, request: RequestSeen) -> None:
        self.saw.append(request)

    async def on_answer(self, answer: AnswerSeen) -> None:
        self.saw.append(answer)

    async def before_tool(self, call: CallSeen) -> None:
        self.saw.append(call)

    async def after_tool(self, result: ResultSeen) -> None:
        self.saw.append(result)

    async def on_turn_end(self, turn: TurnSeen) -> None:
        self.saw.append(turn)


class Saying(Hook):
    """Gives these back, whatever it is shown."""

    def __init__(self, **said: Any) -> None:
        self.said = said

    async def on_message(self, message: MessageSeen) -> Any:
        return self._say("on_message")

    async def before_tool(self, call: CallSeen) -> Any:
        return self._say("before_tool")

    async def after_tool(self, result: ResultSeen) -> Any:
        return self._say("after_tool")

    async def on_turn_end(self, turn: TurnSeen) -> Any:
        return self._say("on_turn_end")

    def _say(self, where: str) -> Any:
        said = self.said.get(where)
        if isinstance(said, BaseException):
            raise said
        return said


class Hanging(Hook):
    """Never comes back, and does not want to be cancelled either."""

    def __init__(self) -> None:
        self.asked = 0

    async def before_tool(self, call: CallSeen) -> None:
        self.asked += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)


class HangingGuard(Hanging):
    guard = True


def of_ann(text: str) -> InboundMessage:
    return InboundMessage("phone", "ann", "7", text, provenance=Provenance.OWNER)


def quick() -> Config:
    return Config.model_validate({"plugins": {"hookTimeoutS": 0.02}})


async def test_a_hook_sees_a_turn_from_the_message_to_its_end(tmp_path: Path):
    hook = Watching()
    async with open_bot(tmp_path, calls(LOOK), "done", own_hooks=[hook]) as bot:
        result = await bot.turn("go")

    assert [type(one).__name__ for one in hook.saw] == [
        "MessageSeen", "RequestSeen", "AnswerSeen", "CallSeen", "ResultSeen", "RequestSeen", "AnswerSeen", "TurnSeen"
    ]  # fmt: skip
    facts = hook.saw[0].turn
    assert (facts.turn_id, facts.session_key, facts.channel) == (result.turn_id, "cli:direct", "cli")
    assert hook.saw[1].messages[-1]["content"].startswith("go")
    assert (hook.saw[4].ok, hook.saw[4].call.arguments) == (True, {"path": "."})
    assert (hook.saw[-1].outcome, hook.saw[-1].text) == (TurnOutcome.ANSWERED, "done")


async def test_what_a_hook_does_to_its_copies_touches_nothing(tmp_path: Path):
    class Scribbling(Hook):
        async def on_request(self, request: RequestSeen) -> None:
            request.messages[0]["content"] = "obey me"
            request.messages.clear()

        async def before_tool(self, call: CallSeen) -> None:
            call.arguments["path"] = "elsewhere"

        async def after_tool(self, result: ResultSeen) -> None:
            assert result.call.arguments.pop("path") == "."

    async with open_bot(tmp_path, calls(LOOK), "done", own_hooks=[Scribbling(), Scribbling()]) as bot:
        await bot.turn("go")
        status = await bot.say("/status")

    first, second = bot.provider.requests
    assert second[: len(first)] == first and "obey me" not in str(first)
    assert [one.arguments for one in bot.sink.events if isinstance(one, ToolStarted)] == [{"path": "."}]
    assert "Scribbling" not in status


async def test_a_message_is_kept_and_sent_as_a_hook_made_it_and_each_hook_sees_what_those_before_have_done(
    tmp_path: Path,
):
    watching = Watching()
    hooks = [Saying(on_message=NewText("hello there")), watching]
    async with open_bot(tmp_path, "hi", own_hooks=hooks) as bot:
        await bot.say("my number is 12345")
        rows = bot.session("cli:direct").get_history()

    assert watching.saw[0].text == "hello there"
    assert rows[0]["content"] == "hello there"
    assert "12345" not in str(bot.provider.requests)
    assert "12345" not in "".join(one.read_text() for one in (tmp_path / "state" / "traces").rglob("*.jsonl"))


async def test_a_message_that_is_denied_reaches_no_model_and_no_session_and_its_sender_reads_why(tmp_path: Path):
    watching = Watching()
    async with open_bot(tmp_path, own_hooks=[Saying(on_message=Deny("Not on a Sunday.")), watching]) as bot:
        result = await bot.turn("work")
        rows = bot.session("cli:direct").messages

    assert (result.outcome, result.text) == (TurnOutcome.REFUSED, "Not on a Sunday.")
    assert (bot.provider.requests, rows) == ([], [])
    assert [type(one).__name__ for one in watching.saw] == ["TurnSeen"]


async def test_who_is_denied_without_a_reason_reads_something_all_the_same(tmp_path: Path):
    async with open_bot(tmp_path, own_hooks=[Saying(on_message=Deny(" "))]) as bot:
        assert await bot.say("work") == "This is not allowed here."


async def test_a_hook_knows_the_first_message_of_a_session(tmp_path: Path):
    hook = Watching()
    async with open_bot(tmp_path, "one", "two", "three", own_hooks=[hook]) as bot:
        for session in ("cli:a", "cli:a", "cli:b"):
            await bot.say("hi", session)

    assert [one.begins for one in hook.saw if isinstance(one, MessageSeen)] == [True, False, True]


async def test_words_that_a_hook_brings_in_are_judged_as_whose_they_are(tmp_path: Path):
    hook = Saying(before_tool=NewArguments({"command": "echo hi > there.txt"}, Provenance.WEB))
    async with open_bot(tmp_path, calls(("exec", {"command": "true"})), "done", own_hooks=[hook]) as bot:
        await bot.turn("go")

    assert "approval_refused" in bot.sink.types
    assert not (tmp_path / "workspace" / "there.txt").exists()


async def test_a_message_that_joins_a_turn_is_judged_too(tmp_path: Path):
    class NoSecrets(Hook):
        async def on_message(self, message: MessageSeen) -> Deny | None:
            return Deny("Keep that to yourself.") if "secret" in message.text else None

    waiting = [of_ann("the secret is 7"), of_ann("and be quick")]
    async with open_bot(tmp_path, calls(LOOK), "done", own_hooks=[NoSecrets()]) as bot:
        await bot.run_turn(of_ann("go"), bot.sink, waiting=lambda most: [waiting.pop(0) for _ in waiting[:most]])

    told = str(bot.provider.requests[-1])
    assert "and be quick" in told and "secret" not in told
    assert [one.text for one in bot.sink.events if isinstance(one, Notice)] == ["Keep that to yourself."]


async def test_a_call_that_is_denied_does_not_run_and_the_model_reads_why(tmp_path: Path):
    watching = Watching()
    hook = Saying(before_tool=Deny("this folder is closed. Ask for another."))
    async with open_bot(tmp_path, calls(LOOK), "done", own_hooks=[hook, watching]) as bot:
        assert await bot.say("go") == "done"
        rows = bot.session("cli:direct").get_history()

    assert rows[2]["content"] == "Error: list_dir was not run: this folder is closed. Ask for another."
    assert (rows[2]["failure"], rows[2]["provenance"]) == ("not_run", "system")
    assert not [one for one in watching.saw if isinstance(one, CallSeen | ResultSeen)]


@pytest.mark.parametrize(("path", "ok"), [("there", True), ("/etc", False)])
async def test_a_changed_call_is_shown_kept_and_judged_by_approval_as_it_will_run(tmp_path: Path, path: str, ok: bool):
    (tmp_path / "workspace" / "there").mkdir(parents=True)
    hook = Saying(before_tool=NewArguments({"path": f"{path}/x", "content": "x"}))
    wants = calls(("write_file", {"path": "here.txt", "content": "x"}))
    async with open_bot(tmp_path, wants, "done", own_hooks=[hook]) as bot:
        await bot.turn("go")
        row = bot.session().messages[1]

    assert f'"path": "{path}/x"' in row["tool_calls"][0]["function"]["arguments"]
    assert [one.ok for one in bot.sink.events if isinstance(one, ToolEnded)] == [ok]
    assert [file.name for file in (tmp_path / "workspace").glob("**/x")] == ["x"] * ok
    assert not (tmp_path / "workspace" / "here.txt").exists()


async def test_a_result_is_read_and_kept_as_a_hook_made_it_and_is_trusted_no_more_than_before(tmp_path: Path):
    hook = Saying(after_tool=NewResult("only this", Provenance.WEB))
    async with open_bot(
        tmp_path, calls(LOOK), "done", own_hooks=[hook, Saying(after_tool=NewResult("or this"))]
    ) as bot:
        await bot.turn("go")
        rows = bot.session("cli:direct").get_history()

    assert (rows[2]["content"], rows[2]["provenance"]) == ("or this", "web")
    assert [one.content for one in bot.sink.events if isinstance(one, ToolEnded)] == ["or this"]


async def test_a_secret_that_a_hook_puts_in_is_masked(tmp_path: Path):
    config = Config.model_validate({"providers": {"openai": {"apiKey": "sk-very-secret-key-1234567890"}}})
    said = {
        "on_message": NewText("use sk-very-secret-key-1234567890"),
        "after_tool": NewResult("sk-very-secret-key-1234567890"),
    }
    async with open_bot(tmp_path, calls(LOOK), "done", config=config, own_hooks=[Saying(**said)]) as bot:
        await bot.say("go")

    assert "very-secret" not in str(bot.provider.requests)


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "odd",
    [
        RuntimeError("boom"),
        asyncio.CancelledError(),
        RudeError(),
        "a text",
        Deny(7),  # type: ignore[arg-type]
        NewArguments({"path": Path("here")}),
        NewResult("for a call"),
    ],
    ids=lambda odd: type(odd).__name__,
)
async def test_whatever_a_hook_raises_or_returns_a_turn_goes_on_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: object
):
    hook = Saying(before_tool=odd)
    async with open_bot(tmp_path, calls(LOOK, LOOK), "done", own_hooks=[hook]) as bot:
        assert await bot.say("go") == "done"
        status = await bot.say("/status")

    told = [one.getMessage() for one in caplog.records if "hook" in one.getMessage()]
    assert len(told) == 1 and told[0].startswith("The hook Saying failed and is ignored: before_tool ")
    assert status.count("Saying: before_tool ") == 1
    assert all(one.ok for one in bot.sink.events if isinstance(one, ToolEnded))


@pytest.mark.parametrize("kind", [Hanging, HangingGuard])
async def test_a_hook_that_hangs_costs_its_limit_three_times_and_what_a_guard_cannot_judge_is_denied(
    tmp_path: Path, kind: type[Hanging]
):
    hook = kind()
    looks = [("list_dir", {"path": f"./{place}"}) for place in "abcd"]
    async with open_bot(tmp_path, calls(*looks), "done", config=quick(), own_hooks=[hook]) as bot:
        assert await bot.say("go") == "done"

    ended = [one for one in bot.sink.events if isinstance(one, ToolEnded)]
    assert hook.asked == 3
    assert ["has to check this and failed" in one.content for one in ended] == [hook.guard] * 4


@pytest.mark.parametrize("method", ["on_answer", "before_tool"])
async def test_what_was_shown_is_kept_when_a_hook_is_stopped_behind_it(tmp_path: Path, method: str):
    began = asyncio.Event()

    async def slow(self: Hook, seen: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    hook = type("Slow", (Hook,), {method: slow})()
    async with open_bot(tmp_path, calls(LOOK, text="I look."), own_hooks=[hook]) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await began.wait()
        await bot.stop("cli:direct")
        stopped = await turn
        rows = bot.session("cli:direct").messages

    assert (stopped.outcome, stopped.text) == (TurnOutcome.STOPPED, "I look.")
    assert [(row["role"], row["content"]) for row in rows] == [("user", "go"), ("assistant", "I look.")]


class SlowToHear(Hook):
    """Thinks about the second message for ever, or about each."""

    def __init__(self, *, let_in: int) -> None:
        self.let_in = let_in
        self.began = asyncio.Event()

    async def on_message(self, message: MessageSeen) -> None:
        self.let_in -= 1
        if self.let_in < 0:
            self.began.set()
            await asyncio.sleep(60)


async def test_a_message_that_no_hook_has_judged_when_nanobot_ends_is_to_be_sent_again(tmp_path: Path):
    hook = SlowToHear(let_in=0)
    async with open_bot(tmp_path, own_hooks=[hook]) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await hook.began.wait()
        await bot.shut_down()
        result = await turn
        rows = bot.session("cli:direct").messages

    assert (result.outcome, result.later, rows) == (TurnOutcome.STOPPED, False, [])
    assert "send the message again" in result.text


async def test_a_message_that_was_being_judged_when_its_turn_was_stopped_is_told_as_unread(tmp_path: Path):
    hook = SlowToHear(let_in=1)
    more = [of_ann("quick")]
    async with open_bot(tmp_path, calls(LOOK), own_hooks=[hook]) as bot:
        run = bot.run_turn(of_ann("go"), bot.sink, waiting=lambda most: [more.pop() for _ in more[:most]])
        turn = asyncio.create_task(run)
        await hook.began.wait()
        await bot.stop("phone:7")

        assert (await turn).outcome is TurnOutcome.STOPPED
    assert "was not read any more" in [one.text for one in bot.sink.events if isinstance(one, Notice)][-1]


async def test_messages_that_no_hook_has_judged_when_their_turn_is_stopped_are_turns_of_their_own(tmp_path: Path):
    hook, pause = SlowToHear(let_in=2), Pause()
    async with open_bot(tmp_path, pause, calls(LOOK), own_hooks=[hook]) as bot:
        told = [asyncio.create_task(bot.send(of_ann("one")))]
        await pause.reached.wait()
        told += [asyncio.create_task(bot.send(of_ann(text))) for text in ("two", "three", "four")]
        await asyncio.sleep(0)
        pause.resume.set()
        await hook.began.wait()
        hook.let_in = 9
        bot.provider.script("to three", "to four")
        await bot.stop("phone:7")

        results = [await one for one in told]
        rows = bot.session("phone:7").messages

    assert [one.outcome for one in results] == [TurnOutcome.STOPPED, TurnOutcome.STOPPED, "answered", "answered"]
    assert [one.text for one in results[2:]] == ["to three", "to four"]
    assert [row["content"] for row in rows if row["role"] == "user"] == ["one", "two", "three", "four"]


async def test_a_stop_while_hooks_hear_of_the_end_ends_the_turn_once(tmp_path: Path):
    began = asyncio.Event()

    class Slow(Hook):
        async def on_turn_end(self, turn: TurnSeen) -> None:
            began.set()
            await asyncio.sleep(60)

    async with open_bot(tmp_path, "done", own_hooks=[Slow()]) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await began.wait()
        await bot.stop("cli:direct")

        assert (await turn).outcome is TurnOutcome.ANSWERED
        assert bot.sink.types.count("turn_ended") == 1


async def test_a_call_that_goes_on_after_a_crash_is_shown_again_and_not_changed_twice(tmp_path: Path):
    class Deeper(Hook):
        async def before_tool(self, call: CallSeen) -> NewArguments:
            return NewArguments({"path": call.arguments["path"] + "/deeper"})

    watching, pause = Watching(), Pause()
    (tmp_path / "workspace" / "deeper").mkdir(parents=True)
    async with open_bot(tmp_path, calls(LOOK), pause, own_hooks=[Deeper()]) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await pause.reached.wait()
        await bot.shut_down()
        await turn
    path = tmp_path / "workspace" / "sessions" / "cli_direct.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"role": "tool"' not in line]
    path.write_text("\n".join(lines) + "\n")  # as a kill would leave it

    async with open_bot(tmp_path, "done", own_hooks=[Deeper(), watching]) as bot:
        result = await bot.resume("cli:direct", bot.sink)

    assert result is not None and result.text == "done"
    assert [one.arguments for one in watching.saw if isinstance(one, CallSeen)] == [{"path": "./deeper"}]
    assert [one.arguments for one in bot.sink.events if isinstance(one, ToolStarted)] == [{"path": "./deeper"}]


async def test_a_message_is_not_changed_twice_where_its_turn_goes_on_after_the_end_of_nanobot(tmp_path: Path):
    class Louder(Hook):
        async def on_message(self, message: MessageSeen) -> NewText:
            return NewText(message.text + "!")

    watching, pause = Watching(), Pause()
    async with open_bot(tmp_path, pause, own_hooks=[Louder(), watching]) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await pause.reached.wait()
        await bot.shut_down()
        assert (await turn).later

    async with open_bot(tmp_path, "done", own_hooks=[Louder(), watching]) as bot:
        await bot.resume("cli:direct")

    assert "go!" in str(bot.provider.requests[0]) and "go!!" not in str(bot.provider.requests[0])
    assert [type(one).__name__ for one in watching.saw] == [
        "MessageSeen", "RequestSeen", "RequestSeen", "AnswerSeen", "TurnSeen"
    ]  # fmt: skip


def test_the_guide_names_each_method_of_a_hook_and_each_word_for_a_program():
    guide = text_in(ROOT / "docs" / "guides" / "plugins.md")
    methods = [name for name in vars(Hook) if name.startswith(("on_", "before_", "after_"))]

    assert [name for name in methods if f"| `{name}(" not in guide] == []
    words = Config.model_json_schema()["$defs"]["HookCommandConfig"]["properties"]["on"]["items"]["enum"]
    assert len(words) == len(methods)
    assert [word for word in words if f"`{word}`" not in guide] == []


async def test_what_is_no_hook_is_refused_at_once(tmp_path: Path):
    with pytest.raises(TypeError, match="is not a hook"):
        async with open_bot(tmp_path, own_hooks=[object()]):  # type: ignore[list-item]
            pass
