"""Health over HTTP: from evidence, bounded, without a secret."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import httpx

from nanobot.channels.status import REFUSED_S, ChannelState, ChannelStatus
from nanobot.channels.webhooks import LARGEST_BODY
from nanobot.providers.errors import AuthenticationError
from nanobot.utils.clock import FrozenClock
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway, Running


async def get(here: Running, path: str, method: str = "GET", host: str = "localhost") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        url = f"http://127.0.0.1:{here.gateway.http.port}{path}"
        return await client.request(method, url, headers={"Host": host})


async def say(here: Running, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.http.port)
    writer.write(said)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_what_came_and_went_is_told_and_the_counts_add_up(running: OpenGateway):
    async with running("hello") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        await eventually(lambda: here.gateway.channels.statuses()["toy"].sent == 1)

        health = await get(here, "/health")
        metrics = (await get(here, "/metrics")).text

    told = health.json()
    messages = told["messages"]
    assert (health.status_code, told["status"], told["problems"]) == (200, "ok", [])
    assert messages["received"] == messages["answered"] + messages["refused"] + messages["queued"] == 1
    assert (told["channels"]["toy"]["received"], told["channels"]["toy"]["sent"]) == (1, 1)
    assert told["channels"]["toy"]["lastReceived"] and told["members"]["pulse"]["lastTickS"] < 5
    assert {"agent", "channels", "dead letters", "jobs", "http", "control"} <= told["members"].keys()
    assert told["diskFreeBytes"] > 0
    assert 'nanobot_channel_up{channel="toy"} 1' in metrics
    assert 'nanobot_messages{state="received"} 1' in metrics
    assert "nanobot_healthy 1" in metrics


async def test_a_red_channel_makes_it_503_with_the_reason_and_no_secret(running: OpenGateway, tmp_path):
    secret = "sk-this-is-very-secret"
    toy = {"enabled": True, "folder": str(tmp_path / "toy"), "token": secret}
    async with running(channels={"toy": toy, "broken": {"enabled": True}}) as here:
        here.gateway.channels.broken["broken"] = f"the token {secret} is not known there"
        health = await get(here, "/health")
        metrics = await get(here, "/metrics")

    assert health.status_code == 503
    assert "is not known there" in health.text
    assert health.json()["channels"]["broken"]["state"] == "failed"
    assert secret not in health.text + metrics.text


async def test_a_model_that_does_not_answer_makes_it_503_until_one_does(running: OpenGateway):
    async with running(AuthenticationError("the key was refused"), "hello again") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        dead = await get(here, "/health")
        metrics = await get(here, "/metrics")
        here.toy.write("and now?", message_id="2")
        await eventually(lambda: "hello again" in here.toy.got())
        alive = await get(here, "/health")

    assert (dead.status_code, alive.status_code) == (503, 200)
    assert "the key was refused" in dead.json()["problems"][0]
    assert "nanobot_model_up 0" in metrics.text


async def test_other_questions_get_their_answers_and_who_speaks_no_http_is_let_go(running: OpenGateway):
    questions = {
        ("GET", "/nothing"): 404,
        ("POST", "/health"): 405,
        ("HEAD", "/health"): 200,
        ("GET", "/health?x=1"): 200,
    }
    questions |= {("POST", "/hooks/nobody"): 404}
    async with running() as here:
        for said in (b"hello?\r\n\r\n", b"GET /" + b"x" * 20_000, b"\x16\x03\x01\r\n\r\n"):
            assert b" 400 " in await say(here, said)

        assert {asked: (await get(here, asked[1], asked[0])).status_code for asked in questions} == questions


async def test_a_web_page_whose_name_leads_here_reads_nothing(running: OpenGateway):
    ours = ("localhost", "127.0.0.1:18790", "[::1]:1", "LOCALHOST:80")
    async with running() as here:
        told = {
            host: (await get(here, "/health", host=host)).status_code
            for host in (*ours, "evil.test", "127.0.0.1.evil.test:18790", "")
        }

    assert told == dict.fromkeys(ours, 200) | dict.fromkeys(("evil.test", "127.0.0.1.evil.test:18790", ""), 421)


async def test_a_port_that_is_taken_is_told_and_the_rest_works(running: OpenGateway, caplog):
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with running("hello", gateway={"port": port}) as here:
            here.toy.write("hi", message_id="1")
            await eventually(here.toy.got)
            report = await here.gateway.reporter.report()

    assert f"127.0.0.1:{port} is used by another program" in caplog.text
    assert report["problems"][0].startswith("http: ")


async def test_a_webhook_reaches_its_channel_under_any_name_and_only_while_it_runs(running: OpenGateway):
    received: list[tuple[str, bytes]] = []

    async def answer(headers: Mapping[str, str], body: bytes) -> int:
        received.append((headers["X-Signature"], body))
        if body == b"broken":
            raise ValueError(body)
        return 202

    async with running() as here, httpx.AsyncClient(trust_env=False, verify=False) as client:
        url = f"http://127.0.0.1:{here.gateway.http.port}/hooks/toy"
        headers = {"Host": "bot.example.com", "x-signature": "s"}
        with here.gateway.channels.webhooks.serve("/hooks/toy", answer):
            told = [
                (await client.post(url, content=body, headers=headers)).status_code
                for body in (b"hello", b"x" * (LARGEST_BODY + 1), b"broken")
            ]
            told.append((await client.get(url)).status_code)
        told.append((await client.post(url, headers=headers)).status_code)

    assert told == [202, 413, 500, 405, 404]
    assert received == [("s", b"hello"), ("s", b"broken")]


async def test_a_request_that_never_ends_does_not_hold_up_the_end(running: OpenGateway):
    began = asyncio.Event()

    async def hang(headers: Mapping[str, str], body: bytes) -> int:
        began.set()
        await asyncio.Event().wait()
        return 200

    async with running() as here:
        with here.gateway.channels.webhooks.serve("/hooks/toy", hang):
            asking = asyncio.create_task(say(here, b"POST /hooks/toy HTTP/1.1\r\nHost: x\r\n\r\n"))
            await began.wait()
            leaving = asyncio.get_running_loop().time()
            here.gateway.shutdown.stop()

    assert b" 200 " not in await asking
    assert asyncio.get_running_loop().time() - leaving < 2


def test_how_long_a_channel_is_gone_counts_from_when_it_was_last_up_however_often_it_is_tried():
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    status = ChannelStatus(clock)
    status.set_state(ChannelState.UP)
    clock.advance(5)

    for state in (ChannelState.DOWN, ChannelState.CONNECTING) * 20:
        status.set_state(state)
        clock.advance(1)

    assert status.gone_s == 40


def test_a_message_that_no_platform_took_is_remembered_until_one_is_taken_or_for_a_while():
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    status = ChannelStatus(clock)
    status.record_failed("there is no such chat")
    refused = status.undelivered
    status.record_sent()
    taken = status.undelivered
    status.record_failed("no again")
    clock.advance(REFUSED_S + 1)

    assert (refused, taken, status.undelivered) == ("there is no such chat", "", "")
