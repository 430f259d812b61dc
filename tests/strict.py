"""Two checkers of a history, as strict as the strictest servers: each problem in a sentence, none where it is legal."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def openai_problems(messages: Sequence[Any]) -> list[str]:
    """What the chat completions API would refuse."""
    problems: list[str] = []
    owed: list[str] = []
    for place, row in enumerate(messages):
        role = row.get("role") if isinstance(row, dict) else None
        if role not in {"system", "user", "assistant", "tool"}:
            problems.append(f"{place}: unknown role {role!r}")
            continue
        if owed and role != "tool":
            problems.append(f"{place}: calls {owed} have no result")
            owed = []
        if role == "tool":
            if row.get("tool_call_id") not in owed:
                problems.append(f"{place}: a result nobody asked for")
            else:
                owed.remove(row["tool_call_id"])
        if role != "assistant" and "tool_calls" in row:
            problems.append(f"{place}: only the assistant calls tools")
        if role == "assistant" and "tool_calls" in row:
            problems.extend(f"{place}: {problem}" for problem in _call_problems(row["tool_calls"]))
            owed = [call["id"] for call in row["tool_calls"] if isinstance(call, dict) and "id" in call]
        problems.extend(f"{place}: {problem}" for problem in _content_problems(row, role))
        if not _encodes(row):
            problems.append(f"{place}: not UTF-8")
    if owed:
        problems.append(f"end: calls {owed} have no result")
    return problems


def anthropic_problems(messages: Sequence[Any]) -> list[str]:
    """What the messages API would refuse, results being part of the user's turn there."""
    problems: list[str] = []
    head = next((place for place, row in enumerate(messages) if row.get("role") != "system"), len(messages))
    body = messages[head:]
    if any(row.get("role") == "system" for row in body):
        problems.append("a system row behind the head")
    if body and body[0].get("role") != "user":
        problems.append("the first message must be the user's")
    seen: set[str] = set()
    before = ""
    owed: list[str] = []
    for place, row in enumerate(body, head):
        role = row.get("role")
        if role in {"user", "assistant"} and role == before:
            problems.append(f"{place}: two {role} rows in a row")
        if role == "tool":
            if not owed or row.get("tool_call_id") != owed[0]:
                problems.append(f"{place}: a result out of place")
            else:
                owed.pop(0)
        elif owed:
            problems.append(f"{place}: tool_use without tool_result")
            owed = []
        if role == "assistant":
            owed = [call["id"] for call in row.get("tool_calls") or ()]
            problems.extend(f"{place}: id {call_id!r} used before" for call_id in owed if call_id in seen)
            seen.update(owed)
        problems.extend(f"{place}: {problem}" for problem in _blank_text(row))
        before = str(role)
    if owed:
        problems.append("end: tool_use without tool_result")
    return problems


def _call_problems(calls: Any) -> Iterable[str]:
    if not isinstance(calls, list) or not calls:
        yield "tool_calls must be a list that is not empty"
        return
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    if len(set(map(str, ids))) != len(calls):
        yield "ids of calls are not unique"
    for call in calls:
        if not isinstance(call, dict) or call.get("type") != "function" or not isinstance(call.get("function"), dict):
            yield f"not a call: {call!r}"
            continue
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield "a call without an id"
        if not isinstance(call["function"].get("name"), str) or not _NAME.match(call["function"]["name"]):
            yield f"a bad name: {call['function'].get('name')!r}"
        try:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield "arguments are not an object"
        except (ValueError, TypeError, KeyError):
            yield f"arguments are not JSON text: {call['function'].get('arguments')!r}"


def _content_problems(row: dict[str, Any], role: str) -> Iterable[str]:
    content = row.get("content")
    if content is None:
        if role != "assistant" or not row.get("tool_calls"):
            yield "content is null"
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        yield f"content is neither text nor blocks: {content!r}"
        return
    allowed = {"user": {"text", "image_url", "input_audio", "file"}, "tool": {"text", "image_url"}}.get(role, {"text"})
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in allowed:
            yield f"a block of type {kind!r}"
        elif kind == "text" and not isinstance(block.get("text"), str):
            yield "a text block without text"
        elif kind == "image_url" and not isinstance((block.get("image_url") or {}).get("url"), str):
            yield "an image without url"


def _blank_text(row: dict[str, Any]) -> Iterable[str]:
    content = row.get("content")
    texts = [content] if isinstance(content, str) else [block.get("text", "x") for block in content or ()]
    if any(not text.strip() for text in texts):
        yield "text is blank"


def _encodes(row: dict[str, Any]) -> bool:
    sent = {name: row.get(name) for name in ("content", "tool_calls", "tool_call_id", "name", "reasoning_content")}
    try:
        json.dumps(sent, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True
