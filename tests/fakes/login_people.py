"""People who log in, for tests: what they see is kept, what they do is scripted."""

import asyncio
import urllib.error
import urllib.request


class Person:
    """A screen with a browser that follows where it is sent, or with somebody who pastes."""

    def __init__(self, *pastes: str, browses: bool = True) -> None:
        self.shown: list[str] = []
        self.pages: list[str] = []
        self._pastes = list(pastes)
        self._browses = browses
        self._visits: set[asyncio.Future[None]] = set()

    def say(self, text: str) -> None:
        self.shown.append(text)

    def show(self, before: str, what: str, after: str = "") -> None:
        self.shown += [before, what, after]

    def open(self, url: str) -> None:
        if self._browses:
            visit = asyncio.ensure_future(asyncio.to_thread(self._visit, url))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    def _visit(self, url: str) -> None:
        self.pages.append(get(url))

    async def read_line(self) -> str:
        if self._pastes:
            return self._pastes.pop(0)
        return await asyncio.Future()


def get(url: str) -> str:
    """A page, at the end of all redirects, whatever its status."""
    try:
        with urllib.request.urlopen(url, timeout=10) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def address_after(url: str) -> str:
    """Where a browser would be sent from here."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_args: object) -> None:
            return None

    try:
        urllib.request.build_opener(Stay).open(url, timeout=10)
    except urllib.error.HTTPError as error:
        with error:
            return str(error.headers["Location"])
    raise AssertionError("no redirect")
