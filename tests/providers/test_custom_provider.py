"""Direct chat completions, against a server that is as strict as the real ones."""

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from PIL import Image

from nanobot.messages.types import ChatMessage
from nanobot.providers import errors
from nanobot.providers.base import Finished, LLMResponse, TextDelta
from nanobot.providers.capabilities import CapabilityStore
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.limits import Timeouts
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
    Slow,
)
from tests.support.eventually import eventually
from tests.support.sample_requests import HELLO, LIST_DIR, TOOLS

KEY = "sk-secret-0123456789"


def provider(server: FakeModels, **settings: object) -> CustomProvider:
    return CustomProvider(KEY, server.v1, "m", **settings)  # type: ignore[arg-type]


async def ask(server: FakeModels, messages: list[ChatMessage] | None = None, **settings: object) -> LLMResponse:
    asked = provider(server, **settings)
    try:
        return await asked.chat(messages or HELLO, TOOLS)
    finally:
        await asked.close()


async def test_the_request_has_key_model_and_fields_and_ends_in_the_messages(server):
    await ask(server, extra_headers={"X-Team": "a"}, extra_body={"seed": 7})

    request = server.chats[0]
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-team"] == "a"
    assert request.json["model"] == "m"
    assert request.json["seed"] == 7
    assert list(request.json)[-1] == "messages"


async def test_each_request_is_byte_for_byte_the_head_of_the_next(server):
    asked = provider(server)
    rows = [*HELLO]
    for index in range(3):
        await asked.chat(rows, TOOLS)
        rows += [{"role": "assistant", "content": f"ü{index}"}, {"role": "user", "content": "more"}]
    await asked.close()

    bodies = [request.body for request in server.chats]
    assert all(later.startswith(earlier[:-2]) for earlier, later in pairwise(bodies))


async def test_our_own_fields_stay_home_and_the_runtime_context_goes_out(server):
    rows: list[ChatMessage] = [
        {"role": "system", "content": "s", "timestamp": "t", "provenance": "system"},
        {
            "role": "user",
            "content": "hi",
            "runtime_context": "[ctx]",
            "sender_id": "1",
            "origin": "user",
            "turn_id": "x",
        },
        {"role": "assistant", "content": "", "error": "boom", "thinking_blocks": [], "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
    ]

    await ask(server, rows)

    assert server.problems == []
    assert server.chats[0].json["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi\n\n[ctx]"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "and?"},
    ]


async def test_images_go_out_as_data_and_missing_or_damaged_ones_as_a_word(server, tmp_path):
    picture, damaged = tmp_path / "a.png", tmp_path / "b.png"
    Image.new("RGB", (2, 2)).save(picture)
    damaged.write_bytes(picture.read_bytes()[:30])
    media = [str(picture), str(tmp_path / "gone.png"), str(damaged)]
    rows: list[ChatMessage] = [{"role": "user", "content": "see", "media": media}]

    await ask(server, rows)

    text, image, gone, bad = server.chats[0].json["messages"][0]["content"]
    assert text["text"] == "see"
    encoded = base64.b64encode(picture.read_bytes()).decode("ascii")
    assert image["image_url"]["url"] == f"data:image/png;base64,{encoded}"
    assert "no longer there" in gone["text"]
    assert "not delivered" in bad["text"]


async def test_media_that_names_no_possible_file_does_not_fail_the_call(server):
    rows: list[ChatMessage] = [{"role": "user", "content": "see", "media": ["a\0b.png", "file://[x.png"]}]

    await ask(server, rows)

    _, *notes = server.chats[0].json["messages"][0]["content"]
    assert [note["text"] for note in notes] == [
        "[image: a\0b.png, no longer there]",
        "[image: file:/[x.png, no longer there]",
    ]


