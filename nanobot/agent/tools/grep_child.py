"""What grep runs where ripgrep is not installed: the same search, the same rows, by the standard library alone.

Run as a script in a child process of its own, so that an expression that never ends can be killed. Rows are those of
`rg --null --line-number`: path, NUL, number, `:` for a match or `-` for context, the line; `--` between groups.
"""

import codecs
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import BinaryIO

_CHUNK = 1024 * 1024
_SNIFFED = 8 * 1024


def files_below(
    look: Callable[[str], Iterable[tuple[str, bool]]], noise: Collection[str], skip: Collection[str] = ()
) -> Iterator[str]:
    """Paths of all plain files below a folder, relative to it, in order of their names.

    `look` tells the names in a folder, by its relative path, and which are folders; what is neither folder nor plain
    file it leaves out. Not into folders of the names in `noise`, wherever they are; nor to what `skip` names by its
    relative path.
    """
    waiting = [""]
    while waiting:
        place = waiting.pop()
        if place and not place.endswith("/"):
            yield place
            continue
        try:
            entries = sorted(look(place), reverse=True)
        except OSError:
            continue
        for name, is_dir in entries:
            if f"{place}{name}" in skip or (is_dir and name in noise):
                continue
            waiting.append(f"{place}{name}/" if is_dir else f"{place}{name}")


def _look(place: str) -> Iterator[tuple[str, bool]]:
    """Links are not followed."""
    with os.scandir(place or ".") as entries:
        for entry in entries:
            try:
                if (is_dir := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False):
                    yield entry.name, is_dir
            except OSError:
                continue


def regex_of_glob(glob: str) -> str:
    """A glob as an expression for a whole relative path. Without a `/` it is about the name, in any folder."""
    glob = glob.replace("\\", "/").removeprefix("./") if os.sep == "\\" else glob.removeprefix("./")
    if "/" not in glob.rstrip("/"):
        glob = f"**/{glob}"
    glob = glob.removeprefix("/")
    if glob.endswith("/"):
        glob += "**"
    out, depth, at = [], 0, 0
    while at < len(glob):
        rest = glob[at:]
        character = glob[at]
        if rest.startswith("**/") and (at == 0 or glob[at - 1] == "/"):
            out.append("(?:[^/]+/)*")
            at += 3
        elif rest == "**" and (at == 0 or glob[at - 1] == "/"):
            out.append(".+")
            at += 2
        elif character == "*":
            out.append("[^/]*")
            at += 1
        elif character == "?":
            out.append("[^/]")
            at += 1
        elif character == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"(?!/)[{'^' + inside[1:] if inside[0] in '!^' else inside}]")
            at = end + 1
        elif character == "{" and "}" in rest:
            out.append("(?:")
            depth += 1
            at += 1
        elif character == "," and depth:
            out.append("|")
            at += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
            at += 1
        else:
            out.append(re.escape(character))
            at += 1
    return "(?s:" + "".join(out) + ")"


def lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a text file, from its beginning; none where it is binary."""
    head = file.read(_SNIFFED)
    encoding = "utf-8-sig"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in head:
        return
    file.seek(0)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    held = ""
    while data := file.read(_CHUNK):
        if encoding == "utf-8-sig" and b"\0" in data:
            return
        *lines, held = (held + decoder.decode(data)).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if held:
        yield held.removesuffix("\r")


def _search(path: str, wanted: "re.Pattern[str]", context: int) -> Iterator[str]:
    """The rows of one file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        yield from _rows(path, lines_of(file), wanted, context)


def _rows(path: str, lines: Iterable[str], wanted: "re.Pattern[str]", context: int) -> Iterator[str]:
    before: deque[tuple[int, str]] = deque(maxlen=context)
    last_match = last_row = 0
    for number, line in enumerate(lines, 1):
        if wanted.search(line):
            first = before[0][0] if before else number
            if context and last_row and first > last_row + 1:
                yield "--"
            for earlier, text in before:
                yield f"{path}\0{earlier}-{text}"
            before.clear()
            yield f"{path}\0{number}:{line}"
            last_match = last_row = number
        elif last_match and number <= last_match + context:
            yield f"{path}\0{number}-{line}"
            last_row = number
        else:
            before.append((number, line))


def main(arguments: list[str]) -> int:
    """Search; 0 where something was found, 1 where nothing was, 2 where the search makes no sense."""
    pattern, target, ignore_case, context, glob, noise, skip = arguments
    try:
        wanted = re.compile(pattern, re.IGNORECASE if ignore_case == "1" else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(f"{pattern!r} is no regular expression ({error}). Escape special characters, or set literal.")
        return 2
    fits = re.compile(regex_of_glob(glob)) if glob else None
    files = files_below(_look, noise.split(","), skip.split("\n")) if target == "." else iter([target])
    out = sys.stdout.buffer
    found = False
    for path in files:
        if fits is not None and not fits.fullmatch(path):
            continue
        separator = found and context != "0"
        try:
            for row in _search(path, wanted, int(context)):
                if separator:
                    out.write(b"--\n")
                separator, found = False, True
                out.write(row.encode(errors="surrogateescape") + b"\n")
        except OSError:
            continue
        out.flush()
    return 0 if found else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
