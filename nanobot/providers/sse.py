"""Server-sent events, read as they come: bytes in, the data of whole events out.

Follows the living standard (html.spec.whatwg.org, "Server-sent events"): lines end in LF, CR or CRLF, comments begin
with a colon, data of several lines is joined, an empty line ends the event.
"""

LONGEST_EVENT = 32 * 1024 * 1024


class EventTooLongError(ValueError):
    """A server sent more without an end than any answer has."""


class SseParser:
    """Feed it bytes, however they are cut; it hands out the data of each event that is complete."""

    def __init__(self, longest: int = LONGEST_EVENT) -> None:
        self._longest = longest
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
            self._take(line, events)
        if lines:
            self._length = sum(map(len, self._data))
        if rest:
            self._rest.append(rest)
            self._length += len(rest)
        if self._length > self._longest:
            raise EventTooLongError(f"an event longer than {self._longest >> 20} MB")
        return events

    def end(self) -> list[bytes]:
        """The data of an event that the server did not end before it hung up."""
        events: list[bytes] = []
        self._take(b"".join(self._rest), events)
        self._rest = []
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            return
        field, _, value = line.partition(b":")
        if field.lstrip(b"\xef\xbb\xbf") == b"data":
            self._data.append(value.removeprefix(b" "))
