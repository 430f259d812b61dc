"""The views of the page over HTTP: each action as a person makes it, seen again where it shows."""

import asyncio
import json
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
from tests.support.home import POSIX
from tests.support.ledger_rows import put_rows, row
from tests.support.memory import FACTS, MERGED, tidying
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


async def test_a_fact_is_found_edited_pinned_forgotten_and_all_of_it_undone(running: OpenGateway):
    async with running() as here, browser(here) as client:
        memory = here.home / "workspace" / "memory" / "MEMORY.md"
        memory.write_text("## People\n\n- Ana lives in Porto\n", encoding="utf-8")
        before = memory.read_bytes()
        [fact] = (await client.get("/api/memory")).json()["facts"]
        hits = (await client.get("/api/memory/search", params={"q": "porto"})).json()["hits"]
        edited = await client.put(f"/api/memory/facts/{fact['id']}", json={"text": "Ana lives in Faro"})
        pinned = await client.post(f"/api/memory/facts/{edited.json()['id']}/pin")
        refused = await client.delete(f"/api/memory/facts/{edited.json()['id']}")
        shown = (await client.get("/api/memory")).json()["facts"]
        await client.post(f"/api/memory/facts/{edited.json()['id']}/unpin")
        await client.delete(f"/api/memory/facts/{edited.json()['id']}")
        empty = (await client.get("/api/memory")).json()["facts"]
        undone = [await client.post("/api/memory/undo") for _ in range(4)]
        changes = (await client.get("/api/memory/changes")).json()["changes"]
        after = memory.read_bytes()

    assert hits[0]["file"] == "MEMORY.md"
    assert (pinned.status_code, refused.status_code) == (200, 400)
    assert "pinned" in refused.json()["error"]
    assert [(fact["text"], fact["pinned"], fact["heading"]) for fact in shown] == [
        ("Ana lives in Faro", True, "People")
    ]
    assert empty == []
    assert {each.status_code for each in undone} == {200}
    assert [change["by"] for change in changes[-5:-1]] == ["forget", "pin", "pin", "edit"]
    assert after == before


async def test_a_pass_of_dream_is_listed_and_taken_back(running: OpenGateway):
    async with running(tidying(MERGED)) as here, browser(here) as client:
        store = here.gateway.runtime.context.memory
        store.memory_file.write_text(FACTS, encoding="utf-8")
        store.append_history("Talked of home.")
        outcome = (await client.post("/api/memory/dream")).json()["outcome"]
        dreams = (await client.get("/api/memory/dreams")).json()
        restored = await client.post("/api/memory/dreams/1/restore")
        again = await client.post("/api/memory/dreams/1/restore")
        active = (await client.get("/api/memory/dreams")).json()["active"]

    assert outcome == "done"
    assert (dreams["active"], dreams["passes"][0]["edits"][0]["after"]) == ([1], "Lives in Berlin.")
    assert (restored.status_code, again.status_code, active) == (200, 400, [])
    assert store.memory_file.read_text(encoding="utf-8") == FACTS


async def test_a_job_is_added_in_words_paused_run_and_removed(running: OpenGateway):
    async with running("Watered.") as here, browser(here) as client:
        job = (await client.post("/api/jobs", json={"message": "Water the plants", "cron": "0 18 * * *"})).json()
        never = await client.post("/api/jobs", json={"message": "x", "at": "no such time"})
        calendar = (await client.get("/api/jobs/calendar", params={"days": 3})).json()["runs"]
        paused = await client.patch(f"/api/jobs/{job['id']}", json={"enabled": False})
        resumed = await client.patch(f"/api/jobs/{job['id']}", json={"enabled": True})
        started = await client.post(f"/api/jobs/{job['id']}/run")

        async def history() -> list[dict[str, object]]:
            return list((await client.get("/api/jobs/history")).json()["runs"])

        while not (runs := await history()):
            pass
        removed = await client.delete(f"/api/jobs/{job['id']}")
        listed = (await client.get("/api/jobs")).json()["jobs"]

    assert (job["name"], len(job["next_runs_ms"])) == ("Water the plants", 3)
    assert (never.status_code, "no such time" in never.json()["error"]) == (400, True)
    assert len(calendar) == 3
    assert (paused.json()["next_runs_ms"], len(resumed.json()["next_runs_ms"])) == ([], 3)
    assert (started.status_code, runs[0]["outcome"]) == (202, "ran")
    assert (removed.status_code, listed) == (200, [])