@pytest.mark.skipif(os.name == "nt", reason="pipes and links of POSIX")
async def test_what_came_in_the_place_of_a_picture_stops_nobody(server, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    media = [str(tmp_path / "pipe.png"), str(tmp_path / "endless.png")]

    async with asyncio.timeout(5):
        await ask(server, [{"role": "user", "content": "see", "media": media}])

    assert [block["text"] for block in server.chats[0].json["messages"][0]["content"][1:]] == [
        f"[image: {path}, no longer there]" for path in media
    ]


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

    await ask(server, [{"role": "user", "content": "see", "media": media}])

    assert "data:" not in str(server.chats[0].json["messages"])


async def test_half_a_surrogate_pair_does_not_stop_a_message(server):
    await ask(server, [{"role": "user", "content": "broken \ud83d emoji"}])

    assert server.chats[0].json["messages"][0]["content"] == "broken ? emoji"


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


FAILURES = {
    "401": (Fail(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"), errors.AuthenticationError),
    "404": (Fail(404, "The model `m` does not exist", "model_not_found"), errors.ModelNotFoundError),
    "429": (Fail(429, "slow down", retry_after=3), errors.RateLimitedError),
    "500": (Fail(500), errors.ModelOverloadedError),
    "529": (Fail(529), errors.ModelOverloadedError),
    "cut": (CutStream(), errors.StreamCutError),
    "cut json": (Garbage(b'{"choices": [{"mess', "application/json"), errors.StreamCutError),
    "ends early": (Raw.events({"choices": [{"delta": {"content": "hal"}}]}, done=False), errors.StreamCutError),
    "reset": (Reset(), errors.ConnectionFailedError),
    "html": (Garbage(), errors.MalformedResponseError),
    "empty": (Garbage(b""), errors.MalformedResponseError),
    "no choices": (Garbage(b'{"ok": true}', "application/json"), errors.MalformedResponseError),
    "error beside choices, first": (
        Raw.events(
            {
                "error": {"message": "gone", "code": "server_error"},
                "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
            }
        ),
        errors.ModelOverloadedError,
    ),
    "error beside choices, in the middle": (
        Raw.events(
            {"choices": [{"delta": {"content": "hal"}}]},
            {
                "error": {"message": "gone", "code": "server_error"},
                "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
            },
        ),
        errors.StreamCutError,
    ),
    "error in the middle": (
        Raw.events({"choices": [{"delta": {"content": "hal"}}]}, {"error": {"message": "busy", "code": 529}}),
        errors.StreamCutError,
    ),
    "filtered in the middle": (
        Raw.events(
            {"choices": [{"delta": {"content": "hal"}}]}, {"error": {"message": "flagged", "code": "content_filter"}}
        ),
        errors.ContentFilteredError,
    ),
    "no more than a finish_reason": (
        Raw.events(
            {"choices": [{"delta": {"content": "hal"}}]}, {"choices": [{"delta": {}, "finish_reason": "error"}]}
        ),
        errors.StreamCutError,
    ),
    "error inside": (Raw.events({"error": {"message": "busy", "code": 529}}), errors.ModelOverloadedError),
    "filtered": (
        Raw.events({"choices": [{"delta": {}, "finish_reason": "content_filter"}]}),
        errors.ContentFilteredError,
    ),
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


async def test_retry_after_travels_with_the_error(server):
    server.script(Fail(429, retry_after=3))

    with pytest.raises(errors.RateLimitedError) as caught:
        await ask(server)

    assert caught.value.retry_after_s == 3


@pytest.mark.parametrize(
    "base", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1", "ftp://x", "http://[bad", "x"]
)
async def test_a_server_that_is_not_there_is_a_failed_connection(base):
    with pytest.raises(errors.ConnectionFailedError):
        await CustomProvider(KEY, base, "m").chat(HELLO)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_a_refused_connection_in_plain_words(host):
    with pytest.raises(errors.ConnectionFailedError, match=r"/v1\]: nothing answers there\. Is the server running\?"):
        await CustomProvider(KEY, f"http://{host}:1/v1", "m").chat(HELLO)


async def test_a_key_with_a_line_break_is_refused_and_not_told():
    with pytest.raises(errors.ModelCallError) as caught:
        await CustomProvider(f"{KEY}\nü", "http://127.0.0.1:1/v1", "m").chat(HELLO)

    assert "secret" not in str(caught.value)


SILENCES = {
    "no answer": (Hang(), Timeouts(first_token_s=0.2), "first token"),
    "stops in the middle": (Hang(after="The"), Timeouts(idle_s=0.2), "next token"),
    "never ends": (Slow(Say("x" * 50, pieces=50), each_s=0.05), Timeouts(total_s=0.4), "end of the answer"),
}


@pytest.mark.parametrize(("step", "timeouts", "waited_for"), SILENCES.values(), ids=SILENCES.keys())
async def test_silence_ends_within_its_limit(server, step, timeouts, waited_for):
    server.script(step)
    began = time.monotonic()

    with pytest.raises(errors.ProviderTimeoutError, match=waited_for):
        await ask(server, timeouts=timeouts)

    assert time.monotonic() - began < 10  # the defaults are minutes


async def test_text_is_handed_out_while_the_answer_is_on_its_way(server):
    server.script(Slow(Say("one two three", pieces=3), each_s=0.1))
    asked = provider(server)

    stream = asked.chat_stream(HELLO, TOOLS)
    came = [time.monotonic() async for delta in stream if isinstance(delta, TextDelta)]
    await asked.close()

    assert came[-1] - came[0] > 0.1


async def test_a_cancelled_call_closes_its_connection_and_the_next_one_works(server):
    server.script(Hang(after="The"), Say("fine"))
    asked = provider(server)

    async with asyncio.timeout(5):
        async for _delta in asked.chat_stream(HELLO):
            break
        await eventually(lambda: not server.open_connections)

    assert (await asked.chat(HELLO)).content == "fine"
    await asked.close()


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


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "gopher://127.0.0.1:1"])
async def test_a_proxy_that_cannot_be_used_is_a_failed_connection(proxy):
    proxied = CustomProvider(KEY, "http://models.test/v1", "m", proxy=proxy)

    with pytest.raises(errors.ConnectionFailedError):
        await proxied.chat(HELLO)
    await proxied.close()


async def test_a_cancelled_call_closes_its_connection_to_a_proxy_too(server):
    server.script(Hang(after="The"))
    proxied = CustomProvider(KEY, "http://models.test/v1", "m", proxy=server.url)

    async with asyncio.timeout(5):
        async for _delta in proxied.chat_stream(HELLO):
            break
        await eventually(lambda: not server.open_connections)
    await proxied.close()


async def test_connections_are_used_again(server):
    asked = provider(server)

    for _ in range(3):
        await asked.chat(HELLO)
    await asked.close()

    assert server.connections == 1


async def test_a_server_that_keeps_the_body_open_delays_no_answer_and_keeps_its_connection(server):
    asked = provider(server)
    await asked.chat(HELLO)
    server.script(Lingering(Say("done"), 1.5))
    started = time.monotonic()

    answer = await asked.chat(HELLO)
    seconds = time.monotonic() - started
    await asyncio.sleep(1.6)
    await asked.chat(HELLO)
    await asked.close()

    assert answer.content == "done"
    assert seconds < 1.2
    assert server.connections == 1


async def test_closing_does_not_wait_for_a_body_that_stays_open(server):
    server.script(Lingering(Say("done"), 5))
    asked = provider(server)
    started = time.monotonic()

    await asked.chat(HELLO)
    await asked.close()

    assert time.monotonic() - started < 4


async def test_a_hundred_chats_at_once_all_get_their_answers(server):
    server.default = Slow(Say("hi"), first_s=0.1)
    asked = provider(server)

    answers = await asyncio.gather(*(asked.chat(HELLO) for _ in range(100)))
    await asked.close()

    assert [answer.content for answer in answers] == ["hi"] * 100


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


async def test_a_server_that_finds_fault_for_ever_is_not_asked_for_ever(server):
    server.default = Fail(400, "Unrecognized request argument supplied: temperature")

    with pytest.raises(errors.InvalidRequestError):
        await ask(server)

    assert len(server.chats) == 2


async def test_a_server_that_always_finds_another_fault_is_asked_seven_times(server):
    fields = {f"field_{number}": 1 for number in range(9)}
    server.script(*[Fail(400, f"Unrecognized request argument supplied: {name}") for name in fields])

    with pytest.raises(errors.InvalidRequestError, match="field_6"):
        await ask(server, extra_body=fields)

    assert len(server.chats) == 7


async def test_an_answer_that_is_complete_loses_nothing_with_its_connection():
    event = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
        writer.write(head + b"data: " + json.dumps(event).encode() + b"\n\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as running:
        provider = CustomProvider("k", f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/v1", "m")
        response = await provider.chat(HELLO)
        await provider.close()

    assert response.content == "hi"


async def test_a_call_written_as_text_is_a_call_and_not_text(server):
    server.script(Say('```json\n{"name": "list_dir", "arguments": {"path": "."}}\n```', pieces=9))
    asked = provider(server)

    deltas = [delta async for delta in asked.chat_stream(HELLO, [LIST_DIR])]
    await asked.close()

    assert not any(isinstance(delta, TextDelta) for delta in deltas)
    assert isinstance(deltas[-1], Finished)
    assert [(call.name, call.arguments) for call in deltas[-1].response.tool_calls] == [("list_dir", {"path": "."})]


@pytest.mark.parametrize("model", ["deepseek-reasoner", "kimi-k2-thinking", "quite-another"])
async def test_fifty_turns_of_thinking_with_tools_are_replayed_to_a_server_that_wants_its_thoughts_back(server, model):
    server.reasoning = "required"
    asked = CustomProvider(KEY, server.v1, model)
    rows: list[ChatMessage] = []
    for turn in range(50):
        server.script(
            Calls(("list_dir", {"path": "."}), ("list_dir", {"path": "b"}), reasoning=f"hm {turn}"), Say("done")
        )
        rows.append({"role": "user", "content": f"turn {turn}"})
        response = await asked.chat(rows, TOOLS)
        calls = [call.to_message() for call in response.tool_calls]
        rows.append(
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": response.reasoning_content}
        )
        rows += [{"role": "tool", "tool_call_id": call["id"], "name": "list_dir", "content": "a"} for call in calls]
        rows.append({"role": "assistant", "content": (await asked.chat(rows, TOOLS)).content})
    await asked.close()

    sent = json.loads(server.chats[-1].body)["messages"]
    assert [row["reasoning_content"] for row in sent if row.get("tool_calls")] == [f"hm {turn}" for turn in range(50)]
    assert len(server.problems) <= 1


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
    assert (await ask(server, rows, returns_reasoning=True)).content == "ok"


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


def test_a_process_that_only_talks_to_its_models_never_loads_httpx(server: FakeModels):
    server.script(Say("hello"))
    script = (
        "import asyncio, sys\n"
        "from nanobot.providers.custom_provider import CustomProvider\n"
        "async def main():\n"
        f"    provider = CustomProvider(api_base={server.v1!r})\n"
        "    answer = await provider.chat([{'role': 'user', 'content': 'hi', 'origin': 'user'}])\n"
        "    print(answer.content, await provider.list_models(), 'httpx' in sys.modules)\n"
        "    await provider.close()\n"
        "asyncio.run(main())"
    )

    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert told.split() == ["hello", "('stand-in',)", "False"]
