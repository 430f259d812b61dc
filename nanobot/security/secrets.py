"""Secrets: which values this process knows, what looks like one, and how both are removed from texts and streams.

Logs and error output belong to the process, so its secrets are collected here: for a block (`secrets_scope`), for the
lifetime of the process (`hold_secrets`), or as they appear, such as a renewed token (`learn_secrets`).

A known value is found as it is, as in JSON and URLs, reversed, in other letter cases, in hex, in base64 at any offset,
and wrapped over lines. In a value of several lines (a private key) each longer line counts as a secret. Hex dumps and
ciphers are not found.

Three strengths: `redact_known` for what is written back (a file that the agent edits), `redact_all` for logs and errors
also removes what has the shape of a key, `redact_named` for traces and displays also what stands under the name of one:
there a false match costs a word, a missed one a key.
"""

import json
import os
import re
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus

MARK = "[key]"
"""Replaces a secret."""
LOOK_AHEAD = 320
"""Characters read beyond a cut, so that a secret at the cut is still recognized."""
_MIN_LENGTH = 4
_MIN_ENCODED = 8
"""Shorter values in base64 or reversed would match ordinary words."""
_MIN_BASE64 = 10
_MIN_LINE = 16
"""Shorter lines of a value reveal nothing, and shorter words may meet by chance where a line ends."""

_SHAPES = (
    (("-----BEGIN",), r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*|\Z)"),
    (("k-", "k_", "i-"), r"\b(?:sk|gsk|xai|pk|rk)[-_][\w*.…-]{6,}"),
    (("gh", "github_pat", "glpat"), r"\b(?:gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,})"),
    (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}"),
    (("xox", "xapp-", "xwfp-"), r"\b(?:xox[a-z][.-]|xapp-|xwfp-)[\w.-]{8,}"),
    (("AIza", "ya29."), r"\b(?:AIza[\w-]{20,}|ya29\.[\w-]{10,})"),
    (("hf_", "npm_", "dop_v1_", "shpat_"), r"\b(?:hf|npm|dop_v1|shpat)_\w{12,}"),
    (("pypi-", "SG."), r"\b(?:pypi-|SG\.)[\w.-]{16,}"),
    (("eyJ",), r"\beyJ[\w-]{8,}(?:\.[\w-]*)*"),
    ((":AA",), r"(?<!\d)\d{6,12}:AA[\w-]{30,}"),  # Telegram's
    (("earer ", "EARER "), r"(?<=[Bb]earer )[\w.~+/=-]{8,}|(?<=BEARER )[\w.~+/=-]{8,}"),
    (("://",), r"(?<=://)(?:[^\s/@:\"']{0,80}:[^\s\"'?]{0,200}?|[^\s/@:\"']{20,200})(?=@[\w\[])"),
)
_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|cookie|authorization|"
    r"(?:api|access|account|encryption|master|private|secret|shared|signing)[_-]?key)"
)
_NAMED_SECRET = (
    # name: value, "name": "value", name=value, --name value; in JSON inside JSON the quotes have backslashes
    rf"(?P<name>{_NAMES}(?:\\*[\"'])?\s*[:=]\s*|--(?:[a-z]+-)*{_NAMES}\s+)(?P<scheme>(?:basic|bearer|token)\s+)?"
    r"(?P<value>\[key\]|\"(?:\\.|[^\"\\])*\"?|\\++\"(?:[^\\]|\\++(?!\"))*+(?:\\+\")?|'[^']*'?|[^\s\"'&,;)}\]\\]+)"
)
_NAME_HINTS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "cookie", "key", "authorization")
_SECRET_NAME = re.compile(
    r"(?:key|token|secret|password|passwd|passphrase|cookie|credentials?|authorization|auth)$|.(?<!^old)pwd$",
    re.IGNORECASE,
)
"""`PWD` and `OLDPWD` are folders."""
_PLACEHOLDER = re.compile(
    r"(?:sk-)?(?:no|not|none|empty|dummy|fake|unused|local|lm|your|my|the|any|some)[-_ ]?(?:api)?[-_ ]?"
    r"(?:key|token|needed|required|key[-_ ](?:here|needed|required)|studio|thing)|placeholder|changeme|(.)\1*",
    re.IGNORECASE,
)
"""Placeholders for a key that a server does not check; redacting them would redact ordinary words."""
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)

SecretSource = Callable[[], Mapping[str, str]]
"""Returns secrets with their names. Called once, on first use."""


