"""A stream goes on where it broke off when the process was killed: the same text, once."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from nanobot.testing.model_server import Calls, FakeModels, Hang, Say
from tests.support.eventually import wait_until
from tests.support.home import POSIX, Home
from tests.support.processes import until_served
from tests.support.toy_gateway import free_port

pytestmark = POSIX


@contextmanager
def serving(home: Home, port: int) -> "Iterator[subprocess.Popen[bytes]]":
    """`nanobot serve`, until it answers."""
    process = home.start("serve", "--port", str(port))
    try:
        until_served(process, port)
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def killed_home(path: Any, server: FakeModels) -> Iterator[tuple[Home, int, httpx.Client]]:
    """A home with a key of the API, and a client."""
    home, port = Home(path, server, gateway={"port": free_port()}), free_port()
    key = home.run("api", "key", "add", "laptop").out.strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", headers=headers, trust_env=False, timeout=30) as client:
        yield home, port, client


def read_until(lines: Iterator[str], end: str) -> tuple[str, str]:
    """The text of a stream of chat completions until it ends with these words, and the id of the last event."""
    text = event_id = ""
    for line in lines:
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: {"):
            choices = json.loads(line.removeprefix("data: "))["choices"]
            text += choices[0]["delta"].get("content", "") if choices else ""
            if text.endswith(end):
                break
    return text, event_id


@pytest.mark.parametrize(
    "conversation", [{}, pytest.param({"user": "chat-1"}, marks=pytest.mark.slow)], ids=["alone", "conversation"]
)
def test_a_chat_completion_goes_on_after_a_kill(tmp_path: Any, conversation: dict[str, str]):
    with FakeModels() as server, killed_home(tmp_path, server) as (home, port, client):
        server.script(Calls(("list_dir", {"path": "."}), text="I look."), Hang(after="The answer is "))
        body = {"messages": [{"role": "user", "content": "what is it?"}], "stream": True, **conversation}
        with serving(home, port) as process, client.stream("POST", "/chat/completions", json=body) as answer:
            before, event_id = read_until(answer.iter_lines(), "The answer is ")
            process.kill()
        server.script(Say("forty-two."))
        with serving(home, port):
            url = f"/chat/completions/{event_id.partition('.')[0]}?stream=true"
            with client.stream("GET", url, headers={"Last-Event-ID": event_id}) as answer:
                after, _ = read_until(answer.iter_lines(), "forty-two.")
            completion = client.get(f"/chat/completions/{event_id.partition('.')[0]}").json()

    assert before + after == "I look.\n\nThe answer is forty-two."
    assert completion["choices"][0]["message"]["content"] == before + after
    assert len(server.chats) == 3


def test_a_response_goes_on_after_a_kill(tmp_path: Any):
    with FakeModels() as server, killed_home(tmp_path, server) as (home, port, client):
        server.script(Calls(("list_dir", {"path": "."}), text="I look."), Hang(after="The answer is "))
        events: list[dict[str, Any]] = []
        body = {"input": "what is it?", "stream": True}
        with serving(home, port) as process, client.stream("POST", "/responses", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line.removeprefix("data: ")))
                    if events[-1].get("delta") == "The answ":
                        break
            turns = home.data / "state" / "turns"
            wait_until(lambda: any(b'is "' in file.read_bytes() for file in turns.iterdir()))
            process.kill()
        server.script(Say("forty-two."))
        with serving(home, port):
            url = f"/responses/{events[0]['response']['id']}"
            query = {"stream": "true", "starting_after": str(events[-1]["sequence_number"])}
            with client.stream("GET", url, params=query) as answer:
                lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
                events += map(json.loads, lines)

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "I look.The answer is forty-two."
    assert events[-1]["response"]["status"] == "completed"


def test_a_request_that_was_cut_off_is_joined_by_its_automatic_retry(tmp_path: Any):
    with FakeModels() as server, killed_home(tmp_path, server) as (home, port, client):
        server.script(Hang(after="The answer is "))
        body = {"messages": [{"role": "user", "content": "what is it?"}], "user": "chat-1"}
        with serving(home, port) as process:
            with pytest.raises(httpx.TransportError):
                client.post("/chat/completions", json=body, timeout=3)
            process.kill()
        server.script(Say("forty-two."))
        with serving(home, port):
            again = client.post("/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})

    assert again.json()["choices"][0]["message"]["content"] == "The answer is forty-two."
    assert len(server.chats) == 2
