"""Settings, doctor, and what the agent can use: skills, tools, servers."""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel, Field

from nanobot.config.keypath import changed, dotted, get, is_secret, mask_value
from nanobot.config.loader import find_key, load_config, set_key, unset_key
from nanobot.config.saver import to_document
from nanobot.config.schema import Config
from nanobot.security.http_access import HttpError, route
from nanobot.webui.view import WebView

_DOCTOR_S = 120.0


class _Setting(BaseModel):
    key: str
    value: Any = None
    """None removes the key, so that its default applies."""


class _Checks(BaseModel):
    fix: str = Field("", pattern=r"^([a-z][\w.-]*)?$", max_length=100)
    """The check whose findings are to be repaired; empty to look only."""


class SettingsView(WebView):
    @route("GET", "/api/config")
    def show(self) -> Any:
        """What the file sets, and the values that apply; secrets are masked in both. `waiting` has the keys whose new
        value the gateway does not use yet: for seconds, or until it is started anew.
        """
        config = load_config(self.config_file, secrets=False)
        applied, used = (each.model_dump(mode="json", by_alias=True) for each in (config, self.runtime.config))
        # one side has references to secrets, the other their values
        waiting = [path for path in changed(used, applied) if not is_secret(path)]
        return {
            "file": str(self.config_file),
            "set": mask_value((), to_document(config)),
            "applied": mask_value((), applied),
            "waiting": sorted(dotted(path) for path in waiting if "${" not in str(get(applied, path))),
        }

    @route("PATCH", "/api/config", changed="config")
    def change(self, body: _Setting) -> Any:
        """Set one key, or remove it. It is checked before it is saved; the gateway applies it within a second."""
        key = find_key(body.key)
        if body.value is None:
            unset_key(self.config_file, key)
        else:
            set_key(self.config_file, key, [body.value])
        return {"key": dotted(key), "value": None if is_secret(key) else body.value}

    @route("GET", "/api/config/schema")
    def schema(self) -> Any:
        """The JSON schema of the config, for completion."""
        return Config.model_json_schema(by_alias=True)

    @route("POST", "/api/doctor")
    async def doctor(self, body: _Checks) -> Any:
        """Run `nanobot doctor --json` and return its report; with `fix` only that check, and repair what it finds."""
        arguments = ["-m", "nanobot", "doctor", "--json", "--config", str(self.config_file)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            *(("--fix", body.fix) if body.fix else ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_DOCTOR_S):
                output, _ = await process.communicate()
            return json.loads(output)
        except TimeoutError as error:
            raise HttpError(504, f"The checks took longer than {_DOCTOR_S:.0f} s.") from error
        except ValueError as error:
            raise HttpError(500, "The checks failed. Run `nanobot doctor` in a terminal.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @route("GET", "/api/skills")
    def skills(self) -> Any:
        loader = self.runtime.context.skills
        return {"skills": [loader.facts(skill) for skill in loader.skills()]}

    @route("GET", "/api/tools")
    async def tools(self) -> Any:
        """The tools of a request, with the size of each definition in the prompt, in characters."""
        return {
            "tools": [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "effect": tool.effect,
                    "size": len(tool.description) + len(json.dumps(tool.parameters)),
                }
                for tool in sorted(self.runtime.tools, key=lambda tool: tool.name)
            ]
        }

    @route("GET", "/api/servers")
    async def servers(self) -> Any:
        servers = self.runtime.servers
        found = [servers.find(name) for name in self.runtime.config.tools.mcp_servers] if servers else []
        return {
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
