"""Open WebUI as it is set up in the guide: a chat is one session, hidden tasks are no turns, edits branch.

Not a recording: the bodies and headers are written after the ones that version 0.12 documents.
"""

import base64
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import httpx
import pytest

from tests.support.api_client import PIXEL, program, read_events
from tests.support.running_gateway import OpenGateway

PERSON = {
    "User-Agent": "Python/3.11 aiohttp/3.12",
    "X-OpenWebUI-User-Name": "Ann",
    "X-OpenWebUI-User-Id": "3c5ad9a0-4d6e-4ab6-9a38-0d5e66a0a7c4",
    "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-User-Role": "admin",
}
SPACE = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
CHAT = str(uuid5(SPACE, "chat"))
TASKS = {
    "title_generation": "Generate a concise, 3-5 word title with an emoji summarizing the chat history.",
    "tags_generation": "Generate 1-3 broad tags categorizing the main themes of the chat history.",
    "follow_up_generation": "Suggest 3-5 relevant follow-up questions that the user might naturally ask next.",
}


class Chat:
    """A chat in Open WebUI. It sends the whole path of messages, and an id for each answer it wants."""

    def __init__(self, client: httpx.AsyncClient, chat_id: str = CHAT) -> None:
        self.client = client
        self.chat_id = chat_id
        self.answers = 0

    async def send(self, *path: Any) -> str:
        """Send the path (user, assistant, user, ...) and return the answer."""
        self.answers += 1
        headers = {
            **PERSON,
            "X-OpenWebUI-Chat-Id": self.chat_id,
            "X-OpenWebUI-Task": "",
            "Idempotency-Key": str(uuid5(SPACE, f"{self.chat_id} {self.answers}")),
        }
        messages = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(path)]
        body = {
            "stream": True,
            "model": "nanobot",
            "messages": messages,
            "stream_options": {"include_usage": True},
        }
        answer = await self.client.post("/chat/completions", json=body, headers=headers)
        events = [event["data"] for event in read_events(answer.text)]
        assert events[-1] == "[DONE]", answer.text
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in events[:-1] if chunk["choices"]]
        return "".join(deltas)

    async def task(self, name: str, *, has_headers: bool = True) -> httpx.Response:
        """Ask for a title or the like, as Open WebUI does by itself after an answer."""
        history = "<chat_history>\nUSER: one\nASSISTANT: A1\n</chat_history>"
        prompt = f"### Task:\n{TASKS[name]}\n### Output:\nJSON format\n### Chat History:\n{history}"
        body = {"model": "nanobot", "stream": False, "messages": [{"role": "user", "content": prompt}]}
        body["max_completion_tokens"] = 1000
        headers = {**PERSON, "X-OpenWebUI-Chat-Id": self.chat_id, "X-OpenWebUI-Task": name} if has_headers else PERSON
        return await self.client.post("/chat/completions", json=body, headers=headers)

    async def rows(self) -> list[str]:
        data = (await self.client.get(f"/sessions/{self.chat_id}/messages")).json()["data"]
        return [row["content"] for row in data]


async def test_a_chat_is_one_session_and_edits_branch_it(running: OpenGateway):
    async with running("A1", "A2", "A2 again", "A1 again", "B1") as here, program(here) as client:
        chat, other = Chat(client), Chat(client, str(uuid5(SPACE, "other")))
        said = [await chat.send("one"), await chat.send("one", "A1", "two")]
        regenerated = await chat.send("one", "A1", "two"), await chat.rows()
        edited = await chat.send("one, edited"), await chat.rows()
        apart = await other.send("one"), await other.rows()
        sessions = {session["id"] for session in (await client.get("/sessions")).json()["data"]}

    assert said == ["A1", "A2"]
    assert regenerated == ("A2 again", ["one", "A1", "two", "A2 again"])
    assert edited == ("A1 again", ["one, edited", "A1 again"])
    assert apart == ("B1", ["one", "B1"])
    assert sessions == {f"api:laptop:{chat.chat_id}", f"api:laptop:{other.chat_id}"}


@pytest.mark.parametrize("has_headers", [True, False], ids=["headers", "older version"])
async def test_a_hidden_task_is_no_turn(running: OpenGateway, *, has_headers: bool):
    script = [f"made by {name}" for name in TASKS]
    async with running("A1", *script, "A2") as here, program(here) as client:
        chat = Chat(client)
        await chat.send("one")
        answers = [await chat.task(name, has_headers=has_headers) for name in TASKS]
        await chat.send("one", "A1", "two")
        rows = await chat.rows()
        asked = here.model.requests[1:4]

    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == script
    assert [[message["role"] for message in request] for request in asked] == [["user"]] * len(TASKS)
    assert rows == ["one", "A1", "two", "A2"]


async def test_a_temporary_chat_is_stored_nowhere(running: OpenGateway):
    async with running("A1", "A2") as here, program(here) as client:
        chat = Chat(client, "local:KJh3_socket-id")
        said = [await chat.send("one"), await chat.send("one", "A1", "two")]
        sessions = (await client.get("/sessions")).json()["data"]
        roles = [message["role"] for message in here.model.requests[-1]]

    assert (said, sessions) == (["A1", "A2"], [])
    assert roles == ["system", "user", "assistant", "user"]


async def test_a_picture_in_a_chat_reaches_the_model(running: OpenGateway):
    url = f"data:image/png;base64,{PIXEL}"
    picture = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    async with running("A pixel", "Grey") as here, program(here) as client:
        chat = Chat(client)
        said = [await chat.send(picture), await chat.send(picture, "A pixel", "which colour?")]
        rows = await chat.rows()

        [path] = here.model.requests[0][-1]["media"]
        assert Path(path).read_bytes() == base64.b64decode(PIXEL)
    assert said == ["A pixel", "Grey"]
    assert rows[1:] == ["A pixel", "which colour?", "Grey"]
