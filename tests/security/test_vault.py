"""What the process holds secret goes through no sink, for as long as it is held."""

from base64 import encodebytes

import pytest

from nanobot.security.spellings import KnownValues
from nanobot.security.vault import MaskedSpeech, MaskedStream, cleaned, holding, learn, masked, secret_in

SECRET = "a secret of the owner's"


def test_it_is_taken_out_while_it_is_held():
    with holding(lambda: {SECRET: "a.key"}):
        assert masked(f"it is {SECRET}") == "it is [key]"
        assert secret_in(f"it is {SECRET}".encode()) == "a.key"

    assert masked(f"it is {SECRET}") == f"it is {SECRET}"
    assert secret_in(SECRET) is None


def test_nobody_is_asked_before_a_text_comes():
    asked = []

    def ask():
        asked.append("asked")
        return {}

    with holding(ask):
        assert asked == []
        masked("x")
        masked("y")

    assert asked == ["asked"]


def test_what_is_learnt_later_is_held_too():
    with holding(lambda: {SECRET: "a.key"}):
        masked("asked by now")
        learn({"renewed-token-1": "an account"})

        assert masked(f"renewed-token-1 {SECRET}") == "[key] [key]"
        assert secret_in("renewed-token-1") == "an account"


def test_an_ordinary_text_keeps_what_only_looks_like_a_key():
    assert masked("password: x, sk-abcdefghijkl") == "password: x, sk-abcdefghijkl"
    assert cleaned("password: x, sk-abcdefghijkl") == "password: x, [key]"


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4096])
def test_a_stream_of_wrapped_base64_is_clean_wherever_its_pieces_end(size):
    data = encodebytes((b"x" * 500 + SECRET.encode()) * 9)
    with holding(lambda: {SECRET: "a.key"}):
        stream = MaskedStream()

        passed = b"".join(stream.passed(data[at : at + size]) for at in range(0, len(data), size)) + stream.end()

    assert b"[key]" in passed
    assert KnownValues([SECRET]).found_in("".join(passed.decode().split())) is None


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4096])
def test_a_stream_is_clean_wherever_its_pieces_end(size):
    data = (b"\xff\x00 line\n" * 5 + SECRET.encode() + b"|") * 4
    with holding(lambda: {SECRET: "a.key"}):
        stream = MaskedStream()

        passed = b"".join(stream.passed(data[at : at + size]) for at in range(0, len(data), size)) + stream.end()

    assert passed == (b"\xff\x00 line\n" * 5 + b"[key]|") * 4


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_speech_is_clean_wherever_its_pieces_end_and_nothing_else_waits(size):
    said = f"My secretary says: {SECRET}{SECRET[:9]}... {SECRET[::-1]}, or 61207365, a se"
    with holding(lambda: {SECRET: "a.key", SECRET[:8]: "another"}):
        speech, other = MaskedSpeech(), MaskedSpeech()

        pieces = [speech.passed(said[at : at + size]) for at in range(0, len(said), size)]
        told = other.passed("Words with an end.")

    assert "".join([*pieces, speech.end()]) == "My secretary says: [key][key] ... [key], or 61207365, a se"
    assert told == "Words with an end."
