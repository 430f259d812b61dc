"""A packed body, unpacked piece by piece: a bomb of a kilobyte never becomes a gigabyte in memory."""

import zlib
from collections.abc import Iterator

ACCEPTED = "gzip, deflate"
"""What to ask a server for: what can be unpacked within bounds."""
_PIECE = 64 * 1024
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_BARE = -zlib.MAX_WBITS


class PackingError(Exception):
    """It cannot be unpacked; the words say why."""


class Unpacker:
    """Takes a body as it came. `encoding` is its Content-Encoding; raises PackingError for one nobody asked for."""

    def __init__(self, encoding: str = "") -> None:
        self._name = encoding.strip().lower()
        if self._name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise PackingError(f"the answer is packed as {self._name[:40]}, which was not asked for")
        self._plain = self._name in ("", "identity")
        self._wire = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What this much of the body holds, in pieces of 64 kB at most. Raises PackingError."""
        if self._plain:
            yield data
            return
        while data:
            if self._wire.eof:  # several packings one after the other are one body
                self._wire = zlib.decompressobj(_GZIP_OR_ZLIB)
            piece = self._unpacked(data)
            data = self._wire.unused_data if self._wire.eof else self._wire.unconsumed_tail
            if piece:
                yield piece

    def _unpacked(self, data: bytes) -> bytes:
        try:
            piece = self._wire.decompress(data, _PIECE)
        except zlib.error as error:
            if self._begun or self._name != "deflate":
                raise PackingError(f"the answer is not packed as {self._name}: {error}") from None
            self._wire = zlib.decompressobj(_BARE)  # some servers take the word literally
            self._begun = True
            return self._unpacked(data)
        self._begun = True
        return piece
