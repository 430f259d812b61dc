"""Settings, doctor, and what the agent can use: skills, tools, servers."""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.config.keypath import changed, dotted, get, is_secret, mask_value
from nanobot.config.loader import find_key, load_config, set_key, unset_key
from nanobot.config.paths import DataPaths
from nanobot.config.saver import to_document
from nanobot.config.schema import Config
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.webui.services import WebServices

_DOCTOR_S = 120.0


class _Setting(BaseModel):
    key: str
    value: Any = None
    """None removes the key, so that its default applies."""


class _Checks(BaseModel):
    fix: str = Field("", pattern=r"^([a-z][\w.-]*)?$", max_length=100)
    """The check whose findings are to be repaired; empty to look only."""


class SettingsEndpoints:
    """The endpoints of settings and of what there is."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        runtime = services.runtime
        self._file = runtime.config.loaded_from.file or DataPaths(runtime.data_dir).config

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/config", self.show, Requires.DEVICE),
            Endpoint("/api/config", self.change, Requires.DEVICE, ("PATCH",)),
            Endpoint("/api/config/schema", self.schema, Requires.DEVICE),
            Endpoint("/api/doctor", self.doctor, Requires.DEVICE, ("POST",)),
            Endpoint("/api/skills", self.skills, Requires.DEVICE),
            Endpoint("/api/tools", self.tools, Requires.DEVICE),
            Endpoint("/api/servers", self.servers, Requires.DEVICE),
        ]

    async def show(self, request: Request, caller: Credential | None) -> Response:
        """What the file sets, and the values that apply; secrets are masked in both. `waiting` has the keys whose new
        value the gateway does not use yet: for seconds, or until it is started anew.
        """

        def read() -> dict[str, Any]:
            config = load_config(self._file, secrets=False)
            dump: dict[str, Any] = {"mode": "json", "by_alias": True}
            applied, used = config.model_dump(**dump), self._services.runtime.config.model_dump(**dump)
            # one side has references to secrets, the other their values
            waiting = [path for path in changed(used, applied) if not is_secret(path)]
            return {
                "file": str(self._file),
                "set": mask_value((), to_document(config)),
                "applied": mask_value((), applied),
                "waiting": sorted(dotted(path) for path in waiting if "${" not in str(get(applied, path))),
            }

        return json_response(await asyncio.to_thread(read))

    async def change(self, request: Request, caller: Credential | None) -> Response:
        """Set one key, or remove it. It is checked before it is saved; the gateway applies it within a second."""
        new = await read_json(request, _Setting)
        key = find_key(new.key)
        if new.value is None:
            await asyncio.to_thread(unset_key, self._file, key)
        else:
            await asyncio.to_thread(set_key, self._file, key, [new.value])
        self._services.feed.changed("config")
        return json_response({"key": dotted(key), "value": None if is_secret(key) else new.value})

    async def schema(self, request: Request, caller: Credential | None) -> Response:
        """The JSON schema of the config, for completion."""
        return json_response(await asyncio.to_thread(Config.model_json_schema, by_alias=True))

    async def doctor(self, request: Request, caller: Credential | None) -> Response:
        """Run `nanobot doctor --json` and return its report; with `fix` only that check, and repair what it finds."""
        fix = (await read_json(request, _Checks)).fix
        arguments = ("-m", "nanobot", "doctor", "--json", "--config", str(self._file), *(("--fix", fix) if fix else ()))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_DOCTOR_S):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise HttpError(504, f"The checks took longer than {_DOCTOR_S:.0f} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            return json_response(json.loads(output))
        except ValueError as error:
            raise HttpError(500, "The checks failed. Run `nanobot doctor` in a terminal.") from error

    async def skills(self, request: Request, caller: Credential | None) -> Response:
        loader = self._services.runtime.context.skills

        def read() -> list[dict[str, object]]:
            return [loader.facts(skill) for skill in loader.skills()]

        return json_response({"skills": await asyncio.to_thread(read)})

    async def tools(self, request: Request, caller: Credential | None) -> Response:
        """The tools of a request, with the size of each definition in the prompt, in characters."""
        tools = sorted(self._services.runtime.tools, key=lambda tool: tool.name)
        return json_response(
            {
                "tools": [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "effect": tool.effect,
                        "size": len(tool.description) + len(json.dumps(tool.parameters)),
                    }
                    for tool in tools
                ]
            }
        )

    async def servers(self, request: Request, caller: Credential | None) -> Response:
        """The MCP servers and what they offer."""
        servers = self._services.runtime.servers
        found = [servers.find(name) for name in self._services.runtime.config.tools.mcp_servers] if servers else []
        return json_response(
            {
                "servers": [
                    {
                        "name": server.name,
                        "transport": server.config.transport,
                        "tools": server.offered_names(),
                        "left_out": server.left_out,
                    }
                    for server in found
                    if server is not None
                ]
            }
        )
