"""Text helpers: decode bytes, parse and repair JSON, truncate, find similar names, format sizes and times."""

import json
import locale
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, SupportsIndex, cast

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def decode(data: bytes) -> str:
    """Decode bytes of unknown encoding: UTF-8, else the host's encoding, else UTF-8 with replacement characters."""
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


_MAX_BROKEN_JSON = 250_000
_MAX_READS = 10
"""How often the repair may read each character: usually 4 times, but quadratic for some texts."""


class _ReadLimitedText(str):
    """A string that raises ValueError after a number of reads."""

    reads_left: int

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        part = super().__getitem__(key)
        self.reads_left -= len(part) or 1
        if self.reads_left < 0:
            raise ValueError("it is too complex to repair")
        return part


def repair_json(text: str) -> object:
    """Parse broken JSON. Raises ValueError if it cannot be repaired in reasonable time."""
    from json_repair import repair_json  # imported for broken JSON only

    if len(text) > _MAX_BROKEN_JSON:
        raise ValueError(f"not JSON (and longer than {_MAX_BROKEN_JSON} characters, so it was not repaired)")
    limited = _ReadLimitedText(text)
    limited.reads_left = _MAX_READS * len(text) + 20_000
    try:
        value = cast("object", repair_json(limited, return_objects=True))
    except Exception as error:  # it may raise anything
        raise ValueError(f"not JSON ({error})") from error
    if limited.reads_left < 0:
        raise ValueError("not JSON (it is too complex to repair)")
    return value


def json_objects(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects in JSON lines; other lines, such as a partial one after a crash, are skipped. Never raises."""
    for line in data.split(b"\n"):
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def strict_json(value: object, *, indent: int | None = None) -> str:
    """JSON that can be encoded as UTF-8: lone surrogates, which models and platforms may send, are escaped.

    Values unknown to JSON are written as strings.
    """
    separators = None if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, default=str)
    return text if is_well_formed(text) else json.dumps(value, indent=indent, separators=separators, default=str)


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates written as escapes, so that it can be encoded as UTF-8."""
    return text if is_well_formed(text) else text.encode("utf-8", "backslashreplace").decode()


def is_well_formed(text: str) -> bool:
    """Whether the text can be encoded as UTF-8, without lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clip(text: str, limit: int, note: str = "{left_out} characters left out") -> str:
    """The text if it fits into `limit` characters, else its head and tail with a note between them.

    `{left_out}` in the note is replaced by the number of omitted characters. Never longer than `limit`, provided the
    note fits.
    """
    if len(text) <= limit:
        return text
    room = limit - len(f"\n\n[{note.replace('{left_out}', str(len(text)))}]\n\n")
    head = max(0, room // 3)
    tail = max(0, room - head)
    full_note = note.replace("{left_out}", str(len(text) - head - tail))
    return f"{text[:head]}\n\n[{full_note}]\n\n{text[len(text) - tail :]}"


def clip_line(line: str, limit: int) -> str:
    """One line, truncated at `limit` with a count of the omitted characters."""
    return line if len(line) <= limit else f"{line[:limit]}... [{len(line) - limit} more characters]"


_MAX_QUOTED = 12_000


def quote_lines(text: str) -> str:
    """Foreign text with every line marked, so that none can be mistaken for our own."""
    text, more = text[:_MAX_QUOTED], len(text) - _MAX_QUOTED
    lines = [f"| {line}".rstrip() for line in text.splitlines()] or ["| (nothing)"]
    return "\n".join([*lines, f"[... {more} more characters that are not shown]"] if more > 0 else lines)


def escape_brackets(text: str) -> str:
    """The text on one line without brackets, so that it cannot close a tag such as `[transcription: text]`."""
    return " ".join(text.replace("[", "(").replace("]", ")").split())


def nearest(name: str, names: Iterable[str], count: int = 3, *, cutoff: float = 0.6) -> list[str]:
    """The most similar names, best first, ignoring case. `cutoff` is the minimum similarity, from 0 to 1."""
    from difflib import get_close_matches  # imported for typos only

    by_lower: dict[str, str] = {}
    for known in names:
        by_lower.setdefault(known.lower(), known)
    return [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff)]


def human_size(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """`20 s`, `5 min`, `2 h 5 min`, `3 days`."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{max(int(seconds), 0)} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count)


def format_when(moment: datetime, now: datetime | None = None, *, offset: bool = False, relative: bool = True) -> str:
    """`2026-12-24 18:00 (in 12 min)`, with `offset` `2026-12-24 18:00 +01:00 (in 12 min)`: every date a person reads.

    The wall time is that of the moment's own zone; a naive moment is local time. `now` defaults to the current time.
    """
    wall = f"{moment:%Y-%m-%d %H:%M}"
    if offset:
        zone = f"{moment.astimezone() if moment.tzinfo is None else moment:%z}"
        wall += f" {zone[:3]}:{zone[3:5]}"
    return f"{wall} ({relative_time(moment, now)})" if relative else wall


def relative_time(moment: datetime, now: datetime | None = None) -> str:
    """`in 12 min`, `2 h 5 min ago`, `in 13 h`, `3 days ago`, `now`: rounded, so that 19 min 59.9 s is 20 min."""
    seconds = (moment.astimezone() - (now or datetime.now()).astimezone()).total_seconds()
    away = abs(seconds)
    unit = 86_400 if away >= 172_800 else 3_600 if away >= 36_000 else 60 if away >= 60 else 1
    away = round(away / unit) * unit
    if not away:
        return "now"
    return f"in {duration(away)}" if seconds > 0 else f"{duration(away)} ago"


def count_noun(count: int, noun: str, plural: str | None = None) -> str:
    """`1 line`, `2 lines`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
