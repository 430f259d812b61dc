"""ChatGPT and GitHub on loopback: who gives tokens, and the model servers that take them; strict about both.

    with FakeAuthority() as server:
        server.script(Say("hello"))
        ...  # log in at server.url, ask at server.codex or server.copilot

It is a FakeModels with more doors. What they want and refuse follows:

- OAuth 2: RFC 6749, PKCE: RFC 7636, the device flow: RFC 8628 and docs.github.com, "Authorizing OAuth apps"
- the login and the backend of Codex: the published source of OpenAI's client, github.com/openai/codex (codex-rs/login,
  codex-rs/codex-api); its refusals as people report them ({"detail": "Unsupported parameter: max_output_tokens"})
- Copilot: what public clients send, and the refusals people report ("missing Editor-Version header for IDE auth")
"""

import asyncio
import base64
import hashlib
import json
import re
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.testing.model_server import (
    Fail,
    FakeModels,
    Request,
    Responses,
    _send,
    _send_json,
)

ACCOUNT_ID = "acc-1"
EMAIL = "owner@example.org"
Answer = tuple[int, object, dict[str, str]]


def jwt(claims: dict[str, Any]) -> str:
    """A token with these claims and no true signature."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256'})}.{part(claims)}.{part('signature')}"


@dataclass
class _Code:
    challenge: str
    redirect_uri: str
    client_id: str


class FakeAuthority(FakeModels):
    """Both authorities and both model servers."""

    def __init__(self, *, token_life_s: float = 3600, consent: str = "yes", **settings: Any) -> None:
        """`consent`: what the person in the browser does: "yes", "no", or "stranger" (an answer with another state)."""
        super().__init__(**settings)
        self.token_life_s = token_life_s
        self.consent = consent
        self.polls: deque[str] = deque()
        """What the next questions of the device flow are answered: "pending", "slow_down", "unavailable", or an error;
        then yes."""
        self.interval_s = 0.01
        self.code_life_s = 60.0
        self.token_answers: deque[Answer] = deque()
        """What the next requests for a token are answered, instead of being looked at."""
        self.no_copilot = ""
        self.responses_only: set[str] = set()
        self.renewals = 0
        self.token_delay_s = 0.0
        self._codes: dict[str, _Code] = {}
        self._refresh_tokens: set[str] = set()
        self._used: set[str] = set()
        self._access: dict[str, float] = {}
        self._github: set[str] = set()
        self._device_codes: dict[str, float] = {}
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.accounts = AccountStore(Path(self._folder.name) / "accounts")

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    # What tests ask it for.

    @property
    def codex(self) -> str:
        """The base URL of the ChatGPT backend."""
        return f"{self.url}/backend-api/codex"

    @property
    def copilot(self) -> str:
        """The base URL of Copilot."""
        return f"{self.url}/copilot"

    @property
    def chats(self) -> list[Request]:
        """The requests that asked a model."""
        ends = ("/responses", "/chat/completions", "/messages")
        return [request for request in self.requests if request.path.endswith(ends)]

    def asked(self, end: str) -> list[Request]:
        """The requests whose path ends so, whatever stands behind a question mark."""
        return [request for request in self.requests if request.path.partition("?")[0].endswith(end)]

    def openai_account(self, **changes: Any) -> Account:
        """An account as a login here leaves it."""
        expires_at = time.time() + self.token_life_s
        account = Account(
            "openai_codex",
            self.url,
            grant=self._new_refresh_token(),
            access_token=self._new_access_token(expires_at),
            expires_at=expires_at,
            name=EMAIL,
            plan="plus",
            account_id=ACCOUNT_ID,
        )
        return _with(account, changes)

    def github_account(self, **changes: Any) -> Account:
        """The same of GitHub, the token for Copilot still to be got unless `access_token` is given."""
        return _with(Account("github_copilot", self.url, grant=self._new_github_token(), name="octocat"), changes)

    @property
    def given(self) -> set[str]:
        """All that it ever gave and nobody but the account's own file may hold."""
        return {*self._access, *self._refresh_tokens, *self._used, *self._github}

    def end_tokens(self) -> None:
        """Every access token ends now; nobody is told."""
        self._access = dict.fromkeys(self._access, 0.0)

    def revoke(self) -> None:
        """The owner ends all logins."""
        self.end_tokens()
        self._refresh_tokens.clear()
        self._github.clear()

    # The doors.

    async def _answer(self, request: Request, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> bool:
        path = request.path.partition("?")[0]
        doors: dict[str, Callable[[Request], Answer]] = {
            "/oauth/authorize": self._authorize,
            "/oauth/token": self._token,
            "/login/device/code": self._device_code,
            "/login/device": lambda _request: (200, "Type your code.", {}),
            "/login/oauth/access_token": self._device_token,
            "/api/v3/copilot_internal/v2/token": self._copilot_token,
            "/api/v3/user": self._user,
        }
        if path in doors:
            if path in ("/oauth/token", "/api/v3/copilot_internal/v2/token"):
                await asyncio.sleep(self.token_delay_s)
                if self.token_answers:
                    return await self._tell(writer, self.token_answers.popleft())
            return await self._tell(writer, doors[path](request))
        if path.startswith(("/backend-api/codex", "/copilot")):
            refused = self._refused(request, path)
            if refused is not None:
                return await self._tell(writer, refused)
            if path.endswith("/responses"):
                return await self._chat(request, ChatGPT(self), writer, reader)
        return await super()._answer(request, writer, reader)

    async def _tell(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        status, body, headers = answer
        if isinstance(body, str):
            await _send(writer, status, body.encode(), "text/plain", headers)
        else:
            await _send_json(writer, status, body, headers)
        return True

    def _refused(self, request: Request, path: str) -> Answer | None:
        """What a model server finds wrong before it looks at the question."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        good = self._access.get(token, 0) > time.time()
        if path.startswith("/backend-api/codex"):
            if not good:
                message = "Provided authentication token is expired. Please try signing in again."
                return 401, {"error": {"message": message, "code": "token_expired", "type": None}}, {}
            if request.headers.get("chatgpt-account-id") != ACCOUNT_ID or not request.headers.get("originator"):
                return 403, {"detail": "Forbidden"}, {}
            return None
        if not good:
            return 401, "unauthorized: token expired\n", {}
        for name in ("Editor-Version", "Copilot-Integration-Id"):
            if name.lower() not in request.headers:
                return 400, f"bad request: missing {name} header for IDE auth\n", {}
        body = request.json
        if "image_url" in json.dumps(body) and request.headers.get("copilot-vision-request") != "true":
            return 400, "missing required Copilot-Vision-Request header for vision requests\n", {}
        if path.endswith("/chat/completions") and body.get("model") in self.responses_only:
            message = f'model "{body["model"]}" is not accessible via the /chat/completions endpoint'
            return 400, {"error": {"message": message, "code": "unsupported_api_for_model"}}, {}
        return None

    # OpenAI.

    def _authorize(self, request: Request) -> Answer:
        words = _words(request.path.partition("?")[2])
        redirect = urlsplit(words.get("redirect_uri", ""))
        wrong = [
            name
            for name, fine in {
                "response_type": words.get("response_type") == "code",
                "client_id": words.get("client_id") == "app_EMoamEEZ73f0CkXaXp7hrann",
                "redirect_uri": redirect.hostname == "localhost" and redirect.path == "/auth/callback",
                "scope": {"openid", "offline_access"} <= set(words.get("scope", "").split()),
                "code_challenge_method": words.get("code_challenge_method") == "S256",
                "code_challenge": re.fullmatch(r"[A-Za-z0-9_-]{43}", words.get("code_challenge", "")) is not None,
                "state": len(words.get("state", "")) >= 16,
            }.items()
            if not fine
        ]
        if wrong:
            self.problems.append(f"authorize: {', '.join(wrong)}")
            return 400, f"invalid_request: {', '.join(wrong)}", {}
        code = secrets.token_urlsafe(16)
        self._codes[code] = _Code(words["code_challenge"], words["redirect_uri"], words["client_id"])
        answer = {"code": code, "state": words["state"]}
        if self.consent == "no":
            answer = {"error": "access_denied", "error_description": "The user said no", "state": words["state"]}
        elif self.consent == "stranger":
            answer["state"] = "of-somebody-else"
        return 302, "", {"Location": f"{words['redirect_uri']}?{urlencode(answer)}"}

    def _token(self, request: Request) -> Answer:
        if request.headers.get("content-type") != "application/x-www-form-urlencoded":
            return 415, {"error": "invalid_request"}, {}
        words = _words(request.body.decode())
        if words.get("grant_type") == "refresh_token":
            return self._renew(words)
        if words.get("grant_type") != "authorization_code":
            return 400, {"error": "unsupported_grant_type"}, {}
        code = self._codes.pop(words.get("code", ""), None)  # good for one use
        verifier = words.get("code_verifier", "")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        if code is None or (code.redirect_uri, code.client_id) != (words.get("redirect_uri"), words.get("client_id")):
            return 400, {"error": "invalid_grant", "error_description": "The code is unknown or was used"}, {}
        if not 43 <= len(verifier) <= 128 or challenge != code.challenge:
            return 400, {"error": "invalid_grant", "error_description": "The code verifier does not fit"}, {}
        return 200, self._tokens(), {}

    def _renew(self, words: dict[str, str]) -> Answer:
        token = words.get("refresh_token", "")
        if token in self._used:
            message = "Your refresh token has already been used to generate a new access token."
            return 401, {"error": {"message": message, "code": "refresh_token_reused"}}, {}
        if token not in self._refresh_tokens:
            message = "Your refresh token was revoked."
            return 401, {"error": {"message": message, "code": "refresh_token_invalidated"}}, {}
        self._refresh_tokens.discard(token)
        self._used.add(token)
        self.renewals += 1
        return 200, self._tokens(), {}

    def _tokens(self) -> dict[str, Any]:
        expires_at = time.time() + self.token_life_s
        return {
            "access_token": self._new_access_token(expires_at),
            "id_token": jwt({"email": EMAIL, "https://api.openai.com/auth": _AUTH}),
            "refresh_token": self._new_refresh_token(),
            "token_type": "Bearer",
            "expires_in": self.token_life_s,
        }

    def _new_access_token(self, expires_at: float) -> str:
        claims = {"exp": int(expires_at), "jti": secrets.token_hex(4), "https://api.openai.com/auth": _AUTH}
        token = jwt(claims)
        self._access[token] = expires_at
        return token

    def _new_refresh_token(self) -> str:
        token = f"rt_{secrets.token_urlsafe(24)}"
        self._refresh_tokens.add(token)
        return token

    # GitHub.

    def _device_code(self, request: Request) -> Answer:
        words = _words(request.body.decode())
        if words.get("client_id") != "Iv1.b507a08c87ecfe98" or "application/json" not in request.headers["accept"]:
            return 404, {"error": "Not Found"}, {}
        device_code = secrets.token_hex(20)
        self._device_codes[device_code] = time.monotonic()
        answer = {"device_code": device_code, "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/login/device"}
        return 200, {**answer, "expires_in": self.code_life_s, "interval": self.interval_s}, {}

    def _device_token(self, request: Request) -> Answer:
        words = _words(request.body.decode())
        asked_before = self._device_codes.get(words.get("device_code", ""))
        if asked_before is None:
            return 200, {"error": "incorrect_device_code"}, {}
        if words.get("grant_type") != "urn:ietf:params:oauth:grant-type:device_code":
            return 200, {"error": "unsupported_grant_type"}, {}
        too_soon = time.monotonic() - asked_before < self.interval_s * 0.9
        self._device_codes[words["device_code"]] = time.monotonic()
        said = "slow_down" if too_soon else self.polls.popleft() if self.polls else "yes"
        if said == "slow_down":
            self.interval_s *= 3
            return 200, {"error": "slow_down", "interval": self.interval_s}, {}
        if said == "unavailable":
            return 503, "try again", {}
        if said != "yes":
            error = "authorization_pending" if said == "pending" else said
            return 200, {"error": error, "error_description": f"{said}: {words['device_code']}"}, {}
        del self._device_codes[words["device_code"]]
        return 200, {"access_token": self._new_github_token(), "token_type": "bearer", "scope": "read:user"}, {}

    def _copilot_token(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("token ") not in self._github:
            return 401, {"message": "Bad credentials", "status": "401"}, {}
        if "editor-version" not in request.headers:
            return 400, {"message": "missing Editor-Version header for IDE auth"}, {}
        if self.no_copilot:
            return 403, {"error_details": {"message": self.no_copilot, "title": "No access"}}, {}
        self.renewals += 1
        expires_at = time.time() + self.token_life_s
        token = f"tid={secrets.token_hex(8)};exp={int(expires_at)}"
        self._access[token] = expires_at
        answer = {"token": token, "expires_at": int(expires_at), "refresh_in": self.token_life_s - 60}
        return 200, {**answer, "endpoints": {"api": self.copilot}, "sku": "free_limited_copilot"}, {}

    def _user(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("token ") not in self._github:
            return 401, {"message": "Bad credentials"}, {}
        return 200, {"login": "octocat"}, {}

    def _new_github_token(self) -> str:
        token = f"ghu_{secrets.token_hex(18)}"
        self._github.add(token)
        return token


_AUTH = {"chatgpt_account_id": ACCOUNT_ID, "chatgpt_plan_type": "plus"}


def _with(account: Account, changes: dict[str, Any]) -> Account:
    return replace(account, **changes)


def _words(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


class ChatGPT(Responses):
    """How the ChatGPT backend says things, and what it wants beyond the API."""

    def check(self, body: dict[str, Any]) -> Fail | None:
        problem = next(backend_problems(body), None)
        return super().check(body) if problem is None else Fail(400, problem, None, "invalid_request_error")

    def error(self, fail: Fail) -> dict[str, Any]:
        if fail.message.startswith(("Unsupported parameter", "Store must", "Stream must", "Instructions are")):
            return {"detail": fail.message}
        return super().error(fail)


def backend_problems(body: dict[str, Any]) -> Iterator[str]:
    """What only this backend refuses about a request."""
    for name in sorted({"temperature", "max_output_tokens"} & set(body)):
        yield f"Unsupported parameter: {name}"
    if not isinstance(body.get("instructions"), str) or not body["instructions"].strip():
        yield "Instructions are required"
    if body.get("store") is not False:
        yield "Store must be set to false"
    if body.get("stream") is not True:
        yield "Stream must be set to true"
