"""Histories to try a window on: turns with steps, results, pictures, steering and words of ours."""

import json
from typing import Any

from hypothesis import strategies as st

from nanobot.messages.types import ChatMessage, text_of

Rows = list[ChatMessage]


def words(size: int) -> str:
    """About so many characters of prose."""
    return ("plum tree and river " * (size // 20 + 1))[:size]


def asks(text: str, turn: str, **more: Any) -> ChatMessage:
    """A person's words."""
    return {"role": "user", "content": text, "turn_id": turn, **more}  # type: ignore[typeddict-item]


def step(name: str, turn: str, *sizes: int, arguments: str = '{"path": "a"}', tool: str = "read_file") -> Rows:
    """A step with a call and a result of each size."""
    calls: list[Any] = [
        {"id": f"{name}.{at}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        for at in range(len(sizes))
    ]
    rows: Rows = [{"role": "assistant", "content": f"step {name}", "tool_calls": calls, "turn_id": turn}]
    for at, size in enumerate(sizes):
        content = f"result {name}.{at} " + words(size)
        rows.append({"role": "tool", "tool_call_id": f"{name}.{at}", "name": tool, "content": content, "turn_id": turn})
    return rows


def turn(number: int, *sizes: int) -> Rows:
    """A whole turn: a question, a step for each size, an answer."""
    name = f"t{number}"
    rows: Rows = [asks(f"question {number}", name)]
    for at, size in enumerate(sizes):
        rows += step(f"{name}.{at}", name, size)
    return [*rows, {"role": "assistant", "content": f"answer {number}", "turn_id": name}]


def latest_words(rows: Rows) -> str:
    """What the person said last."""
    return next(text_of(row["content"]) for row in reversed(rows) if row["role"] == "user" and "origin" not in row)


SIZES = st.one_of(st.integers(0, 400), st.integers(0, 9_000))


@st.composite
def steps(draw: st.DrawFn, name: str, turn_id: str) -> Rows:
    """A step of any kind, and sometimes what the person or we say behind it."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
    arguments = json.dumps({"path": "a", "content": words(draw(SIZES))})
    rows = step(name, turn_id, *sizes, arguments=arguments)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        rows.append(asks(f"steer {name} " + words(draw(st.integers(0, 200))), turn_id))
    elif kind == 1:
        rows.append({"role": "user", "content": "Go on.", "origin": "system", "turn_id": turn_id})
    elif kind == 2:
        picture = [{"type": "image_url", "image_url": {"url": "/pictures/a.png"}}]
        rows[-1] = {**rows[-1], "content": picture}
    elif kind == 3:
        rows[0]["reasoning_content"] = words(draw(SIZES))
    elif kind == 4:
        rows.pop()  # the process died before the result
    return rows


@st.composite
def histories(draw: st.DrawFn, most_turns: int = 12) -> Rows:
    """A history that ends where a model is to be asked."""
    rows: Rows = []
    count = draw(st.integers(1, most_turns))
    for number in range(count):
        turn_id = f"t{number}"
        question = asks(f"question {number} " + words(draw(st.integers(0, 600))), turn_id)
        if draw(st.integers(0, 4)) == 0:
            question = asks("question in words\n[image: /pictures/b.png]", turn_id, media=["/pictures/b.png"])
        rows.append(question)
        for at in range(draw(st.integers(0, 4))):
            rows += draw(steps(f"{turn_id}.{at}", turn_id))
        if number < count - 1 and draw(st.integers(0, 5)):
            rows.append({"role": "assistant", "content": "answer " + words(draw(SIZES)), "turn_id": turn_id})
    return rows
