"""The fallback search of grep if ripgrep is not installed: the same rows, with the standard library alone.

Runs as a script in a child process, so that an expression that never ends can be killed. Rows are those of
`rg --null --line-number`: path, NUL, number, `:` for a match or `-` for context, the line.
"""

import codecs
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

_CHUNK = 1024 * 1024
_SNIFFED = 8 * 1024


def files_below(
    list_folder: Callable[[str], Iterable[tuple[str, bool]]], skipped_names: Collection[str], skip: Collection[str] = ()
) -> Iterator[str]:
    """Yield the paths of all plain files below a folder, relative to it, sorted by name.

    `list_folder` returns names and whether each is a folder, by relative path; it omits what is neither folder nor
    plain file. Folders named in `skipped_names` are not entered anywhere; relative paths in `skip` are left out.
    """
    pending = [""]
    while pending:
        path = pending.pop()
        if path and not path.endswith("/"):
            yield path
            continue
        try:
            entries = sorted(list_folder(path), reverse=True)
        except OSError:
            continue
        for name, is_dir in entries:
            if f"{path}{name}" in skip or (is_dir and name in skipped_names):
                continue
            pending.append(f"{path}{name}/" if is_dir else f"{path}{name}")


def _list_folder(path: str) -> Iterator[tuple[str, bool]]:
    """List a folder; links are left out."""
    with os.scandir(path or ".") as entries:
        for entry in entries:
            try:
                if (is_dir := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False):
                    yield entry.name, is_dir
            except OSError:
                continue


def regex_of_glob(glob: str) -> str:
    """Return a regular expression for a whole relative path. A glob without `/` matches the name in any folder."""
    glob = glob.replace("\\", "/").removeprefix("./") if os.sep == "\\" else glob.removeprefix("./")
    if "/" not in glob.rstrip("/"):
        glob = f"**/{glob}"
    glob = glob.removeprefix("/")
    if glob.endswith("/"):
        glob += "**"
    out, depth, position = [], 0, 0
    while position < len(glob):
        rest = glob[position:]
        character = glob[position]
        if rest.startswith("**/") and (position == 0 or glob[position - 1] == "/"):
            out.append("(?:[^/]+/)*")
            position += 3
        elif rest == "**" and (position == 0 or glob[position - 1] == "/"):
            out.append(".+")
            position += 2
        elif character == "*":
            out.append("[^/]*")
            position += 1
        elif character == "?":
            out.append("[^/]")
            position += 1
        elif character == "[" and (end := glob.find("]", position + 2)) > 0:
            characters = glob[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"(?!/)[{'^' + characters[1:] if characters[0] in '!^' else characters}]")
            position = end + 1
        elif character == "{" and "}" in rest:
            out.append("(?:")
            depth += 1
            position += 1
        elif character == "," and depth:
            out.append("|")
            position += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
            position += 1
        else:
            out.append(re.escape(character))
            position += 1
    return "(?s:" + "".join(out) + ")"


def lines_of(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a text file, from its beginning; none if it is binary."""
    head = file.read(_SNIFFED)
    encoding = "utf-8-sig"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in head:
        return
    file.seek(0)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest = ""
    while data := file.read(_CHUNK):
        if encoding == "utf-8-sig" and b"\0" in data:
            return
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest.removesuffix("\r")


def _rows(path: str, regex: "re.Pattern[str]", context: int) -> Iterator[str]:
    """Yield the rows of one file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        before: deque[tuple[int, str]] = deque(maxlen=context)
        last_match = 0
        for number, line in enumerate(lines_of(file), 1):
            if regex.search(line):
                yield from (f"{path}\0{earlier}-{text}" for earlier, text in before)
                before.clear()
                yield f"{path}\0{number}:{line}"
                last_match = number
            elif last_match and number <= last_match + context:
                yield f"{path}\0{number}-{line}"
            else:
                before.append((number, line))


def main(arguments: list[str]) -> int:
    """Run the search. Return 2 if the pattern is invalid."""
    pattern, target, ignore_case, context, glob, skipped_names, skip = arguments
    try:
        regex = re.compile(pattern, re.IGNORECASE if ignore_case == "1" else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(
            f"{pattern!r} is not a valid regular expression ({error}). Escape special characters, or set literal."
        )
        return 2
    glob_regex = re.compile(regex_of_glob(glob)) if glob else None
    files = files_below(_list_folder, skipped_names.split(","), skip.split("\n")) if target == "." else iter([target])
    out = sys.stdout.buffer
    for path in files:
        if glob_regex is not None and not glob_regex.fullmatch(path):
            continue
        with suppress(OSError):
            for row in _rows(path, regex, int(context)):
                out.write(row.encode(errors="surrogateescape") + b"\n")
        out.flush()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