async def test_a_job_is_changed_and_shows_what_its_runs_cost(running: OpenGateway):
    async with running("Watered.") as here, browser(here) as client:
        job = (await client.post("/api/jobs", json={"message": "Water the plants", "cron": "0 18 * * *"})).json()
        path = f"/api/jobs/{job['id']}"
        change = {"message": "Feed the cat", "name": "cat", "every_s": 7200, "model": "other-model"}
        changed = (await client.patch(path, json=change)).json()
        wrong = [await client.patch(path, json=each) for each in ({"at": "no such time"}, {"message": ""})]
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
    assert "Feed the cat" in str(here.model.requests[-1])
    assert [used["model"] for used in usage] == ["other-model"]
    assert unpriced["month"] == {"runs": 1, "usd": None}
    assert priced["month"] == {"runs": 3, "usd": pytest.approx(0.6)}
    assert default["model"] is None


@POSIX
async def test_a_finding_of_the_doctor_is_repaired(running: OpenGateway):
    async with running() as here, browser(here) as client:
        (here.home / "config.json").chmod(0o644)
        repaired = (await client.post("/api/doctor", json={"fix": "files.private"}, timeout=120)).json()
        odd = await client.post("/api/doctor", json={"fix": "--offline"})

    assert [check["id"] for check in repaired["checks"]] == ["files.private"]
    assert [done["id"] for done in repaired["repaired"]] == ["files.private"]
    assert (here.home / "config.json").stat().st_mode & 0o777 == 0o600
    assert odd.status_code == 400


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


async def test_now_shows_channels_turns_jobs_and_money(running: OpenGateway):
    async with running("hi") as here, browser(here) as client:
        await say(client, "hello")
        used = (await client.get("/api/usage", params={"by": "cause"})).json()
        now = (await client.get("/api/now")).json()
        usage = (await client.get("/api/usage", params={"by": "model"})).json()
        wrong = await client.get("/api/usage", params={"by": "colour"})

    assert now["report"]["channels"]["toy"]["state"] == "up"
    assert {"web", "api", "cli"}.isdisjoint(now["report"]["channels"])
    assert now["turns"] == []
    assert {"today", "month", "limits"} <= now["usage"].keys()
    assert (usage["by"], wrong.status_code) == ("model", 400)
    assert used["today"]["calls"] >= 1


async def test_a_turn_is_shown_step_by_step_with_what_the_model_was_sent(running: OpenGateway):
    async with running(calls(("list_dir", {"path": "."})), "two files") as here, browser(here) as client:
        await say(client, "what is here?")
        [turn] = (await client.get("/api/sessions/web:one/turns")).json()["turns"]
        path = f"/api/sessions/web:one/turns/{turn['turn_id']}"
        while "messages" not in (prompt := (await client.get(f"{path}/prompt")).json()):
            await asyncio.sleep(0.02)  # traces are written behind the turn
        [turn] = (await client.get("/api/sessions/web:one/turns")).json()["turns"]
        whole = (await client.get(path)).json()
        none = await client.get("/api/sessions/web:two/turns")

    assert (turn["message"], turn["steps"], turn["outcome"]) == ("what is here?", 2, "answered")
    assert whole["steps"][0]["calls"][0]["name"] == "list_dir"
    assert "what is here?" in json.dumps(prompt["messages"])
    assert none.status_code == 404


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


