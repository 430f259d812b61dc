"""An incremental parser of server-sent events: bytes in, the data of complete events out.

Follows the living standard (html.spec.whatwg.org, "Server-sent events"): lines end in LF, CR or CRLF, comments begin
with a colon, data of several lines is joined, an empty line ends the event.
"""

MAX_EVENT_BYTES = 32 * 1024 * 1024


class EventTooLongError(ValueError):
    """An event exceeds the size limit."""


class SseParser:
    """Accepts bytes split anywhere and returns the data of each complete event."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._length = 0
        self._data: list[bytes] = []
        self._held_cr = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk. Raises EventTooLongError."""
        chunk = self._held_cr + chunk
        self._held_cr = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):  # the LF that may belong to it comes with the next chunk
                chunk, self._held_cr = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        if lines and self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        for line in lines:
            self._parse_line(line, events)
        if lines:
            self._length = sum(map(len, self._data))
        if rest:
            self._rest.append(rest)
            self._length += len(rest)
        if self._length > self._max_bytes:
            raise EventTooLongError(f"an event longer than {self._max_bytes >> 20} MB")
        return events

    def end(self) -> list[bytes]:
        """The data of an event that the server did not terminate before it closed the connection."""
        events: list[bytes] = []
        self._parse_line(b"".join(self._rest), events)
        self._rest = []
        self._parse_line(b"", events)
        return events

    def _parse_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            return
        field, _, value = line.partition(b":")
        if field.lstrip(b"\xef\xbb\xbf") == b"data":
            self._data.append(value.removeprefix(b" "))
