"""The views of the page over HTTP: what `test_page_views.py` does not see in a browser."""

import asyncio
import re
from datetime import datetime
from typing import Any

import httpx
import pytest

from nanobot.gateway.http import all_endpoints
from nanobot.net import sse
from nanobot.security.http_access import Requires
from nanobot.testing import calls
from tests.support.browser import Typist
from tests.support.eventually import eventually
from tests.support.ledger_rows import put_rows, row
from tests.support.running_gateway import OpenGateway
from tests.support.web_client import browser, follow


async def say(client: httpx.AsyncClient, text: str, session: str = "web:one") -> None:
    before = (await client.get(f"/api/sessions/{session}/rows")).json()["feed"]
    sent = await client.post(f"/api/sessions/{session}/messages", json={"id": f"id-{text}", "text": text})
    assert sent.status_code == 202, sent.text
    await follow(client, before, "turn_ended")


async def test_a_session_is_renamed_pinned_found_exported_imported_archived_and_deleted(running: OpenGateway):
    async with running("The answer", "Later") as here, browser(here) as client:
        await say(client, "what about pelicans?")
        first = (await client.get("/api/sessions")).json()["sessions"]
        await client.patch("/api/sessions/web:one", json={"title": "Birds", "pinned": True})
        renamed = (await client.get("/api/sessions")).json()["sessions"]
        hits = (await client.get("/api/search", params={"q": "pelicans"})).json()["hits"]
        markdown = await client.get("/api/sessions/web:one/export")
        lines = await client.get("/api/sessions/web:one/export", params={"format": "jsonl"})
        imported = await client.post("/api/import", params={"as": "web:copy"}, content=lines.content)
        again = await client.post("/api/import", params={"as": "web:copy"}, content=lines.content)
        await say(client, "still there?")
        archived = (await client.post("/api/sessions/web:one/archive")).json()["archived"]
        deleted = await client.delete(f"/api/sessions/{archived}")
        left = (await client.get("/api/sessions")).json()["sessions"]
        gone = await client.delete(f"/api/sessions/{archived}")

    assert [(row["key"], row["title"], row["pinned"]) for row in first] == [("web:one", "what about pelicans?", False)]
    assert [(row["title"], row["pinned"]) for row in renamed] == [("Birds", True)]
    assert "pelicans" in hits[0]["text"]
    assert "The answer" in markdown.text
    assert "attachment" in markdown.headers["content-disposition"]
    assert (imported.status_code, again.status_code) == (201, 409)
    assert (deleted.status_code, gone.status_code) == (200, 404)
    assert [row["key"] for row in left] == ["web:copy"]


async def test_a_chat_that_is_deleted_while_it_answers_stays_deleted(running: OpenGateway):
    may_end = asyncio.Event()
    async with running(provider=Typist(["It ", may_end, "ends."])) as here, browser(here) as client:
        before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
        await client.post("/api/sessions/web:one/messages", json={"id": "message-1", "text": "hello"})
        await follow(client, before, "text_delta")
        deleting = asyncio.create_task(client.delete("/api/sessions/web:one"))
        await asyncio.wait({deleting}, timeout=1)
        was_deleted_early = deleting.done()
        may_end.set()
        ended = (await follow(client, before, "turn_ended"))[-1]["event"]
        deleted = await deleting
        left = (await client.get("/api/sessions")).json()["sessions"]

    assert (was_deleted_early, deleted.status_code) == (False, 200)
    assert ended["text"] == "It ends."
    assert left == []


async def test_a_job_is_changed_paused_and_shows_what_its_runs_cost(running: OpenGateway):
    async with running("Watered.") as here, browser(here) as client:
        job = (await client.post("/api/jobs", json={"message": "Water the plants", "cron": "0 18 * * *"})).json()
        path = f"/api/jobs/{job['id']}"
        change = {"message": "Feed the cat", "name": "cat", "every_s": 7200, "model": "other-model"}
        changed = (await client.patch(path, json=change)).json()
        wrong = [await client.patch(path, json=each) for each in ({"at": "no such time"}, {"message": ""})]
        paused, resumed = [(await client.patch(path, json={"enabled": on})).json() for on in (False, True)]
        nobody = await client.patch("/api/jobs/none", json={"enabled": False})
        await client.post(f"{path}/run")
        while not (await client.get("/api/jobs/history")).json()["runs"]:
            await asyncio.sleep(0.05)
        usage = (await client.get("/api/usage", params={"by": "model"})).json()["rows"]
        [unpriced] = (await client.get("/api/jobs")).json()["jobs"]
        today = f"{datetime.now():%Y-%m-%d}T00:00:00.000+00:00"
        calls_of_job = [row(today, session=f"cron:{job['id']}", turn=turn, usd=0.2) for turn in ("a", "a", "b")]
        put_rows(here.home, *calls_of_job)
        [priced] = (await client.get("/api/jobs")).json()["jobs"]
        default = (await client.patch(path, json={"model": ""})).json()

    assert (changed["name"], changed["payload"]["message"], changed["model"]) == ("cat", "Feed the cat", "other-model")
    assert (changed["schedule_text"], len(changed["next_runs_ms"])) == ("every 2 hours", 3)
    assert [answer.status_code for answer in (*wrong, nobody)] == [400, 400, 404]
    assert (paused["next_runs_ms"], len(resumed["next_runs_ms"])) == ([], 3)
    assert "Feed the cat" in str(here.model.requests[-1])
    assert [used["model"] for used in usage] == ["other-model"]
    assert unpriced["month"] == {"runs": 1, "usd": None}
    assert priced["month"] == {"runs": 3, "usd": pytest.approx(0.6)}
    assert default["model"] is None


