"""Model servers on this machine are found; other servers are not taken for one."""

import asyncio

import pytest

from nanobot.providers.local_servers import LocalServer, default_servers, find_local_server, list_models
from nanobot.testing.model_server import FakeModels


def at(server: FakeModels, provider: str = "ollama") -> LocalServer:
    return LocalServer(provider, provider.title(), server.v1)


async def test_the_first_in_order_that_answers_with_a_model_is_found():
    with (
        FakeModels(kind="web") as web,
        FakeModels(models=[]) as empty,
        FakeModels(models=["embed-1", "qwen3:8b"]) as ollama,
    ):
        found = await find_local_server([at(web, "vllm"), at(empty, "lm_studio"), at(ollama)])

    assert found is not None
    assert found.server.provider == "ollama"
    assert found.models == ("qwen3:8b",)
    assert found.reason == f"Ollama answers on 127.0.0.1:{ollama.port}"


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
    assert await find_local_server([LocalServer("ollama", "Ollama", base)]) is None


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
    assert default_servers({"OLLAMA_HOST": host})[0].api_base == base
