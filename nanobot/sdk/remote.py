"""The bot of a running gateway: through its local socket, or over HTTP."""

import asyncio
import base64
import json
import mimetypes
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.events import Answer, ApprovalAsked, EventSink, TurnEvent
from nanobot.agent.remote_turn import RemoteTurn, follow_turn, socket_frames, stop_turn
from nanobot.errors import NanobotError
from nanobot.net.gateway_socket import Frame, GatewayError, GatewayGoneError, ask, connect
from nanobot.sdk.run import RunRequest

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 60.0
"""Of a request, and of the silence in a stream: the server pings every 15 s."""
_FUNCTIONS = (
    "The gateway cannot call functions of this program: use tools= and Hook objects with from_config or local. "
    "Functions that watch events work."
)


class _RemoteBot(ABC):
    """Runs turns in a gateway."""

    workspace = Path()

    def __init__(self) -> None:
        self._questions: set[str] = set()
        """Approval questions that are open."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_turn(self, request: RunRequest, sink: EventSink) -> None:
        """Run the turn. Raises GatewayError if the gateway is gone or refuses, and ValueError for what it cannot do."""
        if request.tools or request.hooks:
            raise ValueError(_FUNCTIONS)

        def watch(event: TurnEvent) -> None:
            if isinstance(event, ApprovalAsked):
                self._questions.add(event.question)
            sink(event)
            if isinstance(event, ApprovalAsked) and not request.is_attended:
                self.answer(event.question, Answer.NO)

        await self._follow(request, RemoteTurn(watch, secrets.token_hex(8)))

    @abstractmethod
    async def _follow(self, request: RunRequest, turn: RemoteTurn) -> None:
        """Send the request and pass on its events. `turn` has a new id."""

    @abstractmethod
    def _send_answer(self, question: str, answer: Answer) -> Coroutine[Any, Any, object]:
        """Send the answer to the gateway. Raises NanobotError."""

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer a question of a run of this bot. Return False if it is not open."""
        if question not in self._questions:
            return False
        self._questions.remove(question)

        async def send() -> None:
            with suppress(NanobotError):
                await self._send_answer(question, answer)

        self._tasks.add(task := asyncio.create_task(send()))
        task.add_done_callback(self._tasks.discard)
        return True


class SocketBot(_RemoteBot):
    """A gateway of this machine."""

    def __init__(self, state: Path, workspace: Path) -> None:
        super().__init__()
        self.workspace = workspace
        self._state = state

    async def _follow(self, request: RunRequest, turn: RemoteTurn) -> None:
        options = {name: getattr(request, name) for name in ("instructions", "model", "budget_usd", "ephemeral")}
        frame = {
            "do": "turn",
            "turn": turn.turn_id,
            "text": request.message,
            "session": request.session,
            "media": request.paths,
            "attended": request.is_attended,
            "options": {**options, "schema": request.schema},
        }
        stop = partial(self.stop, request.session, turn.turn_id)
        await follow_turn(turn, lambda: socket_frames(self._state, frame, turn), stop)

    async def stop(self, session: str, turn_id: str | None = None) -> bool:
        """Stop the session's running turn. Return False if none runs."""
        return await stop_turn(self._state, session, turn_id)

    def _send_answer(self, question: str, answer: Answer) -> Coroutine[Any, Any, object]:
        return ask(self._state, {"do": "answer", "question": question, "answer": answer})