async def test_the_inbox_shows_who_asks_to_be_paired_and_a_yes_admits_them(running: OpenGateway, tmp_path):
    async with running("hello") as here, browser(here) as client:
        before = (await client.get("/api/sessions")).json()["feed"]
        here.toy.write("may I?", message_id="1", sender="9")
        await eventually(lambda: here.gateway.runtime.pairing.pending("toy"))
        told = await follow(client, before, "changed")
        [waiting] = (await client.get("/api/inbox")).json()["pairing"]
        approved = await client.post(f"/api/pairing/{waiting['code']}/approve", json={"owner": True})
        people = (await client.get("/api/people")).json()["people"]
        revoked = await client.post("/api/people/revoke", json={"channel": "toy", "sender": people[0]["sender"]})
        left = (await client.get("/api/people")).json()["people"]

    assert told[-1]["event"]["topic"] == "inbox"
    assert (waiting["channel"], approved.status_code, revoked.status_code) == ("toy", 200, 200)
    assert [(person["channel"], person["owner"]) for person in people] == [("toy", True)]
    assert left == []


async def test_the_changes_of_a_turn_are_undone_once_and_only_the_last_ones(running: OpenGateway):
    def write(text: str) -> Any:
        return calls(("write_file", {"path": "plan.md", "content": text}))

    async with running(write("one"), "done", write("two"), "done") as here, browser(here) as client:
        file = here.home / "workspace" / "plan.md"
        for text in ("write one", "write two"):
            await say(client, text)
        first, last = (await client.get("/api/sessions/web:one/turns")).json()["turns"]
        paths = [f"/api/sessions/web:one/turns/{turn['turn_id']}" for turn in (first, last)]
        may = [(await client.get(path)).json()["can_undo"] for path in paths]
        early = (await client.post(f"{paths[0]}/undo")).json()["report"]
        after_early = file.read_text(encoding="utf-8")
        report = (await client.post(f"{paths[1]}/undo")).json()["report"]
        after = file.read_text(encoding="utf-8")
        may_again = (await client.get(paths[1])).json()["can_undo"]

    assert (may, may_again) == ([False, True], False)
    assert (after_early, after) == ("two", "one")
    assert "later turn" in early
    assert "plan.md: restored" in report


async def test_what_makes_no_sense_is_refused(running: OpenGateway):
    async with running() as here, browser(here) as client:
        by_colour = await client.get("/api/usage", params={"by": "colour"})
        option = await client.post("/api/doctor", json={"fix": "--offline"})  # a check, not an option of the command

    assert (by_colour.status_code, option.status_code) == (400, 400)


async def test_what_there_is_is_listed(running: OpenGateway):
    paths = ("skills", "tools", "servers", "channels", "commands", "goals", "memory/dreams")
    async with running() as here, browser(here) as client:
        answers = [await client.get(f"/api/{path}") for path in paths]

    assert {answer.status_code for answer in answers} == {200}
    assert all(isinstance(next(iter(answer.json().values())), list) for answer in answers)


async def test_every_endpoint_refuses_a_stranger_another_host_and_another_site(running: OpenGateway):
    async with running() as here, browser(here) as client:
        endpoints = [each for each in all_endpoints(here.gateway.web) if each.requires is Requires.DEVICE]
        async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, trust_env=False) as stranger:
            for endpoint in endpoints:
                path, method = re.sub(r"\{(\w+)[^}]*\}", r"\1", endpoint.path), endpoint.methods[0]
                forged = {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}
                answers = [await client.request(method, path, headers=headers) for headers in forged]
                answers.append(await stranger.request(method, path))
                assert [answer.status_code for answer in answers] == [421, 403, 401], path
                if method != "GET":
                    foreign = await client.request(method, path, headers={"Origin": "https://evil.example"})
                    assert foreign.status_code == 403, path

    assert len(endpoints) > 30


async def test_the_feed_of_a_device_that_is_signed_out_ends(running: OpenGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "PING_S", 0.1)
    async with running() as here, browser(here) as client, asyncio.timeout(20):
        [device] = (await client.get("/api/devices")).json()["devices"]
        async with client.stream("GET", "/api/feed") as response:
            await client.delete(f"/api/devices/{device['name']}")
            async for _ in response.aiter_bytes():
                pass  # to its end
