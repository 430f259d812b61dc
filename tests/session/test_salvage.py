"""Whatever bytes a session file holds: reading never raises, and no sound line is lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.repair import legalise
from nanobot.session.manager import SessionManager
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.session.support import KEY, contents, fresh, saved

META = b'{"_type": "metadata", "key": "cli:direct", "created_at": "2026-01-01T00:00:00", "metadata": {}}'
SOUND = [
    json.dumps({"role": role, "content": f"sound {at}"}).encode() for at, role in enumerate(["user", "assistant"] * 3)
]
CALL = (
    b'{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}]}'
)

BAD_LINES: dict[str, bytes] = {
    "half": SOUND[0][:20],
    "half a call": CALL[:-15],
    "zeros": b"\x00" * 4096,
    "bad utf-8": b"\xff\xfe\xfa\x80",
    "text": b"hello there",
    "number": b"42",
    "list": b"[1, 2]",
    "null": b"null",
    "text in quotes": b'"text"',
    "NaN": b"NaN",
    "deep": b'{"a":' * 5000,
    "deep list": b"[" * 100_000,
    "no role": b'{"content": "x"}',
    "role of a number": b'{"role": 5, "content": "x"}',
    "role of null": b'{"role": null}',
    "empty object": b"{}",
    "a huge number": b'{"role": "user", "content": ' + b"9" * 5000 + b"}",
    "control": b'{"role": "user", "content": "a\x01b"}',
    "half an escape": b'{"role": "user", "content": "\\ud8"}',
    "single quotes": b"{'role': 'user'}",
    "trailing comma": b'{"role": "user", "content": "x",}',
    "record cut": META[:30],
    "many braces": b'{"' * 3000,
}
ODD_LINES: dict[str, bytes] = {
    "content of a number": b'{"role": "user", "content": 5}',
    "content of a list": b'{"role": "user", "content": [1, null, {"type": 3}]}',
    "calls of text": b'{"role": "assistant", "content": null, "tool_calls": "x"}',
    "calls of junk": b'{"role": "assistant", "content": null, "tool_calls": [1, {}, {"function": 3}]}',
    "unknown role": b'{"role": "robot", "content": "x"}',
    "lone surrogate": b'{"role": "user", "content": "\\ud83d"}',
    "NaN inside": b'{"role": "user", "content": "x", "cost": NaN}',
    "huge line": b'{"role": "user", "content": "' + b"x" * 2_000_000 + b'"}',
    "odd record": b'{"_type": "metadata", "key": 5, "created_at": [], "metadata": 7, "offset": "x"}',
    "lost record": b'{"_type": "metadata", "last_consolidated": 0, "offset": 99999999, "messages": 0}',
    "record below zero": b'{"_type": "metadata", "last_consolidated": -5, "offset": -1, "messages": -3}',
    "a second record": META,
    "blank": b"   ",
    "nothing": b"",
}
FILES: dict[str, bytes] = {
    "BOM": b"\xef\xbb\xbf" + META + b"\n" + b"\n".join(SOUND) + b"\n",
    "CRLF": b"\r\n".join([META, *SOUND]) + b"\r\n",
    "two objects in a line": META + b"\n" + SOUND[0] + SOUND[1] + b"\n" + b" ".join(SOUND[2:]) + b"\n",
    "half a line glued to a whole one": META + b"\n" + SOUND[0][:25] + b"\n".join(SOUND) + b"\n",
    "half a call glued to a whole line": META + b"\n" + CALL[:-9] + b"\n".join(SOUND) + b"\n",
    "zeros before a line": META + b"\n" + b"\x00" * 512 + b"\n".join(SOUND) + b"\n",
    "zeros at the end": b"\n".join([META, *SOUND]) + b"\n" + b"\x00" * 4096,
    "no newline at the end": b"\n".join([META, *SOUND]),
    "no metadata": b"\n".join(SOUND) + b"\n",
    "metadata in the middle": b"\n".join([*SOUND[:3], META, *SOUND[3:]]) + b"\n",
}


def variants() -> Iterator[tuple[str, bytes]]:
    yield from FILES.items()
    for name, line in {**BAD_LINES, **ODD_LINES}.items():
        yield f"{name}, in the middle", b"\n".join([META, *SOUND[:3], line, *SOUND[3:]]) + b"\n"
        yield f"{name}, at the end", b"\n".join([META, *SOUND, line])
        yield f"{name}, first", b"\n".join([line, META, *SOUND])


VARIANTS = dict(variants())
LONG = ("deep", "huge line", "many braces")
"""Lines that take long to read, wherever they are."""


def load(folder: Path, data: bytes) -> tuple[Path, list[dict[str, Any]]]:
    """Read it as a library, as the engine and for show; all must see the same."""
    file = folder / "sessions" / "cli_direct.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    session = SessionManager(folder).get_or_create("cli:direct")
    history = session.get_history()
    assert SessionManager(folder).list_sessions()
    rows: list[dict[str, Any]] = list(session.messages)  # type: ignore[arg-type]
    shown = SessionManager(folder).read("cli:direct")
    assert shown is not None
    assert repr(shown.messages) == repr(rows)
    legal = legalise(history)
    assert openai_problems(legal) == anthropic_problems(legal) == []
    return file, rows


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.startswith(LONG) and not name.endswith("middle") else name
        for name in VARIANTS
    ],
)
def test_no_sound_line_is_lost_and_the_next_message_works(tmp_path: Path, name: str):
    file, rows = load(tmp_path, VARIANTS[name])

    saved(SessionManager(tmp_path), "next")

    texts = [row.get("content") for row in rows]
    assert [text for text in texts if str(text).startswith("sound")] == [f"sound {at}" for at in range(6)]
    assert file.read_bytes().startswith(VARIANTS[name])
    assert b'\n{"role": "user", "content": "next"' in file.read_bytes()  # a line of its own
    again = fresh(tmp_path).messages
    assert [row.get("content") for row in again][-1] == "next"
    assert len(again) == len(rows) + 1


def test_damage_before_the_cursor_does_not_move_it(tmp_path: Path):
    load(tmp_path, b"\n".join([META, SOUND[0], b"broken", *SOUND[1:]]) + b"\n")
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.last_consolidated = 4
    manager.save(session)

    again = fresh(tmp_path)

    assert again.last_consolidated == 4
    assert contents(again.get_history()) == contents(again.messages[4:]) == ["sound 4", "sound 5"]


def test_half_a_surrogate_pair_is_saved_and_read_back(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create("cli:direct")
    session.add_message("user", "\ud83d!")
    session.add_message("assistant", "x", cost=float("nan"), path=Path("a"))
    manager.save(session)

    assert contents(fresh(tmp_path)) == ["\ud83d!", "x"]


pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [*SOUND, META, CALL, *(line for line in BAD_LINES.values() if len(line) < 100), b"\n", b"\r\n", b"\x00"]
    ),
)


@given(st.lists(pieces, max_size=12).map(b"".join), st.lists(st.sampled_from(SOUND), max_size=4))
def test_any_bytes_load_and_keep_every_sound_line(junk: bytes, sound: list[bytes]):
    with TemporaryDirectory() as folder:
        _, rows = load(Path(folder), junk + b"\n" + b"\n".join(sound))

    texts = [row.get("content") for row in rows]
    expected = [json.loads(line)["content"] for line in sound]
    assert texts[len(texts) - len(expected) :] == expected
