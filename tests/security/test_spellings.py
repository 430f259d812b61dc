"""A known value is found in every spelling that programs print it in, and nothing else is touched."""

import json
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.encodings import MARK, SecretIndex

SECRET = 'sk/7+f3~"käy" &x9=Zq'
SPELLED = {
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
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
def test_it_is_taken_out_however_it_is_spelled(spelled):
    known = SecretIndex([SECRET])

    shown = known.redact(f"before {spelled} after")

    assert MARK in shown
    assert (shown.startswith("before "), shown.endswith(" after")) == (True, True)
    assert len(shown) <= len(f"before {MARK} after") + 2
    assert known.find(f"x{spelled}y") is not None


@given(st.binary(max_size=70), st.binary(max_size=70), st.sampled_from([b64encode, urlsafe_b64encode, encodebytes]))
def test_it_is_found_in_the_base64_of_what_it_stands_in(before, after, encode):
    encoded = encode(before + SECRET.encode() + after).decode()

    shown = SecretIndex([SECRET]).redact(f"{encoded}\nand more")

    assert MARK in shown
    assert shown.endswith("and more")


def test_two_in_wrapped_base64_are_both_taken_out():
    secrets = ["first-secret-of-two-0123456789", "second-secret-of-two-9876543210"]
    for shift in range(60):
        encoded = encodebytes(b"x" * shift + " ".join(secrets).encode() + b"y" * 60).decode()

        for shown in (
            SecretIndex(secrets).redact(f"before\n{encoded}after"),
            SecretIndex(secrets).redact_bytes(f"before\n{encoded}after".encode()).decode(),
        ):
            assert shown in (f"before\n{MARK}\nafter", f"before\n{MARK}")  # it may look like the last line


@given(st.text(max_size=200))
def test_a_text_without_it_is_the_same_text(text):
    known = SecretIndex(["a-value-nobody-writes", "another one"])

    assert known.redact(text) == text
    assert known.find(text) is None
    assert known.redact_bytes(text.encode("utf-8", "replace")) == text.encode("utf-8", "replace")


def test_a_line_of_a_value_of_several_lines_is_taken_out_alone():
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7", "x=="]
    known = SecretIndex({"\n".join(lines): "deploy.key"})

    shown = known.redact("\n".join(f"    | {line}" for line in lines))

    assert shown == f"    | {MARK}\n    | {MARK}\n    | {MARK}\n    | x=="
    assert known.find(lines[1][::-1]) == "deploy.key"


def test_it_is_told_by_its_name():
    known = SecretIndex({"first-secret": "providers.openai.api_key", "second-secret": "GITHUB_TOKEN"})

    assert known.find("https://example.com/?q=second-secret") == "GITHUB_TOKEN"


def test_a_short_value_is_looked_for_as_it_is_only():
    known = SecretIndex(["ab1d", "abc"])

    assert known.redact("ab1d d1ba abc") == f"{MARK} d1ba abc"


def test_a_result_of_100_kb_costs_little():
    known = SecretIndex([f"secret-number-{index}-of-several" for index in range(8)])
    text = "def compare(left, right):\n    return sorted(left) == sorted(right)  # as it stands\n" * 1250

    times = []
    for _ in range(15):
        began = time.perf_counter()
        known.redact(text)
        times.append(time.perf_counter() - began)

    assert sorted(times)[3] < 0.005  # 0.7 ms where nobody else works
