"""Reads the bodies of requests: messages, their files, whose conversation it is, and what is asked of the turn."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from nanobot.api.requests import answer_form
from nanobot.channels.media import MediaKind
from nanobot.config.schema import Config
from nanobot.security.http_access import HttpError

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,(.*)", re.DOTALL)
_MARKER = re.compile(r"[A-Za-z0-9._-]{1,120}")
_OPEN_WEBUI_TASK = "### Task:"
"""How the hidden requests of an Open WebUI begin that does not send its header."""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    data: bytes
    name: str | None = None
    content_type: str | None = None
    kind: MediaKind = MediaKind.FILE
    url: str = ""
    """Where the picture is to be fetched, which has no data yet."""


@dataclass(slots=True)
class ClientMessage:
    role: Literal["user", "assistant"]
    text: str
    files: list[UploadedFile] = field(default_factory=list)


@dataclass(slots=True)
class Prompt:
    """What is new in a request, and what was said before it according to the client."""

    new: list[ClientMessage]
    history: list[ClientMessage]
    instructions: str
    approvals: dict[str, bool] = field(default_factory=dict)
    """Answers to approval questions, by their ids."""

    @property
    def text(self) -> str:
        return "\n\n".join(message.text for message in self.new if message.text)

    @property
    def files(self) -> list[UploadedFile]:
        return [file for message in self.new for file in message.files]


@dataclass(slots=True)
class ParsedRequest:
    prompt: Prompt
    marker: str | None
    """The name of the conversation; None if it names none, empty if its turn is not to be stored."""
    options: dict[str, Any]
    """What is asked of the turn, for `turn_options`."""
    echo: dict[str, Any]
    """What its response repeats."""
    session: str = ""
    """The session that it continues, if it names a response and no conversation."""
    is_stored: bool = False
    """Whether a session of its own stays, so that another request can continue it."""


class _Body(BaseModel):
    """Fields that both endpoints have. Others are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str = "nanobot"
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    metadata: dict[str, Any] | None = None
    user: str | None = None
    session_id: str | None = None
    store: bool | None = None
    tools: list[Any] | None = None

    def _options(self, config: Config, **options: Any) -> dict[str, Any]:
        """What is asked of the turn. Raises HttpError."""
        _check_tools("tools", self.tools, config)
        asked = {"model": model_name(self.model, config), "temperature": self.temperature, **options}
        return {name: value for name, value in asked.items() if value is not None}

    def _conversation(self) -> str | None:
        """The name of the conversation in a field of its own."""
        return None

    def _marker(self, request: Request) -> str | None:
        """The name of the conversation, the first that the request has. Raises HttpError."""
        if self.store is False:
            return ""
        chat = request.headers.get("x-openwebui-chat-id", "")
        candidates = (
            request.headers.get("x-nanobot-session"),
            self.session_id,
            self._conversation(),
            chat if not chat.startswith("local:") else None,  # a temporary chat of Open WebUI
            (self.metadata or {}).get("session"),
            self.user,
        )
        marker = next((str(value) for value in candidates if value), None)
        if marker is not None and not _MARKER.fullmatch(marker):
            text = "The name of a conversation has 1 to 120 letters, digits, dots, hyphens and underscores."
            raise HttpError(400, text, code="invalid_value", param="session_id")
        return marker


class StreamOptions(BaseModel):
    include_usage: bool | None = False