class HttpBot(_RemoteBot):
    """A gateway anywhere, through its API. A session is there a name of the key's own, without `sdk:`."""

    def __init__(self, client: "httpx.AsyncClient") -> None:
        super().__init__()
        self._client = client
        self._running: dict[str, str] = {}
        """The turns of this bot, by their sessions."""

    async def _follow(self, request: RunRequest, turn: RemoteTurn) -> None:
        name = request.session.removeprefix("sdk:")
        if request.budget_usd is not None or ":" in name:
            raise ValueError(
                f"Over HTTP there is no budget_usd=, and a session is a name without colons, not {request.session}: "
                "sessions of chats are reached on the machine of the gateway."
            )
        body = await asyncio.to_thread(_body, request)
        headers = {"Idempotency-Key": turn.turn_id, "X-Nanobot-Session": name}

        async def send() -> str:
            """Send the request, or send it again: that gets the same turn. Return its id."""
            answer = await self._send("/responses", body, headers)
            return str(answer["nanobot"]["turn_id"])

        async def frames() -> AsyncGenerator[Frame, None]:
            self._running[request.session] = turn_id = await send()
            yield {"type": "sent"}
            with _connecting():
                async with self._client.stream("GET", f"/turns/{turn_id}/events?seen={turn.seen}") as stream:
                    await _check(stream)
                    async for line in stream.aiter_lines():
                        if line.startswith("data: "):
                            yield json.loads(line.removeprefix("data: "))

        async def stop() -> bool:
            return bool((await self._send(f"/turns/{await send()}/stop"))["stopped"])

        try:
            await follow_turn(turn, frames, stop)
        finally:
            self._running.pop(request.session, None)
            if request.ephemeral:
                with suppress(NanobotError), _connecting():
                    await self._client.delete(f"/sessions/{name}")

    async def stop(self, session: str) -> bool:
        """Stop this bot's running turn of a session. Return False if none runs."""
        turn_id = self._running.get(session)
        return turn_id is not None and bool((await self._send(f"/turns/{turn_id}/stop"))["stopped"])

    def _send_answer(self, question: str, answer: Answer) -> Coroutine[Any, Any, object]:
        return self._send(f"/approvals/{question}", {"answer": answer})

    async def _send(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        with _connecting():
            answer = await self._client.post(path, json=body, headers=headers)
            await _check(answer)
            return answer.json()


def _body(request: RunRequest) -> dict[str, Any]:
    """The body of `POST /v1/responses`."""
    content: list[dict[str, Any]] = [{"type": "input_text", "text": request.message}]
    for path in map(Path, request.paths):
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        data = base64.b64encode(path.read_bytes()).decode()
        url = f"data:{kind};base64,{data}"
        match kind.partition("/"):
            case ("image", _, _):
                content.append({"type": "input_image", "image_url": url})
            case ("audio", _, form):
                content.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
            case _:
                content.append({"type": "input_file", "filename": path.name, "file_data": url})
    body: dict[str, Any] = {"input": [{"role": "user", "content": content}], "background": True}
    if request.schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "output", "schema": request.schema}}
    return body | {name: value for name in ("instructions", "model") if (value := getattr(request, name))}


async def _check(answer: "httpx.Response") -> None:
    """Raises GatewayGoneError for a server that starts or stops, GatewayError for any other refusal."""
    if answer.is_success:
        return
    if answer.status_code == 503:
        raise GatewayGoneError
    try:
        text = str(json.loads(await answer.aread())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = f"The server answered with status {answer.status_code}: is this the address of a gateway's API?"
    if answer.status_code == 401:
        text += " A key is made with `nanobot api key add NAME`; pass it as token=."
    raise GatewayError(text)


@contextmanager
def _connecting() -> Iterator[None]:
    """Raises GatewayGoneError for a lost connection."""
    import httpx  # loaded by `open_http_bot`

    try:
        yield
    except httpx.TransportError as error:
        raise GatewayGoneError from error


@asynccontextmanager
async def open_socket_bot(state: Path) -> AsyncIterator[SocketBot]:
    """Find the gateway of this state folder. Raises GatewayError if none is running."""
    async with connect(state) as connection:
        if connection is None:
            raise GatewayError(
                f"No gateway is running: nothing answers in {state}. Start one with `nanobot gateway`, or name the "
                "address of one: connect(url, token=...)."
            )
        workspace = Path(str(connection.hello["workspace"]))
    yield SocketBot(state, workspace)


@asynccontextmanager
async def open_http_bot(url: str, token: str | None) -> AsyncIterator[HttpBot]:
    """Find the gateway at this address. Raises GatewayError if none answers, or if it refuses the token."""
    from nanobot.net.http import load_httpx, proxy_for, ssl_context

    load_httpx()
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(
        base_url=f"{base}/v1",
        headers=headers,
        timeout=_TIMEOUT_S,
        verify=await ssl_context(url),
        proxy=proxy_for(url),
        trust_env=False,
        limits=httpx.Limits(max_connections=None),
    ) as client:
        try:
            with _connecting():
                await _check(await client.get("/capabilities"))
        except GatewayGoneError as error:
            raise GatewayError(f"No gateway answers at {base}. Is it running, and is this its address?") from error
        yield HttpBot(client)
