"""Model servers on this machine are found; other servers are not taken for one."""

import asyncio

import pytest

from nanobot.providers.local_servers import default_servers, list_models, running_servers
from nanobot.testing.model_server import FakeModels


async def test_those_that_answer_with_a_model_are_found_in_order():
    with (
        FakeModels(kind="web") as web,
        FakeModels(models=[]) as empty,
        FakeModels(models=["embed-1", "qwen3:8b"]) as ollama,
    ):
        servers = {"vllm": web.v1, "lm_studio": empty.v1, "ollama": ollama.v1, "ovms": ollama.v1}
        found = await running_servers(servers)

    assert list(found.items()) == [("ollama", ("qwen3:8b",)), ("ovms", ("qwen3:8b",))]


@pytest.mark.parametrize(
    "answer",
    [
        None,  # silence
        b"220 mail.test ESMTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\n\r\n{"data": {"id": 1}}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": ""}, {"id": 7}]}',
        b"HTTP/1.1 401 No\r\n\r\n{}",
    ],
)
async def test_what_is_no_list_of_models_in_time_is_no_model_server(answer):
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await reader.read()
        else:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)

    async with asyncio.timeout(10):
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        assert await list_models(base, timeout_s=0.3) == ()

    server.close()
    await asyncio.sleep(0.01)  # its transports close at the next turn of the loop
    assert await running_servers({"ollama": base}) == {}


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("10.0.0.5:1234", "http://10.0.0.5:1234/v1"),
        ("http://box:80", "http://box:80/v1"),
        ("box:port", "http://127.0.0.1:11434/v1"),
    ],
)
def test_ollama_is_looked_for_where_its_own_variable_says(host, base):
    assert default_servers({"OLLAMA_HOST": host})["ollama"] == base
