"""A transcription endpoint on loopback, as strict about its form as the real ones.

It follows the public reference (platform.openai.com/docs/api-reference/audio): POST `audio/transcriptions` with a
multipart form: `file`, whose name must end in a known format, `model`, and perhaps `language` and `response_format`.
"""

import json
import re
import threading
import time
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

FORMATS = {"flac", "mp3", "mp4", "mpeg", "mpga", "m4a", "ogg", "opus", "wav", "webm"}
MODELS = {"whisper-large-v3-turbo", "gpt-4o-mini-transcribe", "whisper-1"}
FIELDS = {"file", "model", "language", "response_format"}


@dataclass(frozen=True)
class Answer:
    """What the server says to one request, whatever it holds."""

    status: int = 200
    body: bytes = b'{"text": "hello there"}'
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0

    @classmethod
    def failed(cls, status: int, message: str, code: str | None = None, **headers: str) -> "Answer":
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, json.dumps(body).encode(), named)


@dataclass(frozen=True)
class Upload:
    """A form as it came."""

    path: str
    headers: dict[str, str]
    fields: dict[str, str]
    file_name: str
    content_type: str
    data: bytes


class FakeTranscription:
    """The server. Answers from the script first, then what is right for the form."""

    def __init__(self, text: str = "hello there", *, api_key: str = "gsk_key-0123456789") -> None:
        self.text = text
        self.api_key = api_key
        self.uploads: list[Upload] = []
        self.script: list[Answer] = []
        self.asked = 0
        server = self

        class Asked(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = server._answer(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                time.sleep(answer.after_s)
                try:
                    self.send_response(answer.status)
                    for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except ConnectionError:
                    self.close_connection = True  # who asked has left

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def v1(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/openai/v1"

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        self.asked += 1
        if self.script:
            return self.script.pop(0)
        if path != "/openai/v1/audio/transcriptions":
            return Answer.failed(404, f"Unknown request URL: POST {path}")
        if headers.get("authorization") != f"Bearer {self.api_key}":
            told = headers.get("authorization", "")
            return Answer.failed(401, f"Invalid API Key: {told}", "invalid_api_key")
        upload, problem = _read_form(path, headers, body)
        if upload is None:
            return Answer.failed(400, problem)
        self.uploads.append(upload)
        return Answer(body=json.dumps({"text": self.text}).encode())


def _read_form(path: str, headers: dict[str, str], body: bytes) -> tuple[Upload | None, str]:
    kind = headers.get("content-type", "")
    if not re.fullmatch(r"multipart/form-data; boundary=[\w'()+,./:=?-]{1,70}", kind):
        return None, f"request Content-Type isn't multipart/form-data: {kind}"
    if not body.rstrip(b"\r\n").endswith(f"--{kind.rpartition('=')[2]}--".encode()):
        return None, "multipart: NextPart: EOF"
    form = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    fields: dict[str, str] = {}
    file: Any = None
    for part in form.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_content_disposition() != "form-data" or name not in FIELDS or name in fields:
            return None, f"unknown or repeated field: {name}"
        if name == "file":
            file = part
        else:
            fields[str(name)] = bytes(part.get_payload(decode=True)).decode()
    if file is None or not file.get_filename():
        return None, "file is required"
    if file.get_filename().rpartition(".")[2] not in FORMATS:
        return None, f"file must be one of the following types: {sorted(FORMATS)}"
    if fields.get("model") not in MODELS:
        return None, f"The model `{fields.get('model')}` does not exist"
    if "language" in fields and not re.fullmatch("[a-z]{2}", fields["language"]):
        return None, "Invalid language. Use ISO-639-1."
    data = file.get_payload(decode=True)
    return Upload(path, headers, fields, file.get_filename(), file.get_content_type(), data), ""
