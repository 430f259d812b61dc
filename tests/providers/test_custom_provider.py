"""Direct chat completions, against a server that is as strict as the real ones."""

import asyncio
import base64
import os
import sys

import pytest
from PIL import Image

from nanobot.messages.types import ChatMessage
from nanobot.providers import errors
from nanobot.providers.base import LLMResponse, TextDelta
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.endpoint import CapabilityStore
from nanobot.testing.model_server import (
    Calls,
    CutStream,
    Fail,
    FakeModels,
    Garbage,
    Hang,
    Lingering,
    Plain,
    Raw,
    Reset,
    Say,
)
from tests.support.eventually import eventually
from tests.support.sample_requests import HELLO, TOOLS

KEY = "sk-secret-0123456789"


def provider(server: FakeModels, **settings: object) -> CustomProvider:
    return CustomProvider(KEY, server.v1, "m", **settings)  # type: ignore[arg-type]


async def ask(server: FakeModels, messages: list[ChatMessage] | None = None, **settings: object) -> LLMResponse:
    asked = provider(server, **settings)
    try:
        return await asked.chat(messages or HELLO, TOOLS)
    finally:
        await asked.close()


async def test_images_go_out_as_data_and_what_cannot_be_sent_as_a_note(server, tmp_path):
    picture, damaged = tmp_path / "a.png", tmp_path / "b.png"
    Image.new("RGB", (2, 2)).save(picture)
    damaged.write_bytes(picture.read_bytes()[:30])
    gone = [str(tmp_path / "gone.png"), "a\0b.png", "file://[x.png"]
    if os.name != "nt":
        os.mkfifo(tmp_path / "pipe.png")
        (tmp_path / "endless.png").symlink_to("/dev/zero")
        gone += [str(tmp_path / "pipe.png"), str(tmp_path / "endless.png")]

    async with asyncio.timeout(5):
        await ask(server, [{"role": "user", "content": "see", "media": [str(picture), str(damaged), *gone]}])

    text, image, bad, *notes = server.chats[0].json["messages"][0]["content"]
    encoded = base64.b64encode(picture.read_bytes()).decode("ascii")
    assert (text["text"], image["image_url"]["url"]) == ("see", f"data:image/png;base64,{encoded}")
    assert "not delivered" in bad["text"]
    assert [note["text"].endswith("no longer there]") for note in notes] == [True] * len(gone)


@pytest.mark.skipif(os.name == "nt", reason="POSIX has such files")
@pytest.mark.timeout(10)
async def test_what_a_command_put_in_the_place_of_a_picture_is_not_shown(server, tmp_path, monkeypatch):
    private, folder = tmp_path / "private.png", tmp_path / ".nanobot" / "images"
    Image.new("RGB", (2, 2)).save(private)
    folder.mkdir(parents=True)
    (folder / "a.png").symlink_to(private)
    (folder / "b.png").symlink_to("/dev/zero")
    os.mkfifo(folder / "c.png")
    (key := tmp_path / "id.png").write_text("a key")
    media = [*(str(folder / name) for name in ("a.png", "b.png", "c.png")), "/dev/zero.png", str(key)]
    monkeypatch.setitem(sys.modules, "PIL", None)

    await ask(server, [{"role": "user", "content": "see \ud83d", "media": media}])

    assert "data:" not in str(server.chats[0].json["messages"])


