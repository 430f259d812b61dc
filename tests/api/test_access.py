"""Who may use the API: never without a key, guests only in their own sessions."""

import httpx
import pytest

from nanobot.agent.scope import Scope
from nanobot.config.schema import ApiConfig
from nanobot.security.credentials import HttpRole
from nanobot.testing import calls
from tests.support.api_client import ask, base_url, program
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway
from tests.support.toy_gateway import free_port

PATHS = ("/chat/completions", "/responses", "/models", "/sessions", "/feed", "/capabilities", "/no-such-thing")


async def test_without_a_key_everything_is_refused(running: OpenGateway):
    async with running() as here, httpx.AsyncClient(base_url=base_url(here), trust_env=False, timeout=20) as client:
        answers = [await client.get(path) for path in PATHS]
        many = [await client.get("/models", headers={"Authorization": "Bearer wrong"}) for _ in range(10)]

    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert answers[0].json()["error"]["code"] == "invalid_api_key"
    assert "missing" in answers[0].json()["error"]["message"]
    assert "unknown or revoked" in many[0].json()["error"]["message"]
    assert many[-1].status_code == 429


async def test_the_token_of_the_config_is_an_owners_key(running: OpenGateway):
    async with running("hi", api={"token": "secret-token"}) as here:
        headers = {"Authorization": "Bearer secret-token"}
        async with httpx.AsyncClient(base_url=base_url(here), headers=headers, trust_env=False, timeout=20) as client:
            answer = await ask(client, "hello", session_id="old")

    assert answer["nanobot"]["session"] == "api:old"


async def test_a_guest_sees_only_its_own_sessions(running: OpenGateway):
    async with running("for the owner", "for the guest") as here, program(here) as owner:
        async with program(here, "kitchen", HttpRole.GUEST) as guest:
            owners = await ask(owner, "my secret", user="diary")
            guests = await ask(guest, "hello", user="radio")
            seen = [session["id"] for session in (await guest.get("/sessions")).json()["data"]]
            messages = await guest.get("/sessions/api:laptop:diary/messages")
            completion = await guest.get(f"/chat/completions/{owners['id']}")
            approval = await guest.post("/approvals/abc", json={"answer": "once"})
        row = here.gateway.runtime.sessions.get_or_create("api:kitchen:radio").get_history()[0]

    assert guests["nanobot"]["session"] == "api:kitchen:radio"
    assert seen == ["api:kitchen:radio"]
    assert (messages.status_code, completion.status_code, approval.status_code) == (404, 404, 403)
    assert (row["provenance"], row["scope"]) == ("person", "api:kitchen")


@pytest.mark.parametrize("is_in_config", [False, True], ids=["stored", "config"])
async def test_a_key_that_speaks_for_a_person_has_their_memory_and_nobody_elses(
    running: OpenGateway, *, is_in_config: bool
):
    files = (
        "memory/MEMORY.md",
        f"memory/{Scope('toy:8').folder}/MEMORY.md",
        f"memory/{Scope('toy:9').folder}/MEMORY.md",
    )
    reads = calls(*(("read_file", {"path": path}) for path in files), ("session_search", {"query": "vault"}))
    in_config = {"keys": {"radio": {"token": "radio-token", "as": "toy:8"}}} if is_in_config else {}
    async with running("noted", reads, "done", api=in_config) as here, program(here) as owner:
        for path, fact in zip(
            files, ("The vault code is 4711.", "Ann plays the cello.", "Bob fears cats."), strict=True
        ):
            file = here.gateway.runtime.workspace / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"- {fact}\n", encoding="utf-8")
        await ask(owner, "remember the vault", user="diary")
        async with program(here, "radio2" if is_in_config else "radio", HttpRole.GUEST, "toy:8") as guest:
            if is_in_config:
                guest.headers["Authorization"] = "Bearer radio-token"
            answer = await ask(guest, "what do you know?", user="chat")
            seen = [session["id"] for session in (await guest.get("/sessions")).json()["data"]]
            others = [await guest.get(f"/sessions/{key}/messages") for key in ("api:laptop:diary", "toy:8", "toy:7")]
            approval = await guest.post("/approvals/abc", json={"answer": "once"})
        system, results = str(here.model.requests[1][0]["content"]), str(here.model.requests[-1][-4:])
        row = here.gateway.runtime.sessions.get_or_create("api:radio:chat").get_history()[0]

    assert answer["nanobot"]["session"] == "api:radio:chat"
    assert "Ann plays the cello" in system
    assert "Ann plays the cello" in results
    for secret in ("4711", "fears cats", "remember the vault"):
        assert secret not in system + results
    assert seen == ["api:radio:chat"]
    assert ([other.status_code for other in others], approval.status_code) == ([404, 404, 404], 403)
    assert (row["provenance"], row["scope"]) == ("person", "toy:8")


