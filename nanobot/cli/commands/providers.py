"""`nanobot provider`: the model providers, which of them have a key or an account here, and logging in to those that
use an account (protocol: `providers/accounts`).
"""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli.common import JsonOption, read_setup
from nanobot.cli.output import Column, print_line, print_list, strip_control, to_one_line
from nanobot.config.keypath import mask_value
from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import PROVIDERS, ProviderSpec, find_by_name, spec_for
from nanobot.config.schema import Config
from nanobot.errors import UsageError
from nanobot.providers.accounts.store import Account, AccountStore, command_name
from nanobot.utils.text import format_when

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The provider: openai-codex or github-copilot.")]


@dataclass(frozen=True)
class ProviderFacts:
    name: str
    display_name: str
    key_from: str
    """The config key or environment variable its API key comes from; empty without a key."""
    key: str
    """The key, masked."""
    api_base: str
    default_model: str
    backend: str
    local: bool
    account: bool
    """Whether it uses an account instead of an API key."""
    logged_in: str = ""
    """The account that is logged in; empty for none."""
    token_until: str = ""
    """When its token expires; it is renewed before that."""
    login_ended: bool = False
    """Whether the provider has rejected the login."""

    @property
    def key_words(self) -> str:
        if self.key:
            return f"{self.key} ({self.key_from})"
        if self.local:
            return "not needed"
        return self.account_words if self.account else "-"

    @property
    def account_words(self) -> str:
        """The account, and whether its login is still valid."""
        if not self.logged_in:
            return "not logged in"
        if self.login_ended:
            return f"login ended: {self.logged_in}; `nanobot provider login {command_name(self.name)}`"
        return f"{self.logged_in}{f', token until {self.token_until}' if self.token_until else ''}"


def list_(json: JsonOption = False) -> None:
    setup = read_setup(secrets=False)
    columns: dict[str, Column] = {
        "Provider": "name",
        "Key": lambda facts: facts.key_words,
        "Base URL": lambda facts: facts.api_base or "-",
        "Default model": lambda facts: facts.default_model or "-",
        "Backend": "backend",
    }
    providers = list(provider_facts(setup.config, os.environ, setup.data_dir))
    print_list(providers, columns, as_json=json, empty="There are no providers.")


def provider_facts(config: Config, environ: Mapping[str, str], data_dir: Path) -> Iterator[ProviderFacts]:
    """Every known provider, then custom ones from the config."""
    sections = config.providers.by_name()
    accounts = {account.provider: account for account in AccountStore.in_state(DataPaths(data_dir).state).all()}
    custom = [spec_for(name) for name in sections if not any(spec.name == name for spec in PROVIDERS)]
    for spec in (*PROVIDERS, *custom):
        section = sections.get(spec.name)
        key_from, key = spec.env_variable(environ), spec.env_key(environ) or ""
        if section and section.api_key:
            key_from, key = f"providers.{spec.config_key}.apiKey", section.api_key
        account = accounts.get(spec.name) if spec.is_oauth else None
        is_direct = spec.is_oauth or spec.is_direct("auto")
        backend = section.backend if section else "auto"
        yield ProviderFacts(
            name=spec.name,
            display_name=spec.display_name,
            key_from=key_from,
            key=str(mask_value(("apiKey",), key)),
            api_base=(section.api_base if section else None) or spec.default_api_base or "",
            default_model=spec.default_model or "",
            backend=("direct" if is_direct else "litellm") if backend == "auto" else backend,
            local=spec.is_local,
            account=spec.is_oauth,
            logged_in=f"{account.name or 'logged in'}{f' ({account.plan})' if account.plan else ''}" if account else "",
            token_until=_format_expiry(account.expires_at) if account else "",
            login_ended=bool(account and account.refused),
        )


def _format_expiry(seconds: float | None) -> str:
    try:
        return format_when(datetime.fromtimestamp(seconds).astimezone()) if seconds else ""
    except (OSError, OverflowError, ValueError):  # the server may have sent any number
        return ""


def login(
    name: NameArgument,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Show the URL without opening a browser.")] = False,
    authority: Annotated[
        str, typer.Option("--authority", metavar="URL", help="Log in at this server, e.g. GitHub Enterprise.")
    ] = "",
) -> None:
    from nanobot.net.pools import HttpPools  # only a login needs these
    from nanobot.providers.accounts import github, openai
    from nanobot.providers.accounts.provider import address_problem

    spec = _get_login_provider(name)
    if authority and (problem := address_problem(authority)):
        raise UsageError(f"--authority {to_one_line(authority)} cannot be used: {problem}.")
    setup = read_setup()
    section, store = setup.config.providers.by_name().get(spec.name), AccountStore.in_state(setup.paths.state)
    screen = TerminalLoginScreen(opens_browser=not no_browser and _has_browser())

    async def log_in() -> Account:
        pools = HttpPools(proxy=(section.proxy if section else None) or None)
        try:
            sign_in = openai.log_in if spec.name == openai.PROVIDER else github.log_in
            account = await sign_in(authority, pools, screen)
            async with store.lock(spec.name):
                store.save(account)
        finally:
            await pools.close()
        return account

    account = asyncio.run(log_in())

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
    if spec is not None and spec.is_oauth:
        return spec
    known = " and ".join(command_name(other.name) for other in PROVIDERS if other.is_oauth)
    if spec is not None and spec.needs_key:
        raise UsageError(
            f"{spec.display_name} uses an API key: set providers.{spec.config_key}.apiKey or run `nanobot onboard`. "
            f"Only {known} have a login."
        )
    raise UsageError(f"{to_one_line(name)!r} has no login. Only {known} have one.")


def _has_browser() -> bool:
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

    def __init__(self, *, opens_browser: bool) -> None:
        self._opens_browser = opens_browser

    def say(self, text: str) -> None:
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

        if self._opens_browser and url.startswith(("https://", "http://")):
            threading.Thread(target=open_page, name="browser", daemon=True).start()

    async def read_line(self) -> str:
        """The next line from stdin. Waits forever once stdin has ended."""
        from nanobot.cli.chat.keyboard import next_line  # slow to import

        if not (line := await next_line()):
            await asyncio.Event().wait()
        return line.strip()