DIALECTS = {
    "crlf": Raw([b'data: {"choices":[{"delta":{"content":"hi"}}]}\r\n\r\ndata: [DONE]\r\n\r\n']),
    "no done": Raw.events({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}, done=False),
    "comments and garbage": Raw(
        [
            b": PROCESSING\n\n",
            b"oops\n\n",
            b"data: {broken\n\n",
            b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
    "one byte at a time": Raw(
        [bytes([byte]) for byte in b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n']
    ),
    "plain": Plain(Say("hi")),
    "plain, as events": Raw([b'{"choices":[{"message":{"content":"hi"}}]}']),
    "blocks, thinking among them": Raw.events(
        {"choices": [{"delta": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": "hi"}]}, "finish_reason": "stop"}]},
    ),
    "refusal": Raw.events({"choices": [{"delta": {"refusal": "hi"}, "finish_reason": "stop"}]}),
    "usage last": Raw.events(
        {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}, {"choices": [], "usage": None}
    ),
    "null fields": Raw.events(
        {"choices": [{"delta": {"content": None, "tool_calls": None}}], "usage": None},
        {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}], "error": None},
    ),
}


@pytest.mark.parametrize("step", DIALECTS.values(), ids=DIALECTS.keys())
async def test_every_dialect_of_a_stream_is_read(server, step):
    server.script(step)

    assert (await ask(server)).content == "hi"


HALF = {"choices": [{"delta": {"content": "hal"}}]}
BESIDE = {"error": {"message": "gone", "code": "server_error"}, "choices": [{"delta": {}, "finish_reason": "error"}]}
BUSY = {"error": {"message": "busy", "code": 529}}
FLAGGED = {"error": {"message": "flagged", "code": "content_filter"}}
FAILURES = {
    "401": (Fail(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"), errors.AuthenticationError),
    "cut": (CutStream(), errors.StreamCutError),
    "cut json": (Garbage(b'{"choices": [{"mess', "application/json"), errors.StreamCutError),
    "ends early": (Raw.events(HALF, done=False), errors.StreamCutError),
    "reset": (Reset(), errors.ConnectionFailedError),
    "html": (Garbage(), errors.MalformedResponseError),
    "empty": (Garbage(b""), errors.MalformedResponseError),
    "no choices": (Garbage(b'{"ok": true}', "application/json"), errors.MalformedResponseError),
    "error": (Raw.events(BUSY), errors.ModelOverloadedError),
    "error, in the middle": (Raw.events(HALF, BUSY), errors.StreamCutError),
    "error beside choices": (Raw.events(BESIDE), errors.ModelOverloadedError),
    "error beside choices, in the middle": (Raw.events(HALF, BESIDE), errors.StreamCutError),
    "no more than a finish_reason": (Raw.events(HALF, {"choices": BESIDE["choices"]}), errors.StreamCutError),
    "filtered": (
        Raw.events({"choices": [{"delta": {}, "finish_reason": "content_filter"}]}),
        errors.ContentFilteredError,
    ),
    "filtered in the middle": (Raw.events(HALF, FLAGGED), errors.ContentFilteredError),
    "redirect": (Garbage(b"", status=307, headers={"Location": "http://elsewhere/"}), errors.MalformedResponseError),
    "gzip bomb of lies": (Garbage(b"not gzip", headers={"Content-Encoding": "gzip"}), errors.MalformedResponseError),
}


@pytest.mark.parametrize(("step", "kind"), FAILURES.values(), ids=FAILURES.keys())
async def test_each_failure_has_its_type_names_who_was_asked_and_tells_no_key(server, step, kind):
    server.script(step)

    with pytest.raises(kind) as caught:
        await ask(server, name="acme")

    said = str(caught.value)
    assert all(word in said for word in ("acme", "model m", server.v1))
    assert KEY not in said
    assert len(server.chats) == 1


@pytest.mark.parametrize(
    ("base", "proxy"),
    [
        *((base, None) for base in ("http://no-such-host.invalid/v1", "ftp://x", "http://[bad", "x")),
        *(("http://models.test/v1", proxy) for proxy in ("http://127.0.0.1:1", "gopher://127.0.0.1:1")),
    ],
)
async def test_a_server_that_is_not_there_is_a_failed_connection(base, proxy):
    with pytest.raises(errors.ConnectionFailedError):
        await CustomProvider(KEY, base, "m", proxy=proxy).chat(HELLO)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_a_refused_connection_in_plain_words(host):
    with pytest.raises(errors.ConnectionFailedError, match=r"/v1\]: nothing answers there\. Is the server running\?"):
        await CustomProvider(KEY, f"http://{host}:1/v1", "m").chat(HELLO)


async def test_a_key_with_a_line_break_is_refused_and_not_told():
    with pytest.raises(errors.ModelCallError) as caught:
        await CustomProvider(f"{KEY}\nü", "http://127.0.0.1:1/v1", "m").chat(HELLO)

    assert "secret" not in str(caught.value)


async def test_a_proxy_is_asked_for_the_whole_address_over_one_connection(server):
    proxied = CustomProvider(KEY, "http://models.test/v1", "m", proxy=server.url)
    server.script(Say("hi"), Say("again"), Fail(401, "no"), CutStream())

    answers = [await proxied.chat(HELLO, TOOLS) for _ in range(2)]
    with pytest.raises(errors.AuthenticationError):
        await proxied.chat(HELLO)
    with pytest.raises(errors.StreamCutError):
        await proxied.chat(HELLO)
    await proxied.close()

    assert [answer.content for answer in answers] == ["hi", "again"]
    assert {request.path for request in server.chats} == {"http://models.test/v1/chat/completions"}
    assert server.chats[0].headers["host"] == "models.test"
    assert server.chats[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.connections == 1


@pytest.mark.parametrize("has_proxy", [False, True])
async def test_a_cancelled_call_hands_out_what_came_and_closes_its_connection(server, has_proxy):
    server.script(Hang(after="The"), Say("fine"))
    base, proxy = ("http://models.test/v1", server.url) if has_proxy else (server.v1, None)
    asked = CustomProvider(KEY, base, "m", proxy=proxy)

    async with asyncio.timeout(5):
        async for delta in asked.chat_stream(HELLO):
            assert isinstance(delta, TextDelta)
            break
        await eventually(lambda: not server.open_connections)

    assert (await asked.chat(HELLO)).content == "fine"
    await asked.close()


async def test_an_answer_does_not_wait_for_a_body_that_stays_open_and_its_connection_is_used_again(server):
    server.script(Lingering(Say("done"), 0.3))
    asked = provider(server)

    answer = await asked.chat(HELLO)
    is_open = not server.chats[0].times
    await eventually(lambda: server.chats[0].times)
    again = await asked.chat(HELLO)
    await asked.close()

    assert (answer.content, again.content, is_open, server.connections) == ("done", "ok", True, 1)


@pytest.mark.parametrize("field", ["stream_options", "temperature", "reasoning_effort"])
async def test_a_field_that_the_server_calls_unknown_is_dropped_once_and_remembered(server, tmp_path, field):
    server.unknown = [field]
    path = tmp_path / "capabilities.json"

    for _ in range(2):
        await ask(server, capabilities=CapabilityStore(path), reasoning_effort="low")

    assert len(server.chats) == 3
    assert [field in request.json for request in server.chats] == [True, False, False]
    assert field in path.read_text()


async def test_a_model_that_does_not_reason_gets_no_reasoning_over_responses_and_answers():
    refusals = [
        Fail(400, "Unsupported parameter: 'temperature' is not supported with this model.", param="temperature"),
        Fail(400, "Your organization must be verified to generate reasoning summaries.", "unsupported_value",
             param="reasoning.summary"),
        Fail(400, "Encrypted content is not supported with this model.", param="include"),
    ]  # fmt: skip
    with FakeModels() as server:
        asked = provider(server, api_type="responses", reasoning_effort="low")
        server.script(*refusals)

        response = await asked.chat(HELLO)
        await asked.chat(HELLO, max_tokens=5)
        await asked.close()

    sent = server.chats[-1].json
    assert response.content == "ok"
    assert len(server.chats) == 5
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["max_output_tokens"] == 16
    assert not {"temperature", "include"} & set(sent)


async def test_max_tokens_is_renamed_where_the_server_asks_for_it(server):
    server.script(
        Fail(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        Fail(400, "max_completion_tokens is too large: 4096"),
        Say("hi"),
    )

    await ask(server)

    second, third = server.chats[1].json, server.chats[2].json
    assert (second.get("max_completion_tokens"), "max_tokens" in second) == (4096, False)
    assert not {"max_tokens", "max_completion_tokens"} & set(third)


async def test_a_server_that_always_finds_another_fault_is_asked_seven_times(server):
    fields = {f"field_{number}": 1 for number in range(9)}
    server.script(*[Fail(400, f"Unrecognized request argument supplied: {name}") for name in fields])

    with pytest.raises(errors.InvalidRequestError, match="field_6"):
        await ask(server, extra_body=fields)

    assert len(server.chats) == 7


@pytest.mark.parametrize("model", ["kimi-k2-thinking", "quite-another"])
async def test_reasoning_goes_back_with_its_calls_to_a_server_that_requires_it(server, model):
    server.reasoning = "required"
    asked, rows = CustomProvider(KEY, server.v1, model), list[ChatMessage]()
    for turn in range(3):
        server.script(Calls(("list_dir", {"path": "."}), ("list_dir", {"path": "b"}), reasoning=f"hm {turn}"))
        rows.append({"role": "user", "content": f"turn {turn}"})
        response = await asked.chat(rows, TOOLS)
        calls = [call.to_message() for call in response.tool_calls]
        rows.append(
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": response.reasoning_content}
        )
        rows += [{"role": "tool", "tool_call_id": call["id"], "name": "list_dir", "content": "a"} for call in calls]
        rows.append({"role": "assistant", "content": (await asked.chat(rows, TOOLS)).content})
    await asked.close()

    sent = server.chats[-1].json["messages"]
    assert [row["reasoning_content"] for row in sent if row.get("tool_calls")] == ["hm 0", "hm 1", "hm 2"]
    assert len(server.problems) == (0 if "kimi" in model else 1), "learned from the refusal"


async def test_thoughts_of_another_model_do_not_go_to_a_server_that_refuses_them(server):
    server.reasoning = "forbidden"
    rows: list[ChatMessage] = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "list_dir", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "list_dir", "content": "x"},
    ]

    assert (await ask(server, rows)).content == "ok"
    deepseek = CustomProvider(KEY, server.v1, "deepseek-chat")  # whose models usually expect them
    assert (await deepseek.chat(rows, TOOLS)).content == "ok"
    await deepseek.close()


async def test_a_secret_header_is_not_told_and_a_harmless_one_is_no_secret(server):
    server.script(Fail(400, "the team blue sent token-12345678"))

    with pytest.raises(errors.InvalidRequestError, match="team blue sent") as caught:
        await ask(server, extra_headers={"X-Team": "blue", "X-Auth-Token": "token-12345678"})

    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize(("length", "expected"), [(128_000, 128_000), (None, None)])
async def test_the_window_of_a_model_is_what_the_endpoint_lists(length: int | None, expected: int | None):
    with FakeModels(models=["m"], context_length=length) as server:
        provider = CustomProvider(api_base=server.v1)

        assert await provider.context_length("m") == expected
        assert await provider.context_length("another") is None
        await provider.close()


async def test_an_answer_that_is_complete_loses_nothing_with_its_connection():
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + event)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as running:
        asked = CustomProvider("k", f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/v1", "m")
        response = await asked.chat(HELLO)
        await asked.close()

    assert response.content == "hi"
