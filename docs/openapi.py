"""Write docs/openapi.json, the description of the API for tools, from its endpoints.

    python docs/openapi.py

`tests/api/test_openapi.py` compares the file with the endpoints.
"""

import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

from pydantic.json_schema import models_json_schema

from nanobot import __version__
from nanobot.api.app import NewAnswer, NewBranch, endpoints
from nanobot.api.prompts import ChatBody, ResponsesBody
from nanobot.api.requests import ApiServices
from nanobot.security.http_access import Requires

FILE = Path(__file__).resolve().with_name("openapi.json")
_BODIES = {
    ("/v1/chat/completions", "POST"): ChatBody,
    ("/v1/responses", "POST"): ResponsesBody,
    ("/v1/sessions/{key}/branch", "POST"): NewBranch,
    ("/v1/approvals/{question}", "POST"): NewAnswer,
}
_ERROR = {"description": "`{error: {message, type, param, code}}`"}


def document() -> dict[str, Any]:
    """The description, as OpenAPI 3.1 (spec.openapis.org/oas/v3.1.0)."""
    _, schemas = models_json_schema(
        [(body, "validation") for body in _BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints(cast("ApiServices", MagicMock())):
        path = endpoint.path.replace(":path}", "}")
        if endpoint.requires is not Requires.API_KEY or path == "/v1/{path}":
            continue
        for method in endpoint.methods:
            names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
            operation: dict[str, Any] = {
                "summary": " ".join((endpoint.handler.__doc__ or "").split()),
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
                ],
                "responses": {"200": {"description": "Done"}, "default": _ERROR},
            }
            if (body := _BODIES.get((path, method))) is not None:
                content = {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}
                operation["requestBody"] = {"required": True, "content": {"application/json": content}}
            paths.setdefault(path, {})[method.lower()] = operation
    key = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "nanobot", "version": __version__},
        "security": [{"key": []}],
        "paths": paths,
        "components": {"securitySchemes": {"key": key}, "schemas": schemas["$defs"]},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