class ChatBody(_Body):
    """The body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    n: int | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None

    def parse(self, request: Request, config: Config, form: Prompt | None = None) -> ParsedRequest:
        """Read it; `form` is the prompt of one that came as a form. Raises HttpError."""
        _check_tools("functions", self.functions, config)
        for name, is_given, text in (
            ("n", (self.n or 1) > 1, "There is one answer: leave `n` out."),
            ("logprobs", self.logprobs, "An agent's answer has no log probabilities."),
            ("modalities", "audio" in (self.modalities or ()), "Answers are text."),
        ):
            if is_given:
                raise _unsupported(name, text)
        wanted = (self.response_format or {}).get("json_schema")
        options = self._options(
            config,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            reasoning_effort=self.reasoning_effort,
            schema=_schema(self.response_format, wanted.get("schema") if isinstance(wanted, dict) else None),
        )
        prompt = form or _prompt(self.messages, "messages")
        return ParsedRequest(prompt, self._marker(request), options, {"model": self.model})

    def is_task(self, request: Request, asked: ParsedRequest) -> bool:
        """Whether Open WebUI asks for a title, tags or the like, which nobody said in a conversation."""
        if request.headers.get("x-openwebui-task") or (self.metadata or {}).get("task"):
            return True
        prompt = asked.prompt
        return not (asked.marker or prompt.history) and prompt.text.startswith(_OPEN_WEBUI_TASK)


class Reasoning(BaseModel):
    effort: str | None = None


class TextOptions(BaseModel):
    format: dict[str, Any] | None = None


class Conversation(BaseModel):
    id: str


class ResponsesBody(_Body):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    background: bool | None = False
    max_output_tokens: int | None = Field(default=None, ge=1)
    reasoning: Reasoning | None = None
    text: TextOptions | None = None

    def parse(self, request: Request, config: Config) -> ParsedRequest:
        """Read it. Raises HttpError."""
        if self.background and self.store is False:
            raise HttpError(400, "A background response is stored: leave `store` out.", param="store")
        form = self.text.format if self.text is not None else None
        options = self._options(
            config,
            max_tokens=self.max_output_tokens,
            reasoning_effort=self.reasoning.effort if self.reasoning is not None else None,
            schema=_schema(form, (form or {}).get("schema")),
        )
        is_text = isinstance(self.input, str)
        prompt = _prompt([{"role": "user", "content": self.input}] if is_text else [*self.input], "input")
        prompt.instructions = "\n\n".join(filter(None, [self.instructions or "", prompt.instructions]))
        echo = self.model_dump(
            include={"model", "metadata", "instructions", "previous_response_id", "background", "store"},
            exclude_none=True,
        )
        return ParsedRequest(prompt, self._marker(request), options, echo, is_stored=self.store is not False)

    def _conversation(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, Conversation) else self.conversation


def model_name(model: str, config: Config) -> str | None:
    """The model or preset that a request names; None for the configured one. Raises HttpError."""
    if model in config.model_presets or model == config.agents.defaults.model:
        return model
    prefix, colon, preset = model.partition(":")
    is_preset = prefix == "nanobot" and bool(colon)
    if is_preset and preset in config.model_presets:
        return preset
    if is_preset or not (model == "nanobot" or config.api.any_model):
        raise unknown_model(model)
    return None


def unknown_model(name: str) -> HttpError:
    """The error for a model that nanobot has not."""
    return HttpError(404, f"There is no model {name!r}. See GET /v1/models.", code="model_not_found", param="model")


def _schema(form: dict[str, Any] | None, wanted: Any) -> dict[str, Any] | None:
    kind = (form or {}).get("type")
    if kind != "json_schema":
        return {"type": "object"} if kind == "json_object" else None
    schema: dict[str, Any] = wanted if isinstance(wanted, dict) else {}
    try:
        answer_form(schema)
    except TypeError as error:
        text = f"The schema is not valid: {error}."
        raise HttpError(400, text, code="invalid_value", param="response_format") from error
    return schema


def _check_tools(param: str, tools: list[Any] | None, config: Config) -> None:
    if tools and not config.api.ignore_tools:
        text = f"This is an agent with tools of its own: it calls none of yours. Leave `{param}` out"
        raise _unsupported(param, f"{text}, or set api.ignoreTools.")


def _unsupported(param: str, text: str) -> HttpError:
    return HttpError(400, text, code="unsupported_parameter", param=param)


def _prompt(items: list[dict[str, Any]], param: str) -> Prompt:
    entries: list[ClientMessage] = []
    instructions: list[str] = []
    approvals: dict[str, bool] = {}
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "mcp_approval_response":
            approvals[str(item.get("approval_request_id"))] = bool(item.get("approve"))
        elif kind == "function_call_output":
            raise _unsupported(param, "This agent calls no functions of yours.")
        elif kind == "message":
            text, files = _content(item.get("content"), param)
            if role in ("system", "developer"):
                instructions.append(text)
            elif role == "user":
                entries.append(ClientMessage("user", text, files))
            elif role in ("assistant", "tool", "function"):
                entries.append(ClientMessage("assistant", text, files))
            else:
                raise HttpError(400, f"{role!r} is no role.", code="invalid_value", param=param)
    first_new = next((at for at in range(len(entries), 0, -1) if entries[at - 1].role == "assistant"), 0)
    prompt = Prompt(entries[first_new:], entries[:first_new], "\n\n".join(filter(None, instructions)), approvals)
    if not (prompt.text or prompt.files or approvals):
        raise HttpError(400, "The last message has to be a user's.", code="invalid_value", param=param)
    return prompt


def _content(content: Any, param: str) -> tuple[str, list[UploadedFile]]:
    """The text and the files of a message. Raises HttpError."""
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    files: list[UploadedFile] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
            continue
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "refusal":
                texts.append(str(part.get("text") or part.get("refusal") or ""))
            case "image_url" | "input_image":
                url = part.get("image_url")
                url = url.get("url") if isinstance(url, dict) else url
                if isinstance(url, str) and url.lower().startswith(("http://", "https://")):
                    files.append(UploadedFile(b"", kind=MediaKind.IMAGE, url=url))
                else:
                    files.append(_from_data_url(url, None, MediaKind.IMAGE))
            case "file" | "input_file":
                file = part.get("file") if isinstance(part.get("file"), dict) else part
                files.append(_from_data_url(file.get("file_data"), file.get("filename"), MediaKind.FILE))
            case "input_audio":
                audio = part.get("input_audio") or {}
                kind = f"audio/{audio.get('format', 'wav')}"
                files.append(UploadedFile(_decode(str(audio.get("data", ""))), None, kind, MediaKind.VOICE))
            case other:
                raise HttpError(400, f"{other!r} is no part of a message.", code="invalid_value", param=param)
    return "\n".join(texts), files


def _from_data_url(url: Any, name: str | None, kind: MediaKind) -> UploadedFile:
    match = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if match is None:
        text = "Send files as data: URLs in base64, pictures also as http(s) URLs."
        raise HttpError(400, text, code="unsupported_media", param="messages")
    return UploadedFile(_decode(match[2]), name, match[1], kind)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise HttpError(400, "A file is not valid base64.", code="invalid_value") from error
