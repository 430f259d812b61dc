"""The child process in which grep matches lines, so that an expression that never ends can be killed.

Files come on stdin, since only nanobot itself opens them: for each, a byte, then its content in chunks after four bytes
with their size, then a chunk of size 0. Prints a JSON list for each row: number of the file, number of the line, `:`
for a match or `-` for context, the text.
"""

import codecs
import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain, count

LINE_CHARS = 400
_Row = tuple[int, str, str]


def _chunks() -> Iterator[bytes]:
    """Yield the content of the next file."""
    while size := int.from_bytes(sys.stdin.buffer.read(4)):
        yield sys.stdin.buffer.read(size)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines of a text file; none if it is binary."""
    first = next(chunks, b"")
    encoding = "utf-16" if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest = ""
    for data in chain((first,), chunks):
        if encoding == "utf-8-sig" and b"\0" in data:
            return
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest.removesuffix("\r")


def _rows(lines: Iterator[str], regex: "re.Pattern[str]", context: int) -> Iterator[_Row]:
    before: deque[_Row] = deque(maxlen=context)
    last_match = -context
    for number, line in enumerate(lines, 1):
        if regex.search(line):
            yield from before
            before.clear()
            yield number, ":", line
            last_match = number
        elif number <= last_match + context:
            yield number, "-", line
        else:
            before.append((number, "-", line))


def main(pattern: str, ignore_case: bool, first_only: bool, context: int) -> int:
    """Run the search. Return 2 if the pattern is invalid."""
    try:
        regex = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(
            f"{pattern!r} is not a valid regular expression ({error}). Escape special characters, or set literal."
        )
        return 2
    for file in count():
        if not sys.stdin.buffer.read(1):
            return 0
        chunks = _chunks()
        for number, mark, line in _rows(_lines(chunks), regex, context):
            text = (
                line
                if len(line) <= LINE_CHARS
                else f"{line[:LINE_CHARS]}... [{len(line) - LINE_CHARS} more characters]"
            )
            sys.stdout.write(json.dumps((file, number, mark, text)) + "\n")
            sys.stdout.flush()
            if first_only:
                break
        for _ in chunks:  # the rest of it is not looked at
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] == "1", sys.argv[3] == "1", int(sys.argv[4])))