async def test_a_turn_is_asked_again_of_another_model_in_a_branch(running: OpenGateway):
    async with running("first", "second", "third") as here, browser(here) as client:
        for text in ("begin", "what now?"):
            await say(client, text)
        turn = (await client.get("/api/sessions/web:one/turns")).json()["turns"][1]
        asked = (await client.get(f"/api/sessions/web:one/turns/{turn['turn_id']}")).json()["asked"]
        models = (await client.get("/api/models")).json()["models"]
        before = (await client.get("/api/sessions/web:two/rows")).json()["feed"]
        branch = {"session": "web:one", "before": asked["n"], "model": "other-model"}
        message = {"id": "message-9", "text": asked["text"], "branch_from": branch}
        for _ in range(2):
            sent = await client.post("/api/sessions/web:two/messages", json=message)
        await follow(client, before, "turn_ended")
        rows = (await client.get("/api/sessions/web:two/rows")).json()
        used = (await client.get("/api/usage", params={"by": "model"})).json()["rows"]

    assert asked["text"] == "what now?"
    assert "default" in models
    assert sent.status_code == 202
    assert [row["text"] for row in rows["rows"]] == ["begin", "first", "what now?", "third"]
    assert rows["branch_of"] == "web:one"
    assert {each["model"]: each["calls"] for each in used} == {"scripted": 2, "other-model": 1}


async def test_a_setting_is_changed_checked_and_its_secret_never_shown(running: OpenGateway):
    async with running() as here, browser(here) as client:
        changed = await client.patch("/api/config", json={"key": "agents.defaults.maxToolIterations", "value": 7})
        key = await client.patch("/api/config", json={"key": "providers.openai.apiKey", "value": "sk-very-secret-key"})
        wrong = await client.patch("/api/config", json={"key": "gateway.port", "value": "many"})
        shown = await client.get("/api/config")
        await eventually(lambda: here.gateway.runtime.config.agents.defaults.max_tool_iterations == 7)
        removed = await client.patch("/api/config", json={"key": "agents.defaults.maxToolIterations"})
        none_waits = (await client.get("/api/config")).json()["waiting"]
        await client.patch("/api/config", json={"key": "gateway.port", "value": 4000})
        port_waits = (await client.get("/api/config")).json()["waiting"]
        schema = (await client.get("/api/config/schema")).json()

    assert [each.status_code for each in (changed, key, wrong, removed)] == [200, 200, 400, 200]
    assert (set(none_waits) <= {"agents.defaults.maxToolIterations"}, "gateway.port" in port_waits) == (True, True)
    assert "gateway.port" in wrong.json()["error"]
    assert "sk-very-secret-key" not in shown.text + key.text
    assert "agents" in schema["properties"]


@pytest.mark.parametrize("path", ["skills", "tools", "servers", "channels", "commands", "goals", "memory/dreams"])
async def test_what_there_is_is_listed(running: OpenGateway, path: str):
    async with running() as here, browser(here) as client:
        answer = await client.get(f"/api/{path}")

    assert answer.status_code == 200
    assert isinstance(next(iter(answer.json().values())), list)


async def test_a_device_is_paired_by_a_link_of_another_listed_and_signed_out(running: OpenGateway):
    async with running() as here, browser(here) as client:
        link = (await client.post("/api/devices")).json()
        url = link["url"]
        base = str(client.base_url)
        async with httpx.AsyncClient(base_url=base, headers={"Origin": base.rstrip("/")}, trust_env=False) as phone:
            key = url.partition("#k=")[2]
            paired = [(await phone.post("/api/pair", json={"key": key})).status_code for _ in range(2)]
            devices = (await client.get("/api/devices")).json()["devices"]
            [other] = [device["name"] for device in devices if not device["current"]]
            signed_out = await client.delete(f"/api/devices/{other}")
            after = await phone.get("/api/me")

    assert {len(row) for row in link["qr"]} == {len(link["qr"])}
    assert paired == [200, 403]
    assert (signed_out.status_code, after.status_code) == (200, 401)


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