class SecretIndex:
    """Secrets with all their encodings. The longest is replaced first, so that no part of one is left."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names` maps each value to its name."""
        encoded = {encoding: name for value, name in names.items() for encoding in _encodings_of(value)}
        self._names = {encoding: encoded[encoding] for encoding in sorted(encoded, key=len, reverse=True)}
        self.longest = max(map(len, self._names), default=0)
        """The length of the longest encoding."""
        self._shortest = min(map(len, self._names), default=0)
        self._sorted = sorted(self._names)

    def redact(self, text: str) -> str:
        for encoding in self._matches(text):
            line_ends = "[\r\n]*" if len(encoding) >= _MIN_LINE else ""
            text = re.sub(line_ends.join(map(re.escape, encoding)), MARK, text)
        return text

    def find(self, text: str) -> str | None:
        """The name of a secret in the text, None if there is none."""
        return next((self._names[encoding] for encoding in self._matches(text)), None)

    def split_unfinished(self, text: str) -> tuple[str, str]:
        """Split a text before what may be the beginning of a secret. Returns what is before, redacted, and the rest."""
        whole = self.redact(text)
        for offset in range(max(0, len(text) - self.longest), len(text)):
            rest = text[offset:]
            position = bisect_left(self._sorted, rest)
            if position < len(self._sorted) and self._sorted[position].startswith(rest):
                shown = self.redact(text[:offset])
                if shown + self.redact(rest) == whole:  # else another secret ends in this rest
                    return shown, rest
        return whole, ""

    def _matches(self, text: str) -> Iterator[str]:
        if len(text) < self._shortest:  # most pieces of a stream
            return
        joined = _join_lines(text)
        for encoding in self._names:
            if encoding in (joined if len(encoding) >= _MIN_LINE else text):
                yield encoding


def _join_lines(text: str) -> str:
    return text.replace("\n", "").replace("\r", "")


def _encodings_of(value: str) -> Iterator[str]:
    """All encodings of a value, each as one line; none if it is too short to tell from a word."""
    if len(value) < _MIN_LENGTH:
        return
    encodings = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    encodings |= {quote(value, safe=""), quote(value), quote_plus(value)}
    if len(value) >= _MIN_ENCODED:
        data = value.encode(errors="surrogatepass")
        encodings |= {value.upper(), value.lower(), value.swapcase(), value[::-1], data.hex(), data.hex().upper()}
        for before in range(3):  # the value may begin at three offsets in a group of base64
            encoded = b64encode(bytes(before) + data).decode()
            core = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]  # what all texts with the value share
            if len(core) >= _MIN_BASE64:
                encodings |= {core, core.replace("+", "-").replace("/", "_")}
        if len(lines := value.splitlines()) > 1:
            for line in lines:
                if len(line.strip()) >= _MIN_LINE:
                    yield from _encodings_of(line.strip())
    yield from (joined for encoding in encodings if len(joined := _join_lines(encoding)) >= _MIN_LENGTH)


_sources: list[SecretSource] = []
_learned: dict[str, str] = {}
_index: Callable[[], SecretIndex] = cache(lambda: SecretIndex({}))
"""Made on first use, so that a process that shows nothing pays nothing."""


def _collect() -> None:
    global _index
    sources, learned = [*_sources], {**_learned}

    def make() -> SecretIndex:
        return SecretIndex({value: name for source in sources for value, name in source().items()} | learned)

    _index = cache(make)


@contextmanager
def secrets_scope(load: SecretSource) -> Iterator[None]:
    """Redact these secrets until the block ends."""
    source = hold_secrets(load)
    try:
        yield
    finally:
        _sources.remove(source)
        _collect()


def hold_secrets(load: SecretSource) -> SecretSource:
    """Redact these secrets until the process ends."""
    source = cache(load)
    _sources.append(source)
    _collect()
    return source


def learn_secrets(values: Mapping[str, str]) -> None:
    """Redact these values too from now on; each maps to its name."""
    if values.keys() - _learned.keys():
        _learned.update(values)
        _collect()


def forget_all() -> None:
    """Forget all secrets; for tests."""
    _sources.clear()
    _learned.clear()
    _collect()


def redact_known(text: str) -> str:
    """Redact the secrets of this process; everything else stays as it is."""
    return _index().redact(text)


def redact_all(text: str) -> str:
    """Redact the secrets of this process and whatever looks like a key."""
    return redact(redact_known(text))


