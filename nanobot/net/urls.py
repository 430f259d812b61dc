"""A strict URL parser: the parsed result is what is connected to, so no second parser can see another host.

What browsers silently correct (backslashes, `user@`, `0x7f.1`, a missing slash) is rejected with a message: only an
attacker needs it. Unambiguous variants (capitals, ideographic dots, spaces in a path) are normalised. The rules are
those of https://url.spec.whatwg.org without its corrections.
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import quote, unquote, urljoin

from nanobot.errors import NanobotError
from nanobot.net.addresses import Address

MAX_LENGTH = 8192
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH_SAFE = "/%:@!$&'()*+,;=~|[]"
_MAX_PLAIN_PATH = 64
_MAX_PLAIN_NAME = 24
"""Up to this length a path, or the part of a host before its domain, counts as a plain address."""
_PLAIN_WORDS = re.compile(r"(?:[/._-]*(?:[A-Za-z]{1,24}|[A-Za-z0-9]{1,12})(?![A-Za-z0-9]))*[/._-]*")
"""Words as in ordinary addresses: nothing encoded, no long runs of letters mixed with digits."""
_URL_CHAR = r"[^\s<>\"'`]"
_DOT = r"[.\u3002\uff0e\uff61]"
_IN_TEXT = (
    rf"(?P<whole>(?:https?|wss?|ftp):{_URL_CHAR}+)"
    r"|(?:(?<=//)|(?<=\\\\)|(?<![\w./\\%\u3002\uff0e\uff61-]))"
    rf"(?P<bare>(?:(?:[\w-]{{1,63}}{_DOT})+[^\W\d_][\w-]{{1,62}}{_DOT}?|\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w.])"
    rf"|\[[0-9a-f:.]{{2,45}}\]|(?:0x[0-9a-f.]+|\d+(?:\.\d+){{0,2}})(?=/?\?)|(?:(?<=//)|(?<=\\\\))[\w-]{{1,63}})"
    rf"(?:[:/?#\\]{_URL_CHAR}*)?)"
)
"""URLs in a text; compiled with the first text, since that takes 3 ms. Many programs accept one without its scheme:
`example.com/a`, `//example.com/a`, `198.51.100.7/a`; bare numbers count only with a query after them.
"""


class UrlError(NanobotError):
    """Not a URL that can be fetched. The text is for the model: what is wrong, and how to write it."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """A normalised http(s) URL, in ASCII."""

    scheme: str
    host: str
    """A name in lower case, or an IP address; IPv6 without brackets."""
    port: int
    path: str
    """Begins with a slash."""
    query: str
    address: Address | None
    """The IP address if the host is one."""
    authorization: str | None = field(default=None, repr=False)
    """Sent with requests to a server of the config whose URL has a user name and password."""

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}{'?' if self.query else ''}{self.query}"

    @property
    def authority(self) -> str:
        """Host and port for the Host header; the default port is left out."""
        bracketed_host = f"[{self.host}]" if ":" in self.host else self.host
        return bracketed_host if self.port == _PORTS[self.scheme] else f"{bracketed_host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_url(text: str) -> WebUrl:
    """Parse a URL. Raises UrlError."""
    text = text.strip(" \t\r\n")
    if len(text) > MAX_LENGTH:
        raise UrlError(f"This URL has {len(text)} characters; the limit is {MAX_LENGTH}.")
    if _CONTROL.search(text):
        raise UrlError("This URL contains control characters. Write it without them.")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlError(f"{text[:200]!r} is not a web URL. Write it in full, like https://example.com/page.")
    scheme, authority, path, query = match[1].lower(), match[2], match[3], match[4] or ""
    if "\\" in authority + path:
        raise UrlError("This URL contains a backslash. Write it with slashes.")
    if "@" in authority:
        raise UrlError("This URL contains a user name (the part before @). Write it without one.")
    name, colon, digits = authority.rpartition(":")
    if not colon or digits.endswith("]"):  # of an IPv6 address
        name, digits = authority, ""
    if digits and not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) < 65536):
        raise UrlError(f"{digits[:20]!r} is not a port. Write a number from 1 to 65535, or none.")
    host, port = _normalize_host(name), int(digits or _PORTS[scheme])
    address = _parse_address(host)
    return WebUrl(
        scheme,
        str(address) if address is not None else host.strip("[]"),
        port,
        quote(path or "/", safe=_PATH_SAFE),
        quote(query, safe=_PATH_SAFE + "?"),
        address,
    )


@lru_cache(maxsize=64)
def parse_server_url(text: str) -> WebUrl:
    """Parse the URL of a server in the config, which may have a user name and password. Raises ValueError."""
    with_user = re.fullmatch(r"(\s*[a-z]+://)([^/?#]*)@(.*)", text, re.DOTALL | re.IGNORECASE)
    try:
        url = parse_url(with_user[1] + with_user[3] if with_user else text)
    except UrlError as error:
        raise ValueError(str(error)) from None
    if with_user is None:
        return url
    return replace(url, authorization=f"Basic {b64encode(unquote(with_user[2]).encode()).decode()}")


def join_url(base: WebUrl, location: str) -> WebUrl:
    """The target of a redirect. Raises UrlError."""
    text = location.strip(" \t\r\n")
    if _CONTROL.search(text):  # urljoin would remove them silently
        raise UrlError("The page redirects to a URL with control characters. Fetch another page.")
    try:
        return parse_url(text if _SCHEME.match(text) else urljoin(str(base), text))
    except ValueError:
        raise UrlError(f"The page redirects to {text[:200]!r}, which is not a URL.") from None


def carries_data(url: WebUrl) -> bool:
    """Whether the URL could carry data to its host: it is longer or more unusual than an address needs to be."""
    name = ".".join(url.host.split(".")[:-2])
    is_plain = (
        len(url.path) <= _MAX_PLAIN_PATH
        and len(name) <= _MAX_PLAIN_NAME
        and _PLAIN_WORDS.fullmatch(f"{name}{url.path}")
    )
    return bool(url.query) or not is_plain


def find_hosts(text: str) -> Iterator[tuple[str, str]]:
    """The hosts that URLs in a text, with or without a scheme, would send data to, each with its URL. An invalid URL is
    its own host.
    """
    direct = list(_find_hosts(text))
    yield from direct
    direct_hosts = {host for host, _ in direct}
    if "%" in text:  # a server may decode it
        yield from ((host, url) for host, url in _find_hosts(unquote(text)) if host not in direct_hosts)


def _find_hosts(text: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(_IN_TEXT, text, re.IGNORECASE):
        bare = (match["bare"] or "").rstrip(").,;!?")
        try:
            url = parse_url(f"http://{bare}" if bare else match[0])
        except UrlError:
            if not bare or "?" in bare or "\\" in bare:
                yield match[0][:200], match[0]
            continue
        if carries_data(url):
            yield url.authority, str(url)


def _normalize_host(text: str) -> str:
    """The host in lower-case ASCII, each label validated. Raises UrlError."""
    if text.startswith("["):
        return text.lower()
    host = text
    if not text.isascii():
        import idna  # its tables take 10 ms to load, and few names need them

        try:
            host = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError) as error:
            raise UrlError(f"{text[:200]!r} is not a host name: {error}.") from None
    host = host.lower().removesuffix(".")
    if not host or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise UrlError(f"{text[:200]!r} is not a host name. Write it like example.com.")
    return host


def _parse_address(host: str) -> Address | None:
    """The IP address of a host; None for a name. Only the standard notation is accepted, others raise UrlError."""
    try:
        if host.startswith("["):
            if not host.endswith("]") or "%" in host:
                raise AddressValueError
            return IPv6Address(host[1:-1])
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return IPv4Address(host)
    except AddressValueError:
        raise UrlError(
            f"{host[:200]!r} is an IP address in an unusual notation. Write it like 192.0.2.1 or [2001:db8::1]."
        ) from None
    return None
