"""A fake model server on loopback that plays a script, and refuses invalid requests as the real servers do.

    with FakeModels() as server:
        server.script(Calls(("list_dir", {"path": "."})), Say("Two files."))
        ...  # point a provider, or a child process, at server.v1
        assert server.chats[0].json["model"] == "m"

It implements these APIs, and validates the structure of a conversation as strictly as they do:

- OpenAI chat completions, plain and streamed: platform.openai.com/docs/api-reference/chat
- OpenAI Responses, plain and streamed: platform.openai.com/docs/api-reference/responses and .../responses-streaming
- Anthropic Messages, plain and streamed: docs.anthropic.com/en/api/messages and .../messages-streaming
- OpenAI `GET /v1/models`; Ollama `GET /api/tags` and `/api/version`: github.com/ollama/ollama/blob/main/docs/api.md

It runs in a thread with its own event loop, so tests may be sync or async, and may block their loop.
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from nanobot.testing.protocol_rules import (
    anthropic_problem,
    encrypted,
    openai_problem,
    responses_problems,
    signature_of,
)

Usage = dict[str, Any]
USAGE: Usage = {
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
}


class Step:
    """What the server does with one chat request."""


@dataclass
class Say(Step):
    """Answer with text."""

    text: str
    reasoning: str = ""
    finish: str = "stop"
    usage: Usage | None = field(default_factory=lambda: dict(USAGE))
    pieces: int = 3
    """Number of deltas in which the text is streamed."""


class Calls(Step):
    """Call tools, all in one step. Arguments that are a text are sent unchanged, so they may be broken JSON."""

    def __init__(
        self,
        *calls: tuple[str, Any],
        text: str = "",
        reasoning: str = "",
        finish: str = "tool_calls",
        ids: Sequence[str] | None = None,
        usage: Usage | None = None,
        pieces: int = 3,
    ) -> None:
        self.calls = list(calls)
        self.usage = dict(usage or USAGE)
        self.text, self.reasoning, self.finish, self.pieces = text, reasoning, finish, pieces
        self.ids = list(ids) if ids is not None else None


@dataclass
class Fail(Step):
    """Answer with an error, in the format of the API that was called."""

    status: int
    message: str = "scripted failure"
    code: str | None = None
    kind: str = "error"
    param: str | None = None
    retry_after: str | float | None = None


@dataclass
class Hang(Step):
    """Accept the request and never answer; with `after`, stream that text first."""

    after: str = ""


@dataclass
class CutStream(Step):
    """Stream part of an answer, then drop the connection."""

    after: str = "The answer is"


@dataclass
class Lingering(Step):
    """Answer, then keep the response open for `seconds`, as some proxies do."""

    step: Say
    seconds: float


@dataclass
class Reset(Step):
    """Drop the connection without a response."""


@dataclass
class Garbage(Step):
    """Answer with something that is no model response."""

    body: bytes = b"<html><head><title>Welcome to nginx!</title></head><body>hello</body></html>"
    content_type: str = "text/html"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Raw(Step):
    """Stream exactly these chunks, for unspecified dialects of servers."""

    chunks: list[bytes]
    content_type: str = "text/event-stream"

    @classmethod
    def events(cls, *events: object, done: bool = True) -> "Raw":
        """Stream these objects as events; a text is sent unchanged."""
        lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
        return cls([f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])]])


@dataclass
class Plain(Step):
    """Answer without streaming although it was requested, as some servers do."""

    step: Step


@dataclass
class Slow(Step):
    """Wait before the answer, and between its pieces."""

    step: Step
    first_s: float = 0.0
    each_s: float = 0.0


@dataclass
class Fitting(Step):
    """Choose the step by the body of the request."""

    choose: Callable[[dict[str, Any]], Step]


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    arrived: float = field(default_factory=time.time)
    """When it was read, by `time.time`."""
    times: list[float] = field(default_factory=list, compare=False, repr=False)

    @property
    def answered(self) -> float:
        """When its response was sent completely."""
        return self.times[-1]

    @property
    def json(self) -> dict[str, Any]:
        """The body, parsed."""
        return cast("dict[str, Any]", json.loads(self.body))


class FakeModels:
    """The server. Use it as a context manager; `script` may be called at any time."""

    def __init__(
        self,
        *,
        default: Step | None = None,
        models: Sequence[str] = ("stand-in",),
        kind: Literal["openai", "ollama", "web"] = "openai",
        api_key: str | None = None,
        unknown: Sequence[str] = (),
        reasoning: Literal["optional", "required", "forbidden"] = "optional",
        strict: bool = True,
        port: int = 0,
        context_length: int | None = None,
    ) -> None:
        """`unknown`: request fields that are refused by name. `reasoning`: whether a message with tool calls has
        `reasoning_content`.

        `kind`: "ollama" also has Ollama's own list of models; "web" is a web server without models.
        """
        self.default = default or Say("ok")
        self.models = list(models)
        self.kind = kind
        self.api_key = api_key
        self.unknown = list(unknown)
        self.reasoning = reasoning
        self.strict = strict
        self.context_length = context_length
        """Listed for each model."""
        self.requests: list[Request] = []
        self.problems: list[str] = []
        self.bill: list[Usage] = []
        """The usage of each response that was sent completely."""
        self.open_connections = 0
        self.connections = 0
        self._steps: deque[Step] = deque()
        self._writers: set[asyncio.StreamWriter] = set()
        self._wanted_port = port
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="fake-models", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *args: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Its URL, which is the base URL for the Anthropic format."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        """The base URL for the OpenAI format."""
        return f"{self.url}/v1"

    @property
    def chats(self) -> list[Request]:
        """The requests to a model."""
        return [request for request in self.requests if request.method == "POST"]

    def script(self, *steps: Step) -> None:
        """Add steps, one for each request. After the last one, the default is used."""
        self._steps.extend(steps)

    def forget(self) -> None:
        """Remove the remaining steps."""
        self._steps.clear()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", self._wanted_port))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.001))  # transports close at the next turn of the loop
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self.connections += 1
        self._writers.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                keep_alive = await self._answer(request, writer, reader)
                request.times.append(time.time())
                if not keep_alive:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> bool:
        """Answer one request. Return False if the connection must be closed."""
        path = request.path.partition("?")[0].rstrip("/")
        if self.kind == "web":
            await _send(writer, 404 if path else 200, b"<html><title>A web page</title></html>", "text/html")
            return True
        if request.method == "GET":
            if self.api_key and path in ("/v1/models", "/v1/key") and _OpenAI(self).key(request) != self.api_key:
                await self._reject_key(_OpenAI(self), request, writer)
            else:
                await self._answer_get(path, writer)
            return True
        formats: dict[str, type[_OpenAI]] = {
            "/chat/completions": _OpenAI,
            "/responses": Responses,
            "/messages": _Anthropic,
        }
        chosen = next((wire for end, wire in formats.items() if path.endswith(end)), None)
        if chosen is None:
            await _send_json(writer, 404, {"error": {"message": f"Invalid URL (POST {path})"}})
            return True
        return await self._chat(request, chosen(self), writer, reader)

    async def _answer_get(self, path: str, writer: asyncio.StreamWriter) -> None:
        length = {"context_length": self.context_length} if self.context_length else {}
        answers: dict[str, Any] = {
            "/v1/models": {
                "object": "list",
                "data": [{"id": name, "object": "model", **length} for name in self.models],
            }
        }
        if self.kind == "ollama":
            answers["/api/tags"] = {"models": [{"name": name, "model": name} for name in self.models]}
            answers["/api/version"] = {"version": "0.12.0"}
        answer = answers.get(path)
        await _send_json(writer, 200 if answer else 404, answer or {"error": "not found"})

    async def _chat(
        self, request: Request, wire: "_OpenAI", writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> bool:
        try:
            body = request.json
        except ValueError:
            await _send_json(writer, 400, wire.error(Fail(400, "We could not parse the JSON body of your request.")))
            return True
        if self.api_key and wire.key(request) != self.api_key:
            await self._reject_key(wire, request, writer)
            return True
        refused = wire.check(body) if self.strict else None
        if refused is not None:
            self.problems.append(refused.message)
            await _send_json(writer, refused.status, wire.error(refused))
            return True
        step = self._steps.popleft() if self._steps else self.default
        return await self._play(step, body, wire, writer, reader)

    async def _reject_key(self, wire: "_OpenAI", request: Request, writer: asyncio.StreamWriter) -> None:
        message = f"Incorrect API key provided: {wire.key(request)}."
        await _send_json(writer, 401, wire.error(Fail(401, message, "invalid_api_key", "authentication_error")))

    async def _play(
        self,
        step: Step,
        body: dict[str, Any],
        wire: "_OpenAI",
        writer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
    ) -> bool:
        each_s = 0.0
        streamed = bool(body.get("stream"))
        while isinstance(step, Slow | Plain | Fitting):
            if isinstance(step, Fitting):
                step = step.choose(body)
                continue
            if isinstance(step, Slow):
                await asyncio.sleep(step.first_s)
                each_s = step.each_s
            else:
                streamed = False
            step = step.step
        if isinstance(step, Reset):
            writer.transport.abort()
            return False
        if isinstance(step, Fail):
            headers = {} if step.retry_after is None else {"Retry-After": str(step.retry_after)}
            await _send_json(writer, step.status, wire.error(step), headers)
            return True
        if isinstance(step, Garbage):
            await _send(writer, step.status, step.body, step.content_type, step.headers)
            return True
        if isinstance(step, Hang) and not step.after:
            await reader.read()  # until the client closes the connection
            return False
        if isinstance(step, Raw):
            return await _stream(writer, step.chunks, each_s, step.content_type)
        if isinstance(step, Lingering):
            await _stream(writer, wire.stream(step.step, body), each_s, end=False)
            await asyncio.sleep(step.seconds)
            writer.write(b"0\r\n\r\n")
            return True
        if isinstance(step, Say | Calls):
            counted = step.usage or {}
            self.bill.append(counted)  # before the response, so that a client that has it finds it
            try:
                if streamed:
                    return await _stream(writer, wire.stream(step, body), each_s)
                await _send_json(writer, 200, wire.plain(step, body))
                return True
            except (ConnectionError, asyncio.CancelledError):
                self.bill.remove(counted)
                raise
        assert isinstance(step, CutStream | Hang)
        chunks = list(wire.stream(Say(step.after), body))
        await _stream(writer, wire.cut(chunks), each_s, end=False)
        if isinstance(step, CutStream):
            writer.transport.abort()
        else:
            await reader.read()
        return False


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    elif length := int(headers.get("content-length", 0)):
        body = await reader.readexactly(length)
    return Request(method, path, headers, body)


async def _send_json(
    writer: asyncio.StreamWriter, status: int, value: object, headers: dict[str, str] | None = None
) -> None:
    await _send(writer, status, json.dumps(value).encode(), "application/json", headers)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
) -> None:
    lines = [f"HTTP/1.1 {status} -", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter,
    chunks: "Iterator[bytes] | list[bytes]",
    each_s: float,
    kind: str = "text/event-stream",
    *,
    end: bool = True,
) -> bool:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for chunk in chunks:
        writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if each_s:
            await writer.drain()
            await asyncio.sleep(each_s)
    if end:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _pieces(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _argument_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


class _OpenAI:
    """Chat completions, and what the other formats have of them."""

    def __init__(self, server: FakeModels) -> None:
        self.server = server

    def key(self, request: Request) -> str:
        return request.headers.get("authorization", "").removeprefix("Bearer ")

    def check(self, body: dict[str, Any]) -> Fail | None:
        for name in self.server.unknown:
            if name in body or any(name in row for row in body.get("messages", [])):
                return Fail(400, f"Unrecognized request argument supplied: {name}", "unknown_parameter", param=name)
        problem = openai_problem(body, self.server.reasoning)
        return None if problem is None else Fail(400, problem, "invalid_request_error")

    def error(self, fail: Fail) -> dict[str, Any]:
        return {"error": {"message": fail.message, "type": fail.kind, "param": fail.param, "code": fail.code}}

    def plain(self, step: Say | Calls, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        if isinstance(step, Calls):
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": _argument_text(arguments)}}
                for call_id, (name, arguments) in zip(_ids(step), step.calls, strict=True)
            ]
        choice = {"index": 0, "message": message, "finish_reason": step.finish}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
        }
        return answer | ({"usage": step.usage} if step.usage else {})

    def stream(self, step: Say | Calls, body: dict[str, Any]) -> Iterator[bytes]:
        yield self._chunk(body, {"role": "assistant", "content": ""})
        for piece in _pieces(step.reasoning, step.pieces):
            yield self._chunk(body, {"reasoning_content": piece})
        for piece in _pieces(step.text, step.pieces):
            yield self._chunk(body, {"content": piece})
        if isinstance(step, Calls):
            ids = _ids(step)
            for index, (name, _) in enumerate(step.calls):
                function = {"name": name, "arguments": ""}
                yield self._chunk(
                    body, {"tool_calls": [{"index": index, "id": ids[index], "type": "function", "function": function}]}
                )
            # Fragments of parallel calls arrive interleaved.
            fragments = [_pieces(_argument_text(arguments), step.pieces) for _, arguments in step.calls]
            for turn in range(max(map(len, fragments), default=0)):
                for index, parts in enumerate(fragments):
                    if turn < len(parts):
                        yield self._chunk(
                            body, {"tool_calls": [{"index": index, "function": {"arguments": parts[turn]}}]}
                        )
        yield self._chunk(body, {}, step.finish)
        if step.usage and (body.get("stream_options") or {}).get("include_usage"):
            yield self._event({**self._head(body), "choices": [], "usage": step.usage})
        yield b"data: [DONE]\n\n"

    def cut(self, chunks: list[bytes]) -> list[bytes]:
        """The chunks of a streamed response before its end."""
        return [chunk for chunk in chunks if b'"finish_reason": null' in chunk]

    def _head(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def _chunk(self, body: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._event({**self._head(body), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, value: object) -> bytes:
        return f"data: {json.dumps(value)}\n\n".encode()


def _ids(step: Calls) -> list[str]:
    return step.ids or [f"call_{index}" for index in range(len(step.calls))]


_ANTHROPIC_USAGE = {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
_EMPTY: dict[str, dict[str, Any]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}


class _Anthropic(_OpenAI):
    def key(self, request: Request) -> str:
        return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")

    def check(self, body: dict[str, Any]) -> Fail | None:
        for name in self.server.unknown:
            if name in body:
                return Fail(400, f"{name}: Extra inputs are not permitted", kind="invalid_request_error")
        problem = anthropic_problem(body)
        return None if problem is None else Fail(400, problem, kind="invalid_request_error")

    def error(self, fail: Fail) -> dict[str, Any]:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {403: "permission_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
        kind = kinds.get(fail.status, "api_error") if fail.kind == "error" else fail.kind
        return {"type": "error", "error": {"type": kind, "message": fail.message}}

    def _blocks(self, step: Say | Calls) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if step.reasoning:
            blocks.append({"type": "thinking", "thinking": step.reasoning, "signature": signature_of(step.reasoning)})
        if step.text:
            blocks.append({"type": "text", "text": step.text})
        if isinstance(step, Calls):
            for call_id, (name, arguments) in zip(_ids(step), step.calls, strict=True):
                blocks.append({"type": "tool_use", "id": f"toolu_{call_id}", "name": name, "input": arguments})
        return blocks

    def _stop_reason(self, step: Say | Calls) -> str:
        return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(step.finish, step.finish)

    def plain(self, step: Say | Calls, body: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._message(body),
            "content": self._blocks(step),
            "stop_reason": self._stop_reason(step),
            "usage": {**_ANTHROPIC_USAGE, "output_tokens": 5},
        }

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        return {**head, "stop_reason": None, "stop_sequence": None, "usage": {**_ANTHROPIC_USAGE, "output_tokens": 1}}

    def stream(self, step: Say | Calls, body: dict[str, Any]) -> Iterator[bytes]:
        yield responses_event("message_start", message=self._message(body))
        yield responses_event("ping")
        for index, block in enumerate(self._blocks(step)):
            kind = block["type"]
            yield responses_event("content_block_start", index=index, content_block={**block, **_EMPTY[kind]})
            if kind == "tool_use":
                deltas: list[dict[str, Any]] = [
                    {"type": "input_json_delta", "partial_json": piece}
                    for piece in _pieces(_argument_text(block["input"]), step.pieces)
                ]
            else:
                deltas = [{"type": f"{kind}_delta", kind: piece} for piece in _pieces(block[kind], step.pieces)]
            if kind == "thinking":
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            for delta in deltas:
                yield responses_event("content_block_delta", index=index, delta=delta)
            yield responses_event("content_block_stop", index=index)
        end = {"stop_reason": self._stop_reason(step), "stop_sequence": None}
        yield responses_event("message_delta", delta=end, usage={"output_tokens": 5})
        yield responses_event("message_stop")

    def cut(self, chunks: list[bytes]) -> list[bytes]:
        return [chunk for chunk in chunks if b"message_delta" not in chunk and b"_stop" not in chunk]


class Responses(_OpenAI):
    """OpenAI Responses. Keys and errors are those of chat completions."""

    def check(self, body: dict[str, Any]) -> Fail | None:
        for name in self.server.unknown:
            if name in body:
                return Fail(400, f"Unsupported parameter: {name}", "unsupported_parameter", param=name)
        problem = next(iter(responses_problems(body)), None)
        if problem is None:
            return None
        code = "invalid_encrypted_content" if "encrypted content" in problem else None
        return Fail(400, problem, code, "invalid_request_error")

    def _items(self, step: Say | Calls) -> list[dict[str, Any]]:
        """The output items of an answer."""
        items: list[dict[str, Any]] = []
        if step.reasoning:
            summary = [{"type": "summary_text", "text": step.reasoning}]
            thought = {"id": "rs_1", "type": "reasoning", "summary": summary}
            items.append({**thought, "encrypted_content": encrypted(step.reasoning)})
        if step.text:
            content = [{"type": "output_text", "text": step.text, "annotations": []}]
            items.append(
                {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
            )
        if isinstance(step, Calls):
            for call_id, (name, arguments) in zip(_ids(step), step.calls, strict=True):
                call = {"type": "function_call", "call_id": call_id, "name": name, "status": "completed"}
                items.append({"id": f"fc_{call_id}", **call, "arguments": _argument_text(arguments)})
        return items

    def plain(self, step: Say | Calls, body: dict[str, Any]) -> dict[str, Any]:
        usage = step.usage
        counts = {}
        if usage:
            details = {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}
            counts = {"input_tokens": usage["prompt_tokens"], "input_tokens_details": details}
            counts |= {"output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0}}
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        reason = reasons.get(step.finish)
        return {
            "id": "resp_1",
            "object": "response",
            "model": body["model"],
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._items(step),
            "usage": counts or None,
        }

    def stream(self, step: Say | Calls, body: dict[str, Any]) -> Iterator[bytes]:
        whole = self.plain(step, body)
        yield responses_event(
            "response.created", response={**whole, "status": "in_progress", "output": [], "usage": None}
        )
        yield responses_event("response.in_progress", response={"id": "resp_1", "status": "in_progress"})
        for place, item in enumerate(whole["output"]):
            yield from self._item(step, place, item)
        yield responses_event(f"response.{whole['status']}", response=whole)

    def _item(self, step: Say | Calls, place: int, item: dict[str, Any]) -> Iterator[bytes]:
        about = {"output_index": place, "item_id": item["id"]}
        empty: dict[str, dict[str, Any]] = {
            "function_call": {"arguments": ""},
            "message": {"content": []},
            "reasoning": {"summary": []},
        }
        begun = {**{name: value for name, value in item.items() if name != "encrypted_content"}, **empty[item["type"]]}
        yield responses_event("response.output_item.added", output_index=place, item=begun)
        if item["type"] == "reasoning":
            yield responses_event("response.reasoning_summary_part.added", **about, summary_index=0)
            for piece in _pieces(step.reasoning, step.pieces):
                yield responses_event("response.reasoning_summary_text.delta", **about, summary_index=0, delta=piece)
        elif item["type"] == "message":
            yield responses_event("response.content_part.added", **about, content_index=0)
            for piece in _pieces(step.text, step.pieces):
                yield responses_event("response.output_text.delta", **about, content_index=0, delta=piece)
            yield responses_event("response.output_text.done", **about, content_index=0, text=step.text)
        else:
            for piece in _pieces(item["arguments"], step.pieces):
                yield responses_event("response.function_call_arguments.delta", **about, delta=piece)
            yield responses_event("response.function_call_arguments.done", **about, arguments=item["arguments"])
        yield responses_event("response.output_item.done", output_index=place, item=item)

    def cut(self, chunks: list[bytes]) -> list[bytes]:
        return [chunk for chunk in chunks if b".done" not in chunk and b"event: response.completed" not in chunk]


def responses_event(kind: str, **fields: Any) -> bytes:
    """One event of a stream of Responses, or of messages."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
