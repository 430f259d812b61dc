"""A chat of the page over HTTP: paired by a link, followed by the feed, heard once."""

import asyncio

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.testing import calls
from tests.fakes.tools import command, page
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway
from tests.support.web_client import browser, follow


async def test_a_message_is_answered_and_the_feed_shows_it(running: OpenGateway):
    async with running("Hello back") as here, browser(here) as client:
        before = (await client.get("/api/sessions/web:one/rows")).json()
        sent = await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "hello"})
        items = await follow(client, before["feed"], "turn_ended")
        after = (await client.get("/api/sessions/web:one/rows")).json()

    assert (sent.status_code, sent.json()["accepted"]) == (202, True)
    assert items[0]["event"]["type"] == "turn_started"
    assert (items[0]["event"]["text"], items[0]["event"]["message_id"]) == ("hello", "message-1")
    assert items[-1]["event"]["text"] == "Hello back"
    assert [(row["role"], row["text"]) for row in after["rows"]] == [("user", "hello"), ("assistant", "Hello back")]
    assert after["live"] == []


async def test_only_a_chat_of_a_chat_app_that_runs_here_is_answered_there(running: OpenGateway):
    keys = ("toy:7", "web:one", "trip", "cli:direct", "sdk:default", "api:x", "cron:1a2b", "heartbeat", "telegram:5")
    async with running() as here, browser(here) as client:
        answers = {key: (await client.get(f"/api/sessions/{key}/rows")).json()["answers_in"] for key in keys}

    assert answers == {**dict.fromkeys(keys), "toy:7": "toy"}


@pytest.mark.parametrize("key", ["cli:direct", "telegram:5"])
async def test_the_answer_in_a_chat_that_no_chat_app_takes_counts_as_delivered(running: OpenGateway, key: str):
    async with running("Hello back") as here, browser(here) as client:
        before = (await client.get(f"/api/sessions/{key}/rows")).json()["feed"]
        sent = await client.post(f"/api/sessions/{key}/messages", json={"id": "message-1", "text": "hello"})
        items = await follow(client, before, "turn_ended")
        journal = here.gateway.runtime.bus.journal
        while journal is not None and (await journal.counts()).waiting_out:
            await asyncio.sleep(0.02)
        rows = (await client.get(f"/api/sessions/{key}/rows")).json()["rows"]

    assert sent.status_code == 202
    assert items[-1]["session"] == key
    assert [row["text"] for row in rows] == ["hello", "Hello back"]
    assert here.gateway.reporter.dead_letters.count == 0


async def test_a_message_sent_twice_is_heard_once(running: OpenGateway):
    async with running("one", "two") as here, browser(here) as client:
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        for _ in range(2):
            again = await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "hello"})
        await follow(client, before, "turn_ended")

        assert (again.status_code, again.json()["accepted"]) == (202, False)
        assert len(here.model.requests) == 1


async def test_an_approval_is_asked_in_the_feed_and_answered_once(running: OpenGateway):
    script = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "ls"})), "done")
    async with running(*script) as here, browser(here) as client:
        run = command()
        for tool in (page(), run):
            here.gateway.runtime.tools.register(tool)
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "run it"})
        asked = (await follow(client, before, "approval_asked"))[-1]["event"]
        live = (await client.get("/api/sessions/web:one/rows")).json()["live"]
        url = f"/api/approvals/{asked['question']}"
        answers = [await client.post(url, json={"answer": answer}) for answer in ("once", "no")]
        ended = (await follow(client, before, "turn_ended"))[-1]["event"]

    assert live[0]["parts"][-1]["type"] == "approval"
    assert asked["arguments"] == {"target": "ls"}
    assert [answer.status_code for answer in answers] == [200, 409]
    assert answers[1].json()["answer"] == "once"
    assert (ended["text"], run.done) == ("done", ["ls"])