def redact_named(text: str) -> str:
    """Redact the secrets of this process, and what looks like or is named as one."""
    text = redact_all(text)
    return _named_secret().sub(_without_value, text) if _has_name_hint(text) else text


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace these secrets, and keys of a known shape, whole or as vendors shorten them (`sk-ab***yz`)."""
    for secret in secrets:
        if len(secret) >= _MIN_LENGTH:
            text = text.replace(secret, MARK)
    for hint, shape in _shapes():
        if hint in text:
            text = shape.sub(MARK, text)
    return text


def redact_head(text: str, limit: int) -> str:
    """The first `limit` characters, with the number of those left out. The cost does not depend on the length."""
    look_ahead = max(LOOK_AHEAD, _index().longest)
    seen = text[: limit + look_ahead]
    shown = redact_named(seen)
    if len(text) <= limit:
        return shown
    if len(seen) < len(text):  # the end of what was read may be half a secret
        shown = shown[:-look_ahead]
    return f"{shown[:limit]}... [{len(text) - limit} more characters]"


def redact_value(value: Any, limit: int = 1 << 40) -> Any:
    """Redact JSON: values under the name of a secret completely; long texts are cut to their head."""
    if isinstance(value, dict):
        return {
            redact_head(str(name), limit): MARK if inner and is_secret_name(str(name)) else redact_value(inner, limit)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_value(inner, limit) for inner in value]
    return redact_head(value, limit) if isinstance(value, str) else value


def redact_texts(value: Any, redact: Callable[[str], str] = redact_named) -> Any:
    """Redact every text in JSON. Names lose known secrets only: a schema may describe a token."""
    if isinstance(value, dict):
        return {redact_known(str(name)): redact_texts(inner, redact) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_texts(inner, redact) for inner in value]
    return redact(value) if isinstance(value, str) else value


def find_secret(data: str | bytes) -> str | None:
    """Return the name of a secret of this process in this content, if any: for requests to other hosts."""
    return _index().find(data if isinstance(data, str) else data.decode("utf-8", "replace"))


class StreamRedactor:
    """Redacts streamed text, such as an answer shown while it is generated.

    Text that may be the beginning of a secret is held back until more arrives: mostly nothing, at most a few letters.
    """

    def __init__(self) -> None:
        self._held_back = ""

    def feed(self, text: str) -> str:
        """Take the next text and return what may be shown by now."""
        shown, self._held_back = _index().split_unfinished(self._held_back + text)
        return shown

    def end(self) -> str:
        """Return the text held back, redacted."""
        text, self._held_back = redact_known(self._held_back), ""
        return text


class RedactedOutput:
    """Redacts bytes on their way to a file, chunk by chunk, also secrets that span chunks. They need not be text."""

    def __init__(self) -> None:
        self._index = _index()
        self._margin = self._index.longest * 5  # a letter has up to four bytes; some lines may end within
        self._held_back = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next chunk and return what may be written by now."""
        data = self._redact(self._held_back + data)
        end = max(len(data) - self._margin, 0)
        self._held_back = data[end:]
        return data[:end]

    def end(self) -> bytes:
        """Return the bytes held back, redacted."""
        data, self._held_back = self._redact(self._held_back), b""
        return data

    def _redact(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape")
        return self._index.redact(text).encode("utf-8", "surrogateescape")


def request_secrets(api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    """The secrets of a request: its key, and the headers whose names say that they carry one."""
    return [api_key or "", *(value for name, value in headers.items() if _SECRET_HEADER.search(name))]


def named_secrets(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Values of settings and environment under names of secrets, and passwords in URLs, each with its location:
    `providers.openai.api_key`, `GITHUB_TOKEN`.

    A short word of letters (`none`, `ollama`) means "no key", and is left out: it would be redacted everywhere.
    """
    locations = {value: name for name, value in (*_values_in(settings), *_values_in(environ))}
    return {value: name for value, name in locations.items() if is_worth_hiding(value)}


def is_worth_hiding(value: str) -> bool:
    """Whether a value under the name of a secret is one: not a placeholder, not the path of a file, as in
    GOOGLE_APPLICATION_CREDENTIALS.
    """
    if len(value) < _MIN_LENGTH or (len(value) < _MIN_ENCODED and value.isalpha()) or _PLACEHOLDER.fullmatch(value):
        return False
    path = os.path.expanduser(value)  # noqa: PTH111 it may be anything
    return not (os.path.isabs(path) and os.path.exists(path))  # noqa: PTH117, PTH110


def is_secret_name(name: str) -> bool:
    """Whether a name belongs to a secret: `api_key`, `botToken`, `DB_PASSWORD`."""
    return _SECRET_NAME.search(name) is not None


@cache
def _shapes() -> list[tuple[str, re.Pattern[str]]]:
    """Each pattern with a hint that is searched first, which is cheap. Compiled on first use: it takes 3 ms."""
    return [(hint, re.compile(pattern, re.DOTALL)) for hints, pattern in _SHAPES for hint in hints]


@cache
def _named_secret() -> re.Pattern[str]:
    return re.compile(_NAMED_SECRET, re.IGNORECASE | re.DOTALL)


def _has_name_hint(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _NAME_HINTS)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    opening = re.match(r"\\*[\"']", value)
    quotes = opening[0] if opening else ""
    closing = quotes if len(value) > len(quotes) and value.endswith(quotes) else ""
    return f"{match['name']}{match['scheme'] or ''}{quotes}{MARK}{closing}"


def _values_in(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Names, as dotted paths, with their values."""
    if isinstance(value, str):
        if is_secret_name(name):
            yield name, value
            yield name, value.rpartition(" ")[2]  # the token of `Bearer ...` may be repeated alone
        else:
            yield from ((name, secret) for secret in _named_values(value))
        if "://" in value:
            yield from ((name, match[1]) for match in re.finditer(r"://[^\s/@:]{0,80}:([^\s/]{1,200})@", value))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values_in(inner, name)
        texts = " ".join(inner for inner in value if isinstance(inner, str))
        yield from ((name, secret) for secret in _named_values(texts))  # --token VALUE
    elif isinstance(value, Mapping):
        for inner_name, inner in value.items():
            if inner and not isinstance(inner, int | float):  # most settings are empty, or numbers
                yield from _values_in(inner, f"{name}.{inner_name}" if name else str(inner_name))


def _named_values(text: str) -> Iterator[str]:
    if _has_name_hint(text):
        yield from (match["value"].strip("\"'\\") for match in _named_secret().finditer(text))
