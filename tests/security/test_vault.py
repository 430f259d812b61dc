"""What the process holds secret goes through no sink, for as long as it is held."""

from base64 import encodebytes

import pytest

from nanobot.security.encodings import SecretIndex
from nanobot.security.redaction import (
    RedactedOutput,
    StreamRedactor,
    find_secret,
    learn_secrets,
    redact_all,
    redact_known,
    secrets_scope,
)

SECRET = "a secret of the owner's"


def test_it_is_taken_out_while_it_is_held():
    with secrets_scope(lambda: {SECRET: "a.key"}):
        assert redact_known(f"it is {SECRET}") == "it is [key]"
        assert find_secret(f"it is {SECRET}".encode()) == "a.key"

    assert redact_known(f"it is {SECRET}") == f"it is {SECRET}"
    assert find_secret(SECRET) is None


def test_nobody_is_asked_before_a_text_comes():
    asked = []

    def ask():
        asked.append("asked")
        return {}

    with secrets_scope(ask):
        assert asked == []
        redact_known("x")
        redact_known("y")

    assert asked == ["asked"]


def test_what_is_learnt_later_is_held_too():
    with secrets_scope(lambda: {SECRET: "a.key"}):
        redact_known("asked by now")
        learn_secrets({"renewed-token-1": "an account"})

        assert redact_known(f"renewed-token-1 {SECRET}") == "[key] [key]"
        assert find_secret("renewed-token-1") == "an account"


def test_an_ordinary_text_keeps_what_only_looks_like_a_key():
    assert redact_known("password: x, sk-abcdefghijkl") == "password: x, sk-abcdefghijkl"
    assert redact_all("password: x, sk-abcdefghijkl") == "password: x, [key]"


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4096])
def test_a_stream_of_wrapped_base64_is_clean_wherever_its_pieces_end(size):
    data = encodebytes((b"x" * 500 + SECRET.encode()) * 9)
    with secrets_scope(lambda: {SECRET: "a.key"}):
        stream = RedactedOutput()

        passed = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size)) + stream.end()

    assert b"[key]" in passed
    assert SecretIndex([SECRET]).find("".join(passed.decode().split())) is None


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4096])
def test_a_stream_is_clean_wherever_its_pieces_end(size):
    data = (b"\xff\x00 line\n" * 5 + SECRET.encode() + b"|") * 4
    with secrets_scope(lambda: {SECRET: "a.key"}):
        stream = RedactedOutput()

        passed = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size)) + stream.end()

    assert passed == (b"\xff\x00 line\n" * 5 + b"[key]|") * 4


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_speech_is_clean_wherever_its_pieces_end_and_nothing_else_waits(size):
    said = f"My secretary says: {SECRET}{SECRET[:9]}... {SECRET[::-1]}, or 61207365, a se"
    with secrets_scope(lambda: {SECRET: "a.key", SECRET[:8]: "another"}):
        speech, other = StreamRedactor(), StreamRedactor()

        pieces = [speech.feed(said[at : at + size]) for at in range(0, len(said), size)]
        told = other.feed("Words with an end.")

    assert "".join([*pieces, speech.end()]) == "My secretary says: [key][key] ... [key], or 61207365, a se"
    assert told == "Words with an end."
