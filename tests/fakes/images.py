"""Image endpoints on loopback: OpenAI's `images/generations`, one that answers with an address, and Gemini's.

They follow the public references (platform.openai.com/docs/api-reference/images, ai.google.dev/gemini-api/docs) and
refuse what those refuse: no key, a field that the model does not have, an unknown path.
"""

import base64
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    json: dict[str, Any]


class FakeImages:
    """The server. `refusals` are answered first: status and message."""

    def __init__(self, *, api_key: str = "sk-images-0123456789", image: bytes = PNG, by_url: bool = False) -> None:
        self.api_key = api_key
        self.image = image
        self.by_url = by_url
        self.asked: list[Asked] = []
        self.refusals: list[tuple[int, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                server.asked.append(asked)
                status, answer = server._answer(asked)
                self._send(status, json.dumps(answer).encode(), "application/json")

            def do_GET(self) -> None:
                self._send(200, server.image, "image/png")

            def _send(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def _answer(self, asked: Asked) -> tuple[int, dict[str, Any]]:
        if self.refusals:
            status, message = self.refusals.pop(0)
            return status, {"error": {"message": message, "type": "invalid_request_error"}}
        encoded = base64.b64encode(self.image).decode()
        if asked.path == "/v1/images/generations":
            if asked.headers.get("authorization") != f"Bearer {self.api_key}":
                return 401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}
            if asked.json["model"].startswith("gpt-image") and "response_format" in asked.json:
                return 400, {"error": {"message": "Unknown parameter: 'response_format'."}}
            entry = {"url": f"{self.url}/made.png"} if self.by_url else {"b64_json": encoded}
            return 200, {"data": [entry], "usage": {"input_tokens": 20, "output_tokens": 1000, "total_tokens": 1020}}
        if asked.path.startswith("/v1beta/models/") and asked.path.endswith(":generateContent"):
            if asked.headers.get("x-goog-api-key") != self.api_key:
                return 400, {"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}
            parts = [{"text": "Here it is."}, {"inlineData": {"mimeType": "image/png", "data": encoded}}]
            usage = {"promptTokenCount": 20, "candidatesTokenCount": 1290, "totalTokenCount": 1310}
            return 200, {"candidates": [{"content": {"parts": parts}}], "usageMetadata": usage}
        return 404, {"error": {"message": f"no {asked.path} here"}}

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
