"""A URL read once, strictly: what is read here is what is connected to, and no second reader sees another host.

What browsers mend in silence (backslashes, `user@`, `0x7f.1`, a missing slash) is refused with a word: nobody means it
but who wants to be misread. What has one plain meaning (capitals, ideographic dots, spaces in a path) is normalised.
The rules are those of https://url.spec.whatwg.org, less what they mend.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

from nanobot.errors import NanobotError
from nanobot.security.addresses import Address

LONGEST = 8192
_PORTS = {"http": 80, "https": 443}
_SHAPE = re.compile(r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_KEPT = "/%:@!$&'()*+,;=~|[]"
_PLAIN_PATH = 64
_PLAIN_NAME = 24
"""How long a path, or what stands before a host's own name, may be and count as an address alone."""
_PLAIN = re.compile(r"(?:[/._-]*(?:[A-Za-z]{1,24}|[A-Za-z0-9]{1,12})(?![A-Za-z0-9]))*[/._-]*")
"""Words as addresses have them: nothing encoded, no long run of letters with digits among them."""
_IN_TEXT = re.compile(r"(?:https?|wss?|ftp):[^\s<>\"'`]+", re.IGNORECASE)


class UrlError(NanobotError):
    """It is no URL that is fetched. The text is for the model: what is wrong, and how to write it."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """A URL of the web, normalised, in ASCII."""

    scheme: str
    host: str
    """A name in lower case, or an address; IPv6 without its brackets."""
    port: int
    path: str
    """Begins with a slash."""
    query: str
    address: Address | None
    """The host, where it is an address."""

    @property
    def authority(self) -> str:
        """Host and port as a request names them: the usual port is left out."""
        named = f"[{self.host}]" if ":" in self.host else self.host
        return named if self.port == _PORTS[self.scheme] else f"{named}:{self.port}"

    @property
    def origin(self) -> str:
        """Who is asked: scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return f"{self.origin}{self.path}{'?' if self.query else ''}{self.query}"


def parse_url(text: str) -> WebUrl:
    """The URL in this text. Raises UrlError."""
    text = text.strip(" \t\r\n")
    if len(text) > LONGEST:
        raise UrlError(f"This URL has {len(text)} characters; the most that is taken is {LONGEST}.")
    if _CONTROL.search(text):
        raise UrlError("There are control characters in this URL. Write it plainly.")
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise UrlError(f"{text[:200]!r} is no URL of the web. Write it whole, like https://example.com/page.")
    scheme, authority, path, query = shape[1].lower(), shape[2], shape[3], shape[4] or ""
    if "\\" in authority + path:
        raise UrlError("There is a backslash in this URL. Write it with slashes.")
    if "@" in authority:
        raise UrlError("There is a user name in this URL (what stands before @). Write it without.")
    host, port = _host_and_port(authority, scheme)
    address = _address(host)
    return WebUrl(
        scheme,
        str(address) if address is not None else host.strip("[]"),
        port,
        quote(path or "/", safe=_KEPT),
        quote(query, safe=_KEPT + "?"),
        address,
    )


def joined(base: WebUrl, location: str) -> WebUrl:
    """Where a redirect leads. Raises UrlError."""
    text = location.strip(" \t\r\n")
    if _CONTROL.search(text):  # of which urljoin would say nothing
        raise UrlError("The page leads on to a URL with control characters in it. Fetch another page.")
    try:
        return parse_url(text if _SCHEME.match(text) else urljoin(str(base), text))
    except ValueError:
        raise UrlError(f"The page leads on to {text[:200]!r}, which is no URL.") from None


def carries_data(url: WebUrl) -> bool:
    """Whether words could stand in it that its host would hear: more than an address has need of."""
    name = ".".join(url.host.split(".")[:-2])
    is_plain = len(url.path) <= _PLAIN_PATH and len(name) <= _PLAIN_NAME and _PLAIN.fullmatch(f"{name}{url.path}")
    return bool(url.query) or not is_plain


def hosts_told(text: str) -> Iterator[tuple[str, str]]:
    """Who would hear words by the URLs in a text, each with the URL. One that nobody should write is its own host."""
    for found in _IN_TEXT.finditer(text):
        try:
            url = parse_url(found[0])
        except UrlError:
            yield found[0][:200], found[0]
            continue
        if carries_data(url):
            yield url.authority, str(url)


def _host_and_port(authority: str, scheme: str) -> tuple[str, int]:
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority, ""
    if not port:
        return _host(host), _PORTS[scheme]
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UrlError(f"{port[:20]!r} is no port. Write a number from 1 to 65535, or none.")
    return _host(host), int(port)


def _host(text: str) -> str:
    """The host in ASCII and lower case, a name checked letter by letter. Raises UrlError."""
    if text.startswith("["):
        return text.lower()
    host = (text if text.isascii() else _in_ascii(text)).lower()
    host = host.removesuffix(".")
    if not host or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise UrlError(f"{text[:200]!r} is no name of a host. Write it plainly, like example.com.")
    return host


def _in_ascii(text: str) -> str:
    import idna  # its tables take 10 ms, and few names need them

    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise UrlError(f"{text[:200]!r} is no name of a host: {error}.") from None


def _address(host: str) -> Address | None:
    """The address that the host is; None for a name. One way to write each, others are refused with UrlError."""
    try:
        if host.startswith("["):
            if not host.endswith("]") or "%" in host:
                raise AddressValueError
            return IPv6Address(host[1:-1])
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return IPv4Address(host)
    except AddressValueError:
        raise UrlError(
            f"{host[:200]!r} is an address in an unusual spelling. Write 192.0.2.1 or [2001:db8::1]."
        ) from None
    return None
