"""Frames of the long connection: one small protobuf message (fields: 3 service, 4 method, 5 headers, 8 payload).

Decoded by hand: the SDK's class is the only other copy of it, and importing that takes two seconds for the whole SDK.
Encoding: protobuf.dev/programming-guides/encoding. Fields that are not read here are sent back as they came.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nanobot.utils.bounded_dict import put_bounded

_SEQUENCE, _LOG, _SERVICE, _METHOD, _HEADER, _PAYLOAD = 1, 2, 3, 4, 5, 8
_CONTROL = 0
_VARINT, _BYTES = 0, 2
_MOST_PARTS, _MOST_MESSAGES = 100, 50

Fields = list[tuple[int, int | bytes]]


@dataclass(frozen=True, slots=True)
class Frame:
    fields: Fields
    """By number."""

    @classmethod
    def decode(cls, data: bytes) -> "Frame":
        """Raises ValueError."""
        return cls(_decode(data))

    @property
    def is_control(self) -> bool:
        """Whether it is a ping or pong."""
        return (_METHOD, _CONTROL) in self.fields

    @property
    def headers(self) -> dict[str, str]:
        headers = [value for number, value in self.fields if number == _HEADER and isinstance(value, bytes)]
        pairs = [dict(_decode(header)) for header in headers]
        return {_text(pair.get(1)): _text(pair.get(2)) for pair in pairs}

    @property
    def payload(self) -> bytes:
        return next((value for number, value in self.fields if number == _PAYLOAD and isinstance(value, bytes)), b"")

    def answer(self, code: int) -> bytes:
        """The acknowledgement: the same frame with 200 as its payload; with another code the event comes again."""
        others = [(number, value) for number, value in self.fields if number != _PAYLOAD]
        return _encode([*others, (_PAYLOAD, json.dumps({"code": code}).encode())])


def new_frame(service: int, method: int, headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    pairs = [(_HEADER, _encode([(1, key.encode()), (2, value.encode())])) for key, value in headers.items()]
    return _encode([(_SEQUENCE, 0), (_LOG, 0), (_SERVICE, service), (_METHOD, method), *pairs, (_PAYLOAD, payload)])


def ping(service: int) -> bytes:
    return new_frame(service, _CONTROL, {"type": "ping"})


class Parts:
    """Events that arrive in several frames."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, bytes]] = {}

    def add(self, frame: Frame) -> bytes | None:
        """The whole event; None for a control frame, or while parts are missing. Raises ValueError."""
        headers = frame.headers
        count, number = int(headers.get("sum") or 1), int(headers.get("seq") or 0)
        if not 0 <= number < count <= _MOST_PARTS:
            raise ValueError(f"part {number} of {count}")
        if count == 1:
            return None if frame.is_control else frame.payload
        message = headers.get("message_id", "")
        parts = self._waiting.pop(message, {}) | {number: frame.payload}
        if len(parts) < count:
            put_bounded(self._waiting, message, parts, _MOST_MESSAGES)
            return None
        return b"".join(parts[index] for index in range(count))


def _decode(data: bytes) -> Fields:
    fields: Fields = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == _VARINT:
            fields.append((key >> 3, value))
        elif key & 7 == _BYTES and at + value <= len(data):
            fields.append((key >> 3, data[at : at + value]))
            at += value
        else:
            raise ValueError("not a frame")
    return fields


def _encode(fields: Fields) -> bytes:
    encoded = bytearray()
    for number, value in fields:
        kind, size, content = (_VARINT, value, b"") if isinstance(value, int) else (_BYTES, len(value), value)
        encoded += _varint(number << 3 | kind) + _varint(size) + content
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("not a frame")


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F | 0x80 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*groups[:-1], groups[-1] & 0x7F])


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
