"""Who vouches for the sender of a mail: the mailbox's own server, by the Authentication-Results it wrote (RFC 8601).

A From line is only words. The server that took the mail in from outside checks SPF, DKIM and DMARC, and writes what it
found above what came. Headers of that kind further down may be a forger's, so only the topmost counts, and only where
it bears our own server's name. What passed must belong to the domain of the From line; else it proves somebody else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the sender is proven; if not, why, in words for the log."""

    is_proven: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Checker:
    """Who may vouch: servers by their names, or all names in these domains."""

    names: tuple[str, ...]
    writes_many: bool = False
    """Whether it writes one header for each check."""

    def is_named(self, name: str) -> bool:
        """Whether this is the name of such a server."""
        return any(name == known or (known and name.endswith(f".{known}")) for known in self.names)


_SERVICES: tuple[tuple[str, Checker], ...] = (
    ("gmail.com", Checker(("mx.google.com",))),
    ("googlemail.com", Checker(("mx.google.com",))),
    ("office365.com", Checker(("",))),  # Exchange Online leaves its name out
    ("outlook.com", Checker(("",))),
    ("mail.me.com", Checker(("icloud.com",), writes_many=True)),
    ("icloud.com", Checker(("icloud.com",), writes_many=True)),
    ("fastmail.com", Checker(("messagingengine.com",))),
    ("yandex.com", Checker(("yandex.net",))),
    ("yandex.ru", Checker(("yandex.net",))),
    ("zoho.com", Checker(("mx.zohomail.com",))),
)
"""Services whose checking servers have another name than their IMAP server, by the end of that one's name."""
_ROLES = {"imap", "imaps", "mail", "mx", "smtp", "pop", "pop3", "webmail", "email", "secure"}


def checker_of(imap_host: str, addresses: Sequence[str], authserv_id: str = "") -> Checker:
    """Who checks what comes to this mailbox: as the config says, as its service is known to do, or as it is likely.

    Likely are the IMAP server itself, and servers of the domain that the mailbox is in.
    """
    host = imap_host.lower().rstrip(".")
    if authserv_id:
        return Checker((authserv_id.lower(),))
    for end, checker in _SERVICES:
        if host == end or host.endswith(f".{end}"):
            return checker
    role, _, domain = host.partition(".")
    served = {address.rpartition("@")[2].lower() for address in addresses if "@" in address}
    around = {domain} if role in _ROLES and _is_somebodys(domain) else set()
    return Checker(tuple(sorted({host} | served | around)))


def judge(headers: Sequence[tuple[str, str]], domain: str, checker: Checker) -> Verdict:
    """Whether a mail with these headers, from the top, comes from this domain."""
    found = [_parsed(value) for name, value in headers if name.lower() == "authentication-results"]
    if not found:
        return Verdict(False, "its server wrote no Authentication-Results")
    name = found[0][0]
    if not checker.is_named(name):
        return Verdict(
            False,
            f"the topmost Authentication-Results are of {name[:80]!r}, which may be anybody; "
            "if that is your mail server, set channels.email.authservId to it",
        )
    results = list(found[0][1])
    if checker.writes_many:
        for other, more in found[1:]:
            if not checker.is_named(other):
                break
            results += more
    if any(one.method == "dmarc" and one.result == "fail" for one in results):
        return Verdict(False, f"DMARC failed for {domain}")
    if any(one.is_passed_by(domain) for one in results):
        return Verdict(True)
    return Verdict(False, f"neither SPF nor DKIM nor DMARC passed for {domain}")


@dataclass(frozen=True, slots=True)
class _Result:
    method: str
    result: str
    properties: dict[str, str]

    def is_passed_by(self, domain: str) -> bool:
        """Whether this shows that the mail is of that domain."""
        if self.result != "pass":
            return False
        told = self.properties
        match self.method:
            case "dmarc":
                return bool(domain) and _domain(told.get("header.from", "")) == _domain(domain)
            case "dkim":
                return any(_aligned(_domain(told.get(key, "")), _domain(domain)) for key in ("header.d", "header.i"))
            case "spf":
                return _aligned(_domain(told.get("smtp.mailfrom", "")), _domain(domain))
        return False


def _domain(value: str) -> str:
    name = value.rpartition("@")[2].strip().lower().rstrip(".")
    try:
        return name.encode("idna").decode("ascii") if not name.isascii() else name
    except UnicodeError:
        return ""


def _aligned(one: str, other: str) -> bool:
    """The same domain, or one within the other (DMARC's relaxed alignment, without a list of public suffixes)."""
    shorter, longer = sorted((one, other), key=len)
    if not shorter:
        return False
    return shorter == longer or (_is_somebodys(shorter) and longer.endswith(f".{shorter}"))


def _is_somebodys(domain: str) -> bool:
    """Whether a domain looks like somebody's own, not like a place where anybody registers (com, co.uk)."""
    labels = domain.split(".")
    if len(labels) < 2 or not all(labels):
        return False
    return len(labels) > 2 or len(labels[-1]) > 2 or len(labels[0]) > 3


def _parsed(header: str) -> tuple[str, list[_Result]]:
    """The name of who checked, and what they found. Never raises."""
    first, *rest = re.sub(r"\s*=\s*", "=", _without_comments(header)).split(";")
    words = first.split()
    if words and "=" in words[0]:  # the name is left out
        return "", [*_results([first, *rest])]
    return (words[0].lower() if words else ""), [*_results(rest)]


def _results(sections: Sequence[str]) -> Iterator[_Result]:
    for section in sections:
        words = section.split()
        if not words or "=" not in words[0]:
            continue
        method, _, result = words[0].partition("=")
        told: dict[str, str] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if equals:
                told.setdefault(name.lower(), value)
        yield _Result(method.partition("/")[0].lower(), result.lower(), told)


def _without_comments(text: str) -> str:
    """The header without comments; what stands in quotes cannot end a part or begin one."""
    out: list[str] = []
    depth, quoted, characters = 0, False, iter(text)
    for char in characters:
        if char == "\\" and (depth or quoted):
            next(characters, "")
            out += ["_"] if quoted and not depth else []
        elif quoted:
            quoted = char != '"'
            out += [char if char.isalnum() or char in "@.-_+" else "_"] if quoted else []
        elif depth:
            depth += (char == "(") - (char == ")")
        elif char == '"':
            quoted = True
        elif char == "(":
            depth = 1
            out.append(" ")
        else:
            out.append(char)
    return "".join(out)
