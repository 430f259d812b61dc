"""The errors of the API, in OpenAI's shape."""

from typing import Any

from starlette.responses import JSONResponse, Response

from nanobot.security.http_access import HEADERS, HttpError

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 413: "too_large", 415: "unsupported_media", 503: "unavailable"}
NO_RETRY = {"x-should-retry": "false"}
"""Header that keeps OpenAI's clients from sending a request again by themselves."""


def error_fields(error: HttpError) -> dict[str, Any]:
    """An error in OpenAI's words."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    if error.code == "spending_limit":
        kind = "insufficient_quota"
    code = error.code or _CODES.get(error.status)
    return {"message": str(error), "type": kind, "param": error.param, "code": code}


def error_response(error: HttpError) -> Response:
    """The answer to a request that failed."""
    return JSONResponse({"error": error_fields(error)}, error.status, {**HEADERS, **error.headers})
