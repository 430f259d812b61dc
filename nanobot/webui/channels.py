"""The chat apps: which there are, the form of each, and the login, whose steps are streamed while they happen."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel

from nanobot.channels.base import LoginStep
from nanobot.channels.platforms import PlatformSetup, SetupField, find_platform
from nanobot.channels.registry import CHANNELS
from nanobot.channels.setup import SetupForm, can_start, load_sign_in, read_form, sdk_problem, try_form
from nanobot.config.channels import ChannelConfig
from nanobot.config.loader import load_config
from nanobot.errors import NanobotError
from nanobot.net import sse
from nanobot.security.http_access import HttpError, event_stream, route
from nanobot.utils.aio import contain_errors
from nanobot.utils.qr_code import qr_rows
from nanobot.utils.storage_error import error_text
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

log = logging.getLogger(__name__)

Event = dict[str, Any]


class _Answer(BaseModel):
    text: str


@dataclass(eq=False, slots=True)
class _Login:
    """A login that somebody follows in the page."""

    events: "asyncio.Queue[Event | None]" = field(default_factory=asyncio.Queue)
    """What happened; None at the end."""
    answer: "asyncio.Future[str] | None" = None
    """To the open question."""
    task: "asyncio.Task[None] | None" = None

    def show(self, step: LoginStep) -> None:
        qr = qr_rows(step.qr) if step.qr else []
        self.events.put_nowait({"type": "step", "text": step.text, "qr": qr, "code": step.code, "link": step.link})

    async def ask(self, question: str) -> str:
        self.answer = asyncio.get_running_loop().create_future()
        self.events.put_nowait({"type": "question", "text": question})
        return await self.answer


class ChannelsView(WebView):
    def __init__(self, services: WebServices) -> None:
        super().__init__(services)
        self._logins: dict[str, _Login] = {}
        """By channel: the newest login, which has ended the one before it."""

    @route("GET", "/api/channels")
    async def channels(self) -> Any:
        """The channels there are, with the state of those that are enabled."""
        states, config = (await self.services.report())["channels"], self.runtime.config
        titles, enabled = {spec.name: spec.title for spec in CHANNELS}, config.channels.enabled_by_name()
        shown = []
        for name in sorted({*titles, *states}):
            platform = find_platform(name)
            shown.append(
                {
                    "name": name,
                    "title": titles.get(name, name),
                    "requires": platform.requires if platform is not None else "",
                    "enabled": enabled.get(name, False),
                    "complete": platform is None or can_start(platform, config),
                    "status": states.get(name),
                }
            )
        return {"channels": shown}

    @route("GET", "/api/channels/{name}/form")
    def form(self, name: str) -> Any:
        """What has to be filled in, with the existing settings; of a secret only whether it is set."""
        platform = _platform(name)
        section = load_config(self.config_file, secrets=False).channels.section(name)
        owner = None if self.runtime.pairing.people(name).owners else platform.owner
        return {
            **{key: getattr(platform, key) for key in ("name", "title", "instructions", "consent", "links_account")},
            "missing_package": sdk_problem(name),
            "agreed": bool(getattr(section, "consent_granted", False)),
            "signs_in": load_sign_in(platform) is not None,
            "fields": [
                _shown_field(each, section) for each in platform.fields if platform.ways or not platform.sign_in
            ],
            "owner": owner and {"label": owner.label, "hint": owner.hint},
            "first_step": platform.first_step.format(title=platform.title),
        }

    @route("POST", "/api/channels/{name}/login")
    async def login(self, name: str, body: SetupForm) -> Any:
        """Log in with a form, save it, and start the channel. A stream: `step`s and `question`s, then `done` or
        `error`. The login ends with the request, and with a newer login of the channel.
        """
        platform, login = _platform(name), _Login()
        former, self._logins[name] = self._logins.get(name), login
        if former is not None and former.task is not None:
            former.task.cancel()
            await asyncio.wait([former.task])
        return event_stream(self._stream(platform, body, login))

    async def _stream(self, platform: PlatformSetup, form: SetupForm, login: _Login) -> AsyncIterator[bytes]:
        """Run a login and yield its events. It ends when nobody reads them any more."""
        login.task = asyncio.create_task(self._log_in(platform, form, login), name=f"login {platform.name}")
        try:
            while True:
                try:
                    event = await asyncio.wait_for(login.events.get(), sse.PING_S)
                except TimeoutError:
                    yield sse.PING
                    continue
                if event is None:
                    return
                yield sse.event(event)
        finally:
            login.task.cancel()

    async def _log_in(self, platform: PlatformSetup, form: SetupForm, login: _Login) -> None:
        load = partial(load_config, self.config_file)
        try:
            config = await asyncio.to_thread(load)
            setup = await read_form(platform, form, config.channels.section(platform.name), login.show, login.ask)
            async with self.services.channel_paused(platform.name):
                await contain_errors(try_form(setup, form, config, self.paths, login.show))
                await asyncio.to_thread(setup.save, load, self.config_file, self.paths)
            self.feed.changed("config")
            login.events.put_nowait({"type": "done"})
        except (NanobotError, OSError) as error:
            login.events.put_nowait({"type": "error", "text": error_text(error)})
        except Exception as error:  # an SDK may raise anything
            log.exception("%s: the login from the page failed", platform.name)
            login.events.put_nowait({"type": "error", "text": f"{type(error).__name__}: {error}"})
        finally:
            login.events.put_nowait(None)

    @route("POST", "/api/channels/{name}/answer", status=202)
    async def answer(self, name: str, body: _Answer) -> Any:
        """Answer the open question of a login."""
        login = self._logins.get(name)
        if login is None or login.answer is None or login.answer.done():
            raise HttpError(409, "Nothing is asked.")
        login.answer.set_result(body.text.strip())
        return {"answered": True}


def _platform(name: str) -> PlatformSetup:
    platform = find_platform(name)
    if platform is None:
        raise HttpError(404, "There is no such chat app, or it belongs to a plugin, whose guide says how it is set up.")
    return platform


def _shown_field(one: SetupField, section: ChannelConfig) -> Event:
    return {
        "name": one.name,
        "label": one.label,
        "hint": one.hint,
        "secret": one.is_secret,
        "optional": one.suggest is not None,
        "is_set": one.suggest is None and one.is_set(section),
        "value": "" if one.is_secret or one.suggest is not None else str(getattr(section, one.name)),
    }
