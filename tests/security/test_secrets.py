"""Secrets are taken out, whatever they look like and wherever they stand; the rest is left as it is."""

import json
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.secrets import (
    LOOK_AHEAD,
    MARK,
    RedactedOutput,
    SecretIndex,
    StreamRedactor,
    find_secret,
    learn_secrets,
    named_secrets,
    redact,
    redact_all,
    redact_head,
    redact_known,
    redact_named,
    redact_texts,
    redact_value,
    secrets_scope,
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl"

SHAPES = {
    "openai": ("sk-proj-abcdef123456", "the key sk-proj-abcdef123456 is wrong"),
    "stripe": ("sk_live_abcdef123456", "STRIPE=sk_live_abcdef123456"),
    "github": ("ghp_abcdefghijklmnop1234", "git push https://ghp_abcdefghijklmnop1234@github.com/a/b"),
    "github, fine": ("github_pat_11ABCDEFG0123456", "github_pat_11ABCDEFG0123456"),
    "gitlab": ("glpat-abcdefghij_klm", "glpat-abcdefghij_klm"),
    "aws": ("AKIAIOSFODNN7EXAMPLE", "id AKIAIOSFODNN7EXAMPLE ok"),
    "slack": ("xoxb-1234-5678-abcdef", "xoxb-1234-5678-abcdef"),
    "slack app": ("xapp-1-A0B1-abcdef", "xapp-1-A0B1-abcdef"),
    "google": ("AIzaSyA1234567890abcdefghijklmn", "key=AIzaSyA1234567890abcdefghijklmn"),
    "hugging face": ("hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    "telegram": ("123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", "bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/x"),
    "jwt": (JWT, f"cookie {JWT};"),
    "bearer": ("abcdef.ghi-jkl", "Authorization: Bearer abcdef.ghi-jkl"),
    "basic": ("dXNlcjpwYXNz", "curl -H 'Authorization: Basic dXNlcjpwYXNz' x"),
    "address": ("s3cret", "postgres://me:s3cret@db/x"),
    "pem": ("MIIEpAIBAAKCAQEA", "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"),
    "pem, cut": ("MIIEpAIBAAKCAQEA", "-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA"),
    "option": ("hunter2", "mysql --db-password hunter2 -u me"),
    "variable": ("hunter2", "PGPASSWORD=hunter2 psql"),
    "json": ('hun"ter2', json.dumps({"token": 'hun"ter2', "a": 1})),
    "json in json": ("hunter2", json.dumps(json.dumps({"client_secret": "hunter2"}))),
    "header": ("hunter2", "curl -H 'X-API-Key: hunter2' -H 'Cookie: sid=hunter2' http://x"),
    "connection string": ("hunter2", "AccountName=me;AccountKey=hunter2;EndpointSuffix=x"),
    "quoted": ("hunter 2", "password='hunter 2' rest"),
    "query": ("hunter2", "GET /x?access_token=hunter2&a=1"),
}


@pytest.mark.parametrize(("secret", "text"), SHAPES.values(), ids=SHAPES)
def test_what_looks_or_is_called_like_a_secret_is_taken_out(secret, text):
    shown = redact_named(text)

    assert secret not in shown
    assert secret[4:] not in shown
    assert MARK in shown


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096, and 12 tokens are left",
        "the compass points north: follow it",
        "http://localhost:8080/x?a=b@c",
        "mail ann@example.com about the keyboard",
        "task-management and ask-me-anything are words",
        "ls -la /home/user && git log --author=Ann",
        "git@github.com:owner/repo.git",
        "deadbeef" * 8,
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact_named(text) == text


@pytest.mark.parametrize(
    "said",
    ["Incorrect API key provided: sk-abcdefgh12345678.", "key sk-abcd****5678 is wrong", "Bearer abcdefghijklmnop"],
)
def test_a_key_that_a_server_repeats_is_not_told(said):
    shown = redact(said, ["abcdefgh12345678"])

    assert "abcd" not in shown
    assert MARK in shown


def test_the_values_of_config_and_environment_are_known_by_the_names_they_stand_under():
    settings = {
        "providers": {"custom": {"api_key": "plain config key", "api_base": "http://127.0.0.1", "proxy": None}},
        "channels": {"email": {"imap_password": "pw 12", "allow_from": ["somebody"]}},
        "tools": {
            "web": {"proxy": "http://me:in-the-url@proxy:1"},
            "mcp_servers": {
                "x": {"args": ["--token", "from-args-1"], "env": {"HOME_DIR": "/usr/bin", "X_SECRET": "env-of-mcp"}},
                "y": {"headers": {"Authorization": "Bearer from-a-header", "X-Title": "my program"}},
            },
        },
        "names": {"ollama": {"api_key": "ollama"}, "none": {"api_key": "none"}},
    }
    environ = {"ACME_API_KEY": "acme-acme", "PWD": "/home/somebody", "OLDPWD": "/home/else", "DB_PWD": "db-pwd-1"}

    assert {*named_secrets(settings, environ)} == {
        "plain config key", "pw 12", "in-the-url", "from-args-1", "env-of-mcp", "Bearer from-a-header", "from-a-header",
        "acme-acme", "db-pwd-1",
    }  # fmt: skip


def test_what_stands_for_no_key_and_where_a_key_is_kept_are_no_secrets(tmp_path):
    kept = tmp_path / "gcp.json"
    kept.write_text("{}")
    words = ["lm-studio", "not-needed", "sk-no-key-required", "dummy-key", "your-api-key", "xxxxxxxx", "no-key"]
    words.append(str(kept))

    assert named_secrets({f"name{index}": {"api_key": word} for index, word in enumerate(words)}, {}) == {}
    assert named_secrets({"a": {"api_key": "/a/b+c1d2e3f4"}}, {"X_TOKEN": "x-token-1"}) == {
        "/a/b+c1d2e3f4": "a.api_key",
        "x-token-1": "X_TOKEN",
    }


def test_under_a_telling_name_nothing_is_left():
    value = {"api_key": "k", "headers": {"Cookie": "a=b"}, "author": "Ann", "auth": ["x"], "path": "a.txt", "n": 3}

    assert redact_value(value, 100) == {
        "api_key": MARK,
        "headers": {"Cookie": MARK},
        "author": "Ann",
        "auth": MARK,
        "path": "a.txt",
        "n": 3,
    }


def test_a_schema_may_describe_a_token():
    schema = {"properties": {"token": {"type": ["string", "a sk-abcdefgh"], "description": "like sk-abcdefgh"}}}

    assert redact_texts(schema) == {
        "properties": {"token": {"type": ["string", f"a {MARK}"], "description": f"like {MARK}"}}
    }


@given(st.integers(0, 400), st.sampled_from(["sk-abcdefghijklmnopqrstuvwx", "known value of the config", JWT]))
def test_a_secret_that_is_cut_in_two_is_not_half_told(before, secret):
    with secrets_scope(lambda: {"known value of the config": "a.key"}):
        shown = redact_head("x " * before + secret + " y" * 400, 200)

    assert secret[:8] not in shown
    assert shown.endswith("more characters]")


def test_no_half_of_a_secret_comes_into_sight_where_others_before_it_were_taken_out():
    secret = "A1b2" * 40
    look_ahead = max(LOOK_AHEAD, SecretIndex({secret: ""}).longest)
    many = look_ahead // 100 + 5
    limit = many * 161 + 100
    between = "x" * (limit + look_ahead - many * 161 - 80)

    with secrets_scope(lambda: {secret: "a.key"}):
        assert "A1b2" not in redact_head(f"{secret} " * many + between + secret + "y" * 400, limit)


def test_a_short_key_of_a_request_is_taken_out_and_a_syllable_is_not():
    assert redact("key k-7x was refused", ["k-7x"]) == f"key {MARK} was refused"
    assert redact("no key", ["no", ""]) == "no key"


@pytest.mark.parametrize(
    "head",
    ["", *(pytest.param(head, marks=pytest.mark.slow) for head in ('token: "', 'token: \\"', "--a-token ", "a://"))],
)
@pytest.mark.parametrize(
    "piece",
    [
        "token",
        "--a-",
        "://a:",
        '"token": "',
        "eyJ",
        "sk-",
        "password ",
        "-----BEGIN PRIVATE KEY",
        "\\",
        '\\\\"',
        " ",
        ":",
    ],
)
def test_no_text_makes_it_slow(head, piece):
    text = head + piece * (40_000 // len(piece))
    began = time.process_time()

    redact_named(text)

    assert time.process_time() - began < 1  # far less; the naive pattern takes minutes


SECRET = 'sk/7+f3~"käy" &x9=Zq'
ENCODED = {
    "as it is": SECRET,
    "json": json.dumps(SECRET)[1:-1],
    "json, unicode": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "in a path": quote(SECRET),
    "in an address": quote(SECRET, safe=""),
    "in a form": urlencode({"q": SECRET})[2:],
    "backwards": SECRET[::-1],
    "in capitals": SECRET.upper(),
    "with its cases swapped": SECRET.swapcase(),
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
    "base64": b64encode(SECRET.encode()).decode().rstrip("="),
    "base64 for addresses": urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    "over two lines": f"{SECRET[:9]}\r\n{SECRET[9:]}",
}


@pytest.mark.parametrize("encoded", ENCODED.values(), ids=ENCODED)
def test_known_value_is_taken_out_in_every_encoding(encoded):
    known = SecretIndex({SECRET: "a.key"})

    shown = known.redact(f"before {encoded} after")

    assert MARK in shown
    assert (shown.startswith("before "), shown.endswith(" after")) == (True, True)
    assert len(shown) <= len(f"before {MARK} after") + 2
    assert known.find(f"x{encoded}y") == "a.key"


@given(st.binary(max_size=70), st.binary(max_size=70), st.sampled_from([b64encode, urlsafe_b64encode, encodebytes]))
def test_known_value_is_found_in_the_base64_of_what_it_stands_in(before, after, encode):
    encoded = encode(before + SECRET.encode() + after).decode()

    shown = SecretIndex({SECRET: ""}).redact(f"{encoded}\nand more")

    assert MARK in shown
    assert shown.endswith("and more")


@given(st.text(max_size=200))
def test_text_without_a_known_value_is_the_same_text(text):
    known = SecretIndex({"a-value-nobody-writes": "", "another one": ""})

    assert known.redact(text) == text
    assert known.find(text) is None


def test_line_of_a_value_of_several_lines_is_taken_out_alone():
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7", "x=="]
    known = SecretIndex({"\n".join(lines): "deploy.key"})

    shown = known.redact("\n".join(f"    | {line}" for line in lines))

    assert shown == f"    | {MARK}\n    | {MARK}\n    | {MARK}\n    | x=="
    assert known.find(lines[1][::-1]) == "deploy.key"


def test_short_value_is_looked_for_as_it_is_only_and_of_two_that_begin_alike_no_end_stays():
    known = SecretIndex(dict.fromkeys(["ab1d", "abc", "abcdefgh", "abcdefgh-and-more"], ""))

    assert known.redact("ab1d d1ba abc ab\n1d x abcdefgh-and-more") == f"{MARK} d1ba abc ab\n1d x {MARK}"


HELD = "a secret of the owner's"


def test_values_are_known_while_they_are_held_and_nobody_is_asked_before_a_text_comes():
    asked = []

    def load():
        asked.append("asked")
        return {HELD: "a.key"}

    with secrets_scope(load):
        assert asked == []
        assert redact_known(f"it is {HELD}") == "it is [key]"
        assert find_secret(f"it is {HELD}".encode()) == "a.key"
        learn_secrets({"renewed-token-1": "an account"})
        assert redact_known(f"renewed-token-1 {HELD}") == "[key] [key]"
        assert find_secret("renewed-token-1") == "an account"

    assert asked == ["asked"]
    assert redact_known(f"it is {HELD}") == f"it is {HELD}"


def test_ordinary_text_keeps_what_only_looks_like_a_key():
    assert redact_known("password: x, sk-abcdefghijkl") == "password: x, sk-abcdefghijkl"
    assert redact_all("password: x, sk-abcdefghijkl") == "password: x, [key]"


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_stream_of_bytes_is_clean_wherever_its_pieces_end(size):
    lines = (b"\xff\x00 line\n" * 5 + HELD.encode() + b"|") * 4
    wrapped = encodebytes((b"x" * 500 + HELD.encode()) * 9)
    with secrets_scope(lambda: {HELD: "a.key"}):
        passed = []
        for data in (lines, wrapped):
            stream = RedactedOutput()
            pieces = [stream.feed(data[at : at + size]) for at in range(0, len(data), size)]
            passed.append(b"".join([*pieces, stream.end()]))

    assert passed[0] == (b"\xff\x00 line\n" * 5 + b"[key]|") * 4
    assert passed[1].count(b"[key]") == 9


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_stream_of_text_is_clean_wherever_its_pieces_end_and_nothing_else_waits(size):
    said = f"My secretary says: {HELD}{HELD[:9]}... {HELD[::-1]}, or 61207365, a se"
    with secrets_scope(lambda: {HELD: "a.key", HELD[:8]: "another"}):
        text, other = StreamRedactor(), StreamRedactor()

        pieces = [text.feed(said[at : at + size]) for at in range(0, len(said), size)]
        shown = other.feed("Words with an end.")

    assert "".join([*pieces, text.end()]) == "My secretary says: [key][key] ... [key], or 61207365, a se"
    assert shown == "Words with an end."


def test_stream_shows_no_half_of_a_secret_whose_end_begins_another():
    with secrets_scope(lambda: dict.fromkeys(["xyzabc", "abcdef"], "")):
        stream = StreamRedactor()

        assert stream.feed("xyzabcd") + stream.feed(" or abc") + stream.feed("def") + stream.end() == "[key]d or [key]"


@given(st.lists(st.text("abx", min_size=4, max_size=9), min_size=1, max_size=4), st.text("abx", max_size=40), st.data())
def test_stream_shows_what_the_whole_text_would(values, text, data):
    with secrets_scope(lambda: dict.fromkeys(values, "")):
        stream, shown, begin = StreamRedactor(), "", 0
        while begin < len(text):
            end = begin + data.draw(st.integers(1, 9))
            shown += stream.feed(text[begin:end])
            begin = end
        shown += stream.end()

        assert not any(value in shown for value in values)
