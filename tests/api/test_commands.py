"""`nanobot api key` and `nanobot serve`, as processes."""

import json
from typing import Any

import httpx

from nanobot.testing.model_server import FakeModels, Say
from tests.support.home import POSIX, Home
from tests.support.processes import until_served
from tests.support.toy_gateway import free_port


def test_keys_are_made_listed_and_revoked(tmp_path: Any):
    home = Home(tmp_path)
    made = home.run("api", "key", "add", "laptop")
    again = home.run("api", "key", "add", "laptop")
    guest = home.run("api", "key", "add", "kitchen", "--role", "guest")
    person = home.run("api", "key", "add", "radio", "--as", "telegram:123")
    refused = [
        home.run("api", "key", "add", "tv", "--as", "telegram:123", "--role", "owner"),
        home.run("api", "key", "add", "tv", "--as", "nowhere:123"),
    ]
    listed = json.loads(home.run("api", "key", "list", "--json").out)
    revoked = home.run("api", "key", "revoke", "laptop")
    unknown = home.run("api", "key", "revoke", "laptpo")

    assert len(made.out.split()) == 1
    assert (again.code, "revoke laptop" in again.complaint) == (2, True)
    keys = [(key["name"], key["role"], key["as"]) for key in listed]
    assert keys == [("laptop", "owner", ""), ("kitchen", "guest", ""), ("radio", "guest", "telegram:123")]
    assert made.out.strip() not in json.dumps(listed) + guest.out
    assert (person.code, [each.code for each in refused]) == (0, [2, 2])
    assert revoked.code == 0
    assert unknown.code == 1


@POSIX
def test_serve_answers_without_channels_and_says_where_it_runs(tmp_path: Any):
    with FakeModels(default=Say("Hello back")) as server:
        home, port = Home(tmp_path, server, gateway={"port": free_port()}), free_port()
        process = home.start("serve", "--port", str(port))
        try:
            until_served(process, port)
            key = home.run("api", "key", "add", "laptop").out.strip()
            body = {"messages": [{"role": "user", "content": "hello"}]}
            url = f"http://127.0.0.1:{port}/v1"
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, trust_env=False, timeout=30)
            second = home.run("serve")
            home.run("api", "key", "revoke", "laptop")
            refused = httpx.get(f"{url}/models", headers=headers, trust_env=False)
        finally:
            process.kill()
            process.communicate()

    assert answer.json()["choices"][0]["message"]["content"] == "Hello back"
    assert (second.code, url in second.out) == (0, True)
    assert refused.status_code == 401