async def test_a_reminder_set_in_a_chat_of_the_page_arrives_there_and_is_kept(running: OpenGateway):
    reminder = {"action": "add", "message": "Tea", "at": "2126-12-24T18:00:00", "deliver": True}
    async with (
        running(calls(("cron", reminder)), "I remind you.", "The tea is ready.") as here,
        browser(here) as client,
    ):
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "remind me of the tea"})
        await follow(client, before, "turn_ended")
        [job] = (await client.get("/api/jobs")).json()["jobs"]
        await client.post(f"/api/jobs/{job['id']}/run")
        posted = (await follow(client, before, "message_posted"))[-1]
        rows = (await client.get("/api/sessions/web:one/rows")).json()["rows"]

    assert posted["session"] == "web:one"
    assert "tea" in posted["event"]["text"].lower()
    assert rows[-1]["text"] == posted["event"]["text"]


async def test_a_branch_is_made_with_its_first_message_and_made_once(running: OpenGateway):
    async with running("five days", "three days") as here, browser(here) as client:
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "plan five days"})
        await follow(client, before, "turn_ended")
        message = {"id": "message-2", "text": "plan three", "branch_from": {"session": "web:one", "before": 0}}
        position = (await client.get("/api/sessions/web:two/rows")).json()["feed"]
        for _ in range(2):
            await client.post("/api/sessions/web:two/messages", json=message)
        await follow(client, position, "turn_ended")
        branch = (await client.get("/api/sessions/web:two/rows")).json()

    assert [row["text"] for row in branch["rows"]] == ["plan three", "three days"]
    assert branch["branch_of"] == "web:one"


async def test_an_uploaded_file_is_served_so_that_it_cannot_run(running: OpenGateway):
    async with running() as here, browser(here) as client:
        headers = {"x-file-name": "a%20page.html", "content-type": "text/html"}
        page = (await client.post("/api/files", content=b"<script>alert(1)</script>", headers=headers)).json()
        picture = (await client.post("/api/files", content=b"\x89PNG\r\n\x1a\n" + bytes(40))).json()
        files = [await client.get(f"/api/files/{each['id']}") for each in (page, picture)]
        unknown = await client.get("/api/files/0000")

    assert [file.headers["content-disposition"].partition(";")[0] for file in files] == ["attachment", "inline"]
    assert files[0].headers["content-type"] == "application/octet-stream"
    assert all(file.headers["content-security-policy"].startswith("sandbox") for file in files)
    assert all(file.headers["x-content-type-options"] == "nosniff" for file in files)
    assert unknown.status_code == 404


async def test_a_file_keeps_its_name_for_the_person_and_the_model(running: OpenGateway):
    async with running("read") as here, browser(here) as client:
        headers = {"x-file-name": "Report%20%285%29%20%E4%BA%94%E6%9C%88.csv", "content-type": "text/csv"}
        file = (await client.post("/api/files", content=b"a,b\n1,2\n", headers=headers)).json()
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        message = {"id": "message-1", "text": "sum it up", "files": [file["id"]]}
        await client.post("/api/sessions/web:one/messages", json=message)
        await follow(client, before, "turn_ended")
        row = (await client.get("/api/sessions/web:one/rows")).json()["rows"][0]
        saved = await client.get(f"/api/files/{file['id']}")

    name = "Report (5) 五月.csv"
    assert (file["name"], row["text"], [each["name"] for each in row["files"]]) == (name, "sum it up", [name])
    assert f"/{name}]" in str(here.model.requests[0])
    assert saved.headers["content-disposition"].endswith("Report%20%285%29%20%E4%BA%94%E6%9C%88.csv")


async def test_what_is_written_into_a_thread_of_another_channel_is_answered_there(running: OpenGateway):
    session = "toy:room:1:thread:2"
    first = InboundMessage(
        "toy", "7", "room:1", "hi", message_id="m1", thread_id="thread:2", session_key_override=session
    )
    async with running("in the thread", "from the page") as here, browser(here) as client:
        await here.gateway.runtime.bus.publish_inbound(first)
        await eventually(lambda: here.toy.got("room:1"))
        await client.post(f"/api/sessions/{session}/messages", json={"id": "message-1", "text": "hello"})
        await eventually(lambda: len(here.toy.got("room:1")) == 2)

        assert here.toy.got() == ["in the thread", "from the page"]
