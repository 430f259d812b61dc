"""`nanobot provider login` and `logout`: accounts instead of API keys (protocol: `providers/accounts`)."""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import typer

from nanobot.cli.chat.typed_lines import next_line
from nanobot.cli.common import read_setup
from nanobot.cli.output import print_line, to_one_line
from nanobot.cli.terminal import strip_control
from nanobot.config.provider_table import ProviderSpec, find_by_name
from nanobot.config.schema import Config
from nanobot.errors import UsageError
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts import github, openai
from nanobot.providers.accounts.provider import LoginScreen, address_problem
from nanobot.providers.accounts.store import Account, AccountStore, command_name

LoginFunction = Callable[[str, HttpPools, LoginScreen], Awaitable[Account]]
LOGINS: dict[str, LoginFunction] = {openai.PROVIDER: openai.log_in, github.PROVIDER: github.log_in}
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The provider: openai-codex or github-copilot.")]


def login(
    name: NameArgument,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Show the URL without opening a browser.")] = False,
    authority: Annotated[
        str, typer.Option("--authority", metavar="URL", help="Log in at this server, e.g. GitHub Enterprise.")
    ] = "",
) -> None:
    spec = _get_login_provider(name)
    if authority and (problem := address_problem(authority)):
        raise UsageError(f"--authority {to_one_line(authority)} cannot be used: {problem}.")
    setup = read_setup()
    store = AccountStore.in_state(setup.paths.state)
    screen = TerminalLoginScreen(browser=not no_browser and has_browser())

    account = asyncio.run(_log_in(spec, authority, setup.config, store, screen))

    as_user = f" as {account.name}" if account.name else ""
    screen.say(f"Logged in to {spec.display_name}{as_user}{f' ({account.plan})' if account.plan else ''}.")
    screen.say(f'To try it: nanobot agent --model {command_name(spec.name)}/{spec.default_model} -m "Hello"')
    screen.say(f"To use it by default: set agents.defaults.provider to {spec.config_key} in {setup.config_path}")


def logout(name: NameArgument) -> None:
    spec = _get_login_provider(name)
    store = AccountStore.in_state(read_setup(secrets=False).paths.state)

    async def delete() -> bool:
        async with store.lock(spec.name):  # a concurrent token renewal would write it again
            return store.delete(spec.name)

    if store.path(spec.name).exists() and asyncio.run(delete()):
        print_line(f"Logged out of {spec.display_name}; its tokens are deleted from this machine.")
    else:
        print_line(f"Not logged in to {spec.display_name}.")


def _get_login_provider(name: str) -> ProviderSpec:
    """The provider of this name, in any spelling. Raises UsageError, which lists the providers with a login."""
    spec = find_by_name(name)
    if spec is not None and spec.name in LOGINS:
        return spec
    known = " and ".join(map(command_name, LOGINS))
    if spec is not None and spec.needs_key:
        raise UsageError(
            f"{spec.display_name} uses an API key: set providers.{spec.config_key}.apiKey or run `nanobot onboard`. "
            f"Only {known} have a login."
        )
    raise UsageError(f"{to_one_line(name)!r} has no login. Only {known} have one.")


async def _log_in(
    spec: ProviderSpec, authority: str, config: Config, store: AccountStore, screen: LoginScreen
) -> Account:
    section = config.providers.by_name().get(spec.name)
    pools = HttpPools(proxy=(section.proxy if section else None) or None)
    try:
        account = await LOGINS[spec.name](authority, pools, screen)
        async with store.lock(spec.name):
            store.save(account)
    finally:
        await pools.close()
    return account


def has_browser() -> bool:
    """Whether a browser opened here appears on the screen of the person at this terminal."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class TerminalLoginScreen:
    """The login in a terminal: output on stdout, an optional browser, and pasted URLs from stdin."""

    def __init__(self, *, browser: bool) -> None:
        self._browser = browser

    def say(self, text: str) -> None:
        """Print a line."""
        print_line(to_one_line(text))

    def show(self, intro: str, value: str, outro: str = "") -> None:
        """Print a URL or code on a line of its own, so that a terminal makes it clickable."""
        self.say(intro)
        typer.echo(f"\n  {strip_control(value)}\n")
        if outro:
            self.say(outro)
        sys.stdout.flush()

    def open(self, url: str) -> None:
        """Open the page in a thread: some browsers block the caller until they are closed."""
        import webbrowser  # takes 10 ms

        def open_page() -> None:
            with suppress(webbrowser.Error, OSError, ValueError):  # the URL is on the screen as well
                webbrowser.open(url)

        if self._browser and url.startswith(("https://", "http://")):
            threading.Thread(target=open_page, name="browser", daemon=True).start()

    async def read_line(self) -> str:
        """The next line from stdin. Waits forever once stdin has ended."""
        if not (line := await next_line()):
            await asyncio.Event().wait()
        return line.strip()
