"""Small work on text: decode what came as bytes, read and mend JSON, cut what is too long, name what is near."""

import json
import locale
from collections.abc import Iterable, Iterator
from typing import Any, cast

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def decode(data: bytes) -> str:
    """Bytes of unknown making as text: UTF-8, else the host's own encoding, else UTF-8 with marks for what is not."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    host = locale.getpreferredencoding(False)
    if host.lower().replace("-", "") not in {"utf8", "ascii", "ansi_x3.41968", "usascii"}:
        try:
            return data.decode(host)
        except (UnicodeDecodeError, LookupError):
            pass
    return data.decode(errors="replace")


def mended_json(text: str) -> object:
    """What broken JSON was meant to say. Raises ValueError where nobody can tell."""
    from json_repair import repair_json  # only broken JSON pays for its import

    try:
        return cast("object", repair_json(text, return_objects=True))
    except Exception as error:  # a repairer of anything may fail on anything
        raise ValueError(f"not JSON ({error})") from error


def json_objects(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects in lines of JSON; a line that is none (half a one, of a crash) is passed over. Never raises."""
    for line in data.split(b"\n"):
        try:
            found = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def sound_json(told: object, *, indent: int | None = None) -> str:
    """JSON that can be written: half a character, which a model or a platform may send, is escaped and read again so.

    What JSON does not know is written as text.
    """
    separators = None if indent else (",", ":")
    text = json.dumps(told, ensure_ascii=False, indent=indent, separators=separators, default=str)
    return text if is_sound(text) else json.dumps(told, indent=indent, separators=separators, default=str)


def is_sound(text: str) -> bool:
    """Whether it can be written: none of its characters is a half."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clip(text: str, limit: int, note: str = "{left_out} characters left out") -> str:
    """The text where it fits in `limit` characters, else its head and its tail with a note between them.

    `{left_out}` in the note becomes the number of characters that are missing. Never longer than `limit`, as long as
    the note itself fits.
    """
    if len(text) <= limit:
        return text
    room = limit - len(f"\n\n[{note.replace('{left_out}', str(len(text)))}]\n\n")
    head = max(0, room // 3)
    tail = max(0, room - head)
    said = note.replace("{left_out}", str(len(text) - head - tail))
    return f"{text[:head]}\n\n[{said}]\n\n{text[len(text) - tail :]}"


def clip_line(line: str, limit: int) -> str:
    """One line, its end cut off and counted where it is longer than `limit`."""
    return line if len(line) <= limit else f"{line[:limit]}... [{len(line) - limit} more characters]"


def in_a_tag(text: str) -> str:
    """On one line and without brackets, so that a tag such as `[transcription: text]` ends where it seems to end."""
    return " ".join(text.replace("[", "(").replace("]", ")").split())


def nearest(name: str, names: Iterable[str], count: int = 3, *, cutoff: float = 0.6) -> list[str]:
    """The names that look most like this one, best first; none where none is near. Case is no difference.

    `cutoff` is how much of two names must be alike, from 0 to 1.
    """
    from difflib import get_close_matches  # only mistakes pay for it

    by_lower: dict[str, str] = {}
    for known in names:
        by_lower.setdefault(known.lower(), known)
    return [by_lower[found] for found in get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff)]


def human_size(count: int) -> str:
    """A number of bytes as a person says it."""
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 line`, `2 lines`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