def test_only_a_guests_key_speaks_for_a_person():
    with pytest.raises(ValueError, match="an owner's key acts as the owner"):
        ApiConfig(keys={"radio": {"token": "secret", "role": "owner", "as": "telegram:8"}})  # type: ignore[dict-item]
    assert "secret" not in repr(ApiConfig(keys={"radio": {"token": "secret-token"}}))  # type: ignore[dict-item]


async def test_the_api_has_a_port_of_its_own_without_the_page(running: OpenGateway):
    async with running("hi", api={"enabled": True, "port": free_port()}) as here, program(here) as client:
        assert here.gateway.api_http is not None
        url = here.gateway.api_http.url
        answer = await ask(client, "hello")
        models = await client.get(f"{url}/v1/models")
        page = await client.get(f"{url}/")

    assert answer["choices"][0]["message"]["content"] == "hi"
    assert models.json()["data"][0]["id"] == "nanobot"
    assert page.status_code == 404


async def test_only_a_listed_site_may_call_from_a_browser(running: OpenGateway):
    site, other = {"Origin": "https://chat.example.org"}, {"Origin": "https://evil.example"}
    asked = "authorization, content-type, X-Nanobot-Session, x-stainless-os, cookie, x-nanobot-*"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    async with running("hi", api={"allowOrigins": [site["Origin"]]}) as here, program(here) as client:
        allowed = await client.options("/chat/completions", headers={**site, **preflight})
        refused = await client.options("/chat/completions", headers={**other, **preflight})
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        streamed = await client.post("/chat/completions", json=body, headers=site)
        without_key = await client.get("/models", headers={**site, "Authorization": ""})
        elsewhere = await client.get("/models", headers=other)
        here.change(lambda config: config.pop("api"))
        await eventually(lambda: not here.gateway.runtime.config.api.allow_origins)
        withdrawn = await client.get("/models", headers=site)

    names = {name.strip() for name in allowed.headers["access-control-allow-headers"].split(",")}
    assert (allowed.status_code, refused.status_code, without_key.status_code) == (204, 403, 401)
    assert names == {"authorization", "content-type", "x-nanobot-session", "x-stainless-os"}
    assert "POST" in allowed.headers["access-control-allow-methods"]
    for answer in (allowed, streamed, without_key):
        assert answer.headers["access-control-allow-origin"] == site["Origin"]
        assert answer.headers["vary"] == "Origin"
    for answer in (refused, elsewhere, withdrawn):
        assert "access-control-allow-origin" not in answer.headers
    assert not any("credentials" in name for answer in (allowed, streamed) for name in answer.headers)


def test_every_site_cannot_be_listed():
    with pytest.raises(ValueError, match="is not an origin"):
        ApiConfig(allow_origins=["*"])


async def test_an_unknown_path_has_an_error_object(running: OpenGateway):
    async with running() as here, program(here) as client:
        answer = await client.post("/embeddings", json={})

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
