"""The chat apps: which there are, the form of each, and the login, whose steps are streamed while they happen."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nanobot.channels.login import LoginStep
from nanobot.channels.platforms import PlatformSetup, SetupField, find_platform
from nanobot.channels.registry import CHANNELS
from nanobot.channels.setup import SetupForm, can_start, load_sign_in, read_form, sdk_problem, try_form
from nanobot.config.channels import ChannelConfig
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.net import sse
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.utils.aio import contain_errors
from nanobot.utils.qr_code import qr_rows
from nanobot.utils.storage_error import error_text
from nanobot.webui.services import WebServices

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


class ChannelEndpoints:
    """The endpoints of the chat apps."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        self._places = DataPaths(services.runtime.data_dir)
        self._file = services.runtime.config.loaded_from.file or self._places.config
        self._logins: dict[str, _Login] = {}
        """By channel: the newest login, which has ended the one before it."""

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/channels", self.channels, Requires.DEVICE),
            Endpoint("/api/channels/{name}/form", self.form, Requires.DEVICE),
            Endpoint("/api/channels/{name}/login", self.login, Requires.DEVICE, ("POST",)),
            Endpoint("/api/channels/{name}/answer", self.answer, Requires.DEVICE, ("POST",)),
        ]

    async def channels(self, request: Request, caller: Credential | None) -> Response:
        """The channels there are, with the state of those that are enabled."""
        report, config = await self._services.report(), self._services.runtime.config
        titles = {spec.name: spec.title for spec in CHANNELS}
        enabled = config.channels.enabled_by_name()
        channels = [
            {
                "name": name,
                "title": titles.get(name, name),
                "requires": platform.requires if (platform := find_platform(name)) is not None else "",
                "enabled": enabled.get(name, False),
                "complete": platform is None or can_start(platform, config),
                "status": report["channels"].get(name),
            }
            for name in sorted({*titles, *report["channels"]})
        ]
        return json_response({"channels": channels})

    async def form(self, request: Request, caller: Credential | None) -> Response:
        """What has to be filled in, with the existing settings; of a secret only whether it is set."""
        platform = _platform(request)
        config = await asyncio.to_thread(load_config, self._file, secrets=False)
        missing_package = await asyncio.to_thread(sdk_problem, platform.name)
        section = config.channels.section(platform.name)
        people = await asyncio.to_thread(self._services.runtime.pairing.people, platform.name)
        return json_response(
            {
                "name": platform.name,
                "title": platform.title,
                "instructions": platform.instructions,
                "missing_package": missing_package,
                "consent": platform.consent,
                "agreed": bool(getattr(section, "consent_granted", False)),
                "signs_in": load_sign_in(platform) is not None,
                "links_account": platform.links_account,
                "fields": [
                    _shown_field(each, section) for each in platform.fields if platform.ways or not platform.sign_in
                ],
                "owner": None if people.owners else {"label": platform.owner.label, "hint": platform.owner.hint},
                "first_step": platform.first_step.format(title=platform.title),
            }
        )

    async def login(self, request: Request, caller: Credential | None) -> Response:
        """Log in with a form, save it, and start the channel. A stream: `step`s and `question`s, then `done` or
        `error`. The login ends with the request, and with a newer login of the channel.
        """
        platform, form = _platform(request), await read_json(request, SetupForm)
        login = _Login()
        former, self._logins[platform.name] = self._logins.get(platform.name), login
        if former is not None and former.task is not None:
            former.task.cancel()
            await asyncio.wait([former.task])
        return StreamingResponse(self._stream(platform, form, login), media_type=sse.CONTENT_TYPE, headers=sse.HEADERS)

    async def answer(self, request: Request, caller: Credential | None) -> Response:
        """Answer the open question of a login."""
        login, given = self._logins.get(_platform(request).name), await read_json(request, _Answer)
        if login is None or login.answer is None or login.answer.done():
            raise HttpError(409, "Nothing is asked.")
        login.answer.set_result(given.text.strip())
        return json_response({"answered": True}, 202)

    async def _stream(self, platform: PlatformSetup, form: SetupForm, login: _Login) -> AsyncIterator[bytes]:
        """Run a login and yield its events. It ends when nobody reads them any more."""
        login.task = asyncio.create_task(self._log_in(platform, form, login), name=f"login {platform.name}")
        try:
            while True:
                try:
                    async with asyncio.timeout(sse.PING_S):
                        event = await login.events.get()
                except TimeoutError:
                    yield sse.PING
                    continue
                if event is None:
                    return
                yield sse.event(event)
        finally:
            login.task.cancel()

    async def _log_in(self, platform: PlatformSetup, form: SetupForm, login: _Login) -> None:
        load = partial(load_config, self._file)
        try:
            config: Config = await asyncio.to_thread(load)
            section = config.channels.section(platform.name)
            setup = await read_form(platform, form, section, login.show, login.ask)
            async with self._services.channel_paused(platform.name):
                await contain_errors(try_form(setup, form, config, self._places, login.show))
                await asyncio.to_thread(setup.save, load, self._file, self._places)
            self._services.feed.changed("config")
            login.events.put_nowait({"type": "done"})
        except (NanobotError, OSError) as error:
            login.events.put_nowait({"type": "error", "text": error_text(error)})
        except Exception as error:  # an SDK may raise anything
            log.exception("%s: the login from the page failed", platform.name)
            login.events.put_nowait({"type": "error", "text": f"{type(error).__name__}: {error}"})
        finally:
            login.events.put_nowait(None)


def _platform(request: Request) -> PlatformSetup:
    platform = find_platform(request.path_params["name"])
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
