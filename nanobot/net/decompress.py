"""Incremental decompression of response bodies, so that a compression bomb never fills the memory."""

import zlib
from collections.abc import Iterator

from nanobot.net.connection import BodyError

ACCEPT_ENCODING = "gzip, deflate"
"""The encodings to request: those with incremental decoders."""
_CHUNK_BYTES = 64 * 1024
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_RAW_DEFLATE = -zlib.MAX_WBITS


class DecodeError(BodyError):
    """The body cannot be decompressed; the text says why."""


class Decoder:
    """Decodes a body with this Content-Encoding. Raises DecodeError for an encoding that was not requested."""

    def __init__(self, encoding: str = "") -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise DecodeError(f"the response is compressed as {self._encoding[:40]}, which was not requested")
        self._plain = self._encoding in ("", "identity")
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._started = False

    def chunks(self, data: bytes) -> Iterator[bytes]:
        """Decode more of the body, in chunks of at most 64 kB. Raises DecodeError."""
        if self._plain:
            yield data
            return
        while data:
            if self._zlib.eof:  # concatenated members form one body
                self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
            chunk = self._decompress(data)
            data = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
            if chunk:
                yield chunk

    def _decompress(self, data: bytes) -> bytes:
        try:
            chunk = self._zlib.decompress(data, _CHUNK_BYTES)
        except zlib.error as error:
            if self._started or self._encoding != "deflate":
                raise DecodeError(f"the response is not valid {self._encoding}: {error}") from None
            self._zlib = zlib.decompressobj(_RAW_DEFLATE)  # some servers send raw deflate data
            self._started = True
            return self._decompress(data)
        self._started = True
        return chunk
