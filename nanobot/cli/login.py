"""`nanobot provider login` and `logout`: accounts instead of keys. What a login says over the wire: providers/oauth."""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, one_line, read_setup
from nanobot.cli.terminal import visible
from nanobot.config.paths import Places
from nanobot.config.provider_table import ProviderSpec, find_by_name
from nanobot.config.schema import Config
from nanobot.errors import UsageError
from nanobot.providers.oauth import github, openai
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.oauth.authority import address_problem
from nanobot.providers.oauth.errors import spoken
from nanobot.providers.oauth.github import GitHubAuthority
from nanobot.providers.oauth.openai import OpenAIAuthority
from nanobot.providers.oauth.screen import Screen
from nanobot.utils.http import HttpPools

LogIn = Callable[[str, HttpPools, Screen], Awaitable[Account]]
LOGINS: dict[str, LogIn] = {
    openai.PROVIDER: lambda address, pools, screen: openai.log_in(OpenAIAuthority.at(address), pools, screen),
    github.PROVIDER: lambda address, pools, screen: github.log_in(GitHubAuthority.at(address), pools, screen),
}
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The provider: openai-codex or github-copilot.")]


def login(
    name: NameArgument,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser; only show the address.")] = False,
    authority: Annotated[
        str, typer.Option("--authority", metavar="URL", help="Another server to log in at, such as GitHub Enterprise.")
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Log in to a provider that is reached by an account."""
    spec = _spec(name)
    if authority and (problem := address_problem(authority)):
        raise UsageError(f"--authority {one_line(authority)} cannot be used: {problem}.")
    setup = read_setup(config, None)
    store = AccountStore.in_state(Places(setup.data_dir).state)
    screen = Terminal(browser=not no_browser and has_browser())

    account = asyncio.run(_log_in(spec, authority, setup.config, store, screen))

    who = f" as {account.name}" if account.name else ""
    screen.say(f"Logged in to {spec.display_name}{who}{f' ({account.plan})' if account.plan else ''}.")
    screen.say(f'Use it once: nanobot agent --model {spoken(spec.name)}/{spec.default_model} -m "Hello"')
    screen.say(f"Use it always: set agents.defaults.provider to {spec.config_key} in {setup.config_path}")


def logout(name: NameArgument, config: ConfigOption = None) -> None:
    """Forget the tokens of an account."""
    spec = _spec(name)
    store = AccountStore.in_state(Places(read_setup(config, None, secrets=False).data_dir).state)
    if asyncio.run(_forget(store, spec.name)):
        typer.echo(f"Logged out of {spec.display_name}: its tokens are deleted here.")
    else:
        typer.echo(f"Nobody was logged in to {spec.display_name}.")


def _spec(name: str) -> ProviderSpec:
    """The provider of that name, in any of its spellings. Raises UsageError, which says which there are."""
    spec = find_by_name(name)
    if spec is not None and spec.name in LOGINS:
        return spec
    known = " and ".join(map(spoken, LOGINS))
    if spec is not None and spec.needs_key:
        raise UsageError(
            f"{spec.display_name} takes a key, not a login: set providers.{spec.config_key}.apiKey or run "
            f"`nanobot onboard`. One logs in to {known}."
        )
    raise UsageError(f"One cannot log in to {one_line(name)!r}. One can to {known}.")


async def _log_in(spec: ProviderSpec, authority: str, config: Config, store: AccountStore, screen: Screen) -> Account:
    section = config.providers.by_name().get(spec.name)
    pools = HttpPools(proxy=(section.proxy if section else None) or None)
    try:
        account = await LOGINS[spec.name](authority, pools, screen)
        async with store.held(spec.name):
            store.save(account)
    finally:
        await pools.close()
    return account


async def _forget(store: AccountStore, provider: str) -> bool:
    if not store.path(provider).exists():
        return False
    async with store.held(provider):  # a renewal elsewhere would put it back
        return store.delete(provider)


def has_browser() -> bool:
    """Whether a browser that is opened here would be seen by the person who types here."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class Terminal:
    """A login's screen: lines on stdout, a browser if there is one, and what is pasted on stdin."""

    def __init__(self, *, browser: bool) -> None:
        self._browser = browser
        self._lines: asyncio.Queue[str] | None = None

    def say(self, text: str) -> None:
        """Show a line."""
        typer.echo(one_line(text))

    def show(self, before: str, what: str, after: str = "") -> None:
        """Show what is to be opened or typed; an address stands alone in its line, so that it can be clicked."""
        self.say(before)
        typer.echo(f"\n  {visible(what)}\n")
        if after:
            self.say(after)
        sys.stdout.flush()

    def open(self, url: str) -> None:
        """Open the page in a thread: some browsers keep their caller waiting until they are closed."""
        if self._browser and url.startswith(("https://", "http://")):
            threading.Thread(target=_browse, args=(url,), name="browser", daemon=True).start()

    async def pasted(self) -> str:
        """The next line somebody types; waits for ever once stdin has ended."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            loop, lines = asyncio.get_running_loop(), self._lines
            threading.Thread(
                target=_read_lines,
                args=(lambda line: loop.call_soon_threadsafe(lines.put_nowait, line),),
                name="pasted",
                daemon=True,
            ).start()
        return await self._lines.get()


def _browse(url: str) -> None:
    import webbrowser  # 10 ms, for those who log in

    with suppress(webbrowser.Error, OSError, ValueError):  # the address stands on the screen
        webbrowser.open(url)


def _read_lines(tell: Callable[[str], object]) -> None:
    """Lines from the descriptor itself: a thread that waits in `sys.stdin` would hold its lock at the end."""
    if sys.stdin is None:  # the descriptor may be anything by now
        return
    rest = b""
    try:
        while chunk := os.read(0, 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                tell(line.decode("utf-8", "replace").strip())
        tell(rest.decode("utf-8", "replace").strip())
    except (OSError, RuntimeError):
        pass  # nobody types here, or nobody listens any more
