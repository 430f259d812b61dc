"""Health over HTTP: from evidence, bounded, without a secret."""

import asyncio
import json

from nanobot.providers.errors import AuthenticationError
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway, Running


async def get(here: Running, path: str, method: str = "GET") -> tuple[int, str]:
    """What the server answers: status and body."""
    head, _, body = (await say(here, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    return int(head.split()[1]), body.decode()


async def say(here: Running, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.health.port)
    writer.write(said)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_what_came_and_went_is_told_and_the_counts_add_up(running: OpenGateway):
    async with running("hello") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        await eventually(lambda: here.gateway.channels.statuses()["toy"].sent == 1)

        status, body = await get(here, "/health")
        _, metrics = await get(here, "/metrics")

    told = json.loads(body)
    messages = told["messages"]
    assert (status, told["status"], told["problems"]) == (200, "ok", [])
    assert messages["received"] == messages["answered"] + messages["refused"] + messages["queued"] == 1
    assert (told["channels"]["toy"]["received"], told["channels"]["toy"]["sent"]) == (1, 1)
    assert told["channels"]["toy"]["lastReceived"] and told["members"]["pulse"]["lastTickS"] < 5
    assert told["diskFreeBytes"] > 0
    assert 'nanobot_channel_up{channel="toy"} 1' in metrics
    assert 'nanobot_messages{state="received"} 1' in metrics
    assert "nanobot_healthy 1" in metrics


async def test_a_red_channel_makes_it_503_with_the_reason_and_no_secret(running: OpenGateway, tmp_path):
    secret = "sk-this-is-very-secret"
    toy = {"enabled": True, "folder": str(tmp_path / "toy"), "token": secret}
    async with running(channels={"toy": toy, "broken": {"enabled": True}}) as here:
        here.gateway.channels.broken["broken"] = f"the token {secret} is not known there"
        status, body = await get(here, "/health")
        _, metrics = await get(here, "/metrics")

    assert status == 503
    assert "is not known there" in body
    assert secret not in body + metrics


async def test_a_model_that_does_not_answer_makes_it_503_until_one_does(running: OpenGateway):
    async with running(AuthenticationError("the key was refused"), "hello again") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        dead, body = await get(here, "/health")
        _, metrics = await get(here, "/metrics")
        here.toy.write("and now?", message_id="2")
        await eventually(lambda: "hello again" in here.toy.got())
        alive, _ = await get(here, "/health")

    assert (dead, alive) == (503, 200)
    assert "the key was refused" in json.loads(body)["problems"][0]
    assert "nanobot_model_up 0" in metrics


async def test_other_questions_get_their_answers_and_who_speaks_no_http_is_let_go(running: OpenGateway):
    questions = {("GET", "/"): 404, ("POST", "/health"): 405, ("HEAD", "/health"): 200, ("GET", "/health?x=1"): 200}
    async with running() as here:
        for said in (b"hello?\r\n\r\n", b"GET /" + b"x" * 20_000, b"\x16\x03\x01\r\n\r\n"):
            assert await say(here, said) == b""

        assert {asked: (await get(here, asked[1], asked[0]))[0] for asked in questions} == questions


async def test_a_web_page_whose_name_leads_here_reads_nothing(running: OpenGateway):
    ours = ("localhost", "127.0.0.1:18790", "[::1]:1", "LOCALHOST:80")
    async with running() as here:
        told = {
            host: (await say(here, f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())).split()[1]
            for host in (*ours, "evil.test", "127.0.0.1.evil.test:18790", "")
        }

    assert told == dict.fromkeys(ours, b"200") | dict.fromkeys(("evil.test", "127.0.0.1.evil.test:18790", ""), b"421")


async def test_a_crowd_that_says_nothing_keeps_nobody_from_the_agent(running: OpenGateway):
    async with running("hello") as here:
        crowd = [await asyncio.open_connection("127.0.0.1", here.gateway.health.port) for _ in range(60)]
        here.toy.write("hi", message_id="1")

        assert await eventually(here.toy.got) == ["hello"]
        for _, writer in crowd:
            writer.close()


async def test_a_port_that_is_taken_is_told_and_the_rest_works(running: OpenGateway, caplog):
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with running("hello", gateway={"port": port}) as here:
            here.toy.write("hi", message_id="1")
            await eventually(here.toy.got)
            report = await here.gateway.reporter.report()

    assert f"127.0.0.1:{port} is used by another program" in caplog.text
    assert report["problems"][0].startswith("health: ")
