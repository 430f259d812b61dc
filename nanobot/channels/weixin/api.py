"""Requests to WeChat's bot API, and files, which its CDN keeps encrypted: AES-128-ECB, padded as PKCS #7 says.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md, src/api and src/cdn. Errors come as `ret` or `errcode` in
an answer of 200.
"""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from math import inf
from typing import Any
from urllib.parse import urlencode, urlsplit

from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.padding import PKCS7

from nanobot import __version__
from nanobot.channels.errors import ErrorCodes, SendError, UndeliverableError
from nanobot.channels.incoming import Payload
from nanobot.channels.media import MediaError
from nanobot.channels.rest import Answer, NoAnswerError, RestClient, download
from nanobot.config.channels import WeixinConfig
from nanobot.net.http import load_httpx

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

_VERSION = (2, 4, 6)
"""Of Tencent's plugin, whose requests these are."""
_CONNECT_S, _ANSWER_S = 10.0, 15.0
_RESTRICTED, _BAD_ARGUMENT, _LOGGED_OUT = -2, -3, -14
_LOG_IN_AGAIN = (
    "WeChat has logged the bot of channels.weixin.token out ({text}). "
    "Log in again: nanobot channels login weixin --force"
)
IMAGE, VIDEO, FILE = 1, 2, 3
"""Kinds of uploads."""
_HEX_KEY = re.compile(r"[0-9a-fA-F]{32}")


class RestrictedError(SendError):
    """WeChat takes no more messages for now: too many, too fast, or too long after the person's last one."""


class WeixinApi(RestClient):
    """The requests of one bot; without a token only those of the login."""

    codes = ErrorCodes(
        "WeChat", {_BAD_ARGUMENT: "it does not take the message: {text}"}, setup={_LOGGED_OUT: _LOG_IN_AGAIN}
    )
    code_keys = ("errcode", "ret")

    def __init__(self, section: WeixinConfig, token: str = "", base_url: str = "") -> None:
        super().__init__(base_url or section.base_url)
        self.cdn_base = section.cdn_base_url.rstrip("/")
        self._bot_token = token
        self._route_tag = (section.route_tag or "").strip()

    async def fetch_token(self) -> tuple[str, float]:
        return self._bot_token, inf

    def authorize(self, token: str) -> dict[str, str]:
        major, minor, patch = _VERSION
        headers = {
            "iLink-App-Id": "bot",
            "iLink-App-ClientVersion": str(major << 16 | minor << 8 | patch),
            "AuthorizationType": "ilink_bot_token",
            "X-WECHAT-UIN": base64.b64encode(str(secrets.randbits(32)).encode()).decode(),
        }
        tag = {"SKRouteTag": self._route_tag} if self._route_tag else {}
        return headers | tag | (super().authorize(token) if token else {})

    def error_of(self, answer: Answer) -> Exception:
        if answer.code == _RESTRICTED:
            return RestrictedError(f"WeChat takes no message for now ({answer})")
        return super().error_of(answer)

    async def ask(
        self, path: str, body: Mapping[str, Any] | None, *, timeout_s: float = _ANSWER_S, waits: bool = False
    ) -> Payload:
        """Send a request and return the answer: empty if it `waits` for something that does not happen in time."""
        request: dict[str, Any] = {"timeout": httpx.Timeout(timeout_s, connect=_CONNECT_S)}
        if body is not None:
            about = {"channel_version": ".".join(map(str, _VERSION)), "bot_agent": f"nanobot/{__version__} (python)"}
            request["json"] = {**body, "base_info": about}
        try:
            return await self.call("GET" if body is None else "POST", f"/ilink/bot/{path}", **request)
        except NoAnswerError:
            if not waits:
                raise
        return Payload()

    async def upload(self, to: str, kind: int, data: bytes) -> tuple[dict[str, Any], int]:
        """Encrypt and upload a file for a person. Return how a message refers to it, and its size there."""
        key, file_key = secrets.token_bytes(16), secrets.token_hex(16)
        encrypted = await asyncio.to_thread(encrypt, data, key)
        answer = await self.ask(
            "getuploadurl",
            {
                "filekey": file_key,
                "media_type": kind,
                "to_user_id": to,
                "rawsize": len(data),
                "rawfilemd5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                "filesize": len(encrypted),
                "no_need_thumb": True,
                "aeskey": key.hex(),
            },
        )
        url = answer.text("upload_full_url")
        if not is_trusted(url, self.cdn_base):
            query = {"encrypted_query_param": answer.text("upload_param"), "filekey": file_key}
            url = f"{self.cdn_base}/upload?{urlencode(query)}"
        headers = {"Content-Type": "application/octet-stream"}
        taken = await self.exchange("POST", url, content=encrypted, headers=headers)
        parameter = taken.headers.get("x-encrypted-param", "")
        if taken.status != httpx.codes.OK or not parameter:
            said = taken.headers.get("x-error-message") or f"HTTP {taken.status}"
            raise (UndeliverableError if taken.status >= 400 else SendError)(f"WeChat does not take the file ({said})")
        key_text = base64.b64encode(key.hex().encode()).decode()
        return {"encrypt_query_param": parameter, "aes_key": key_text, "encrypt_type": 1}, len(encrypted)


def is_trusted(url: str, configured: str) -> bool:
    """Whether requests may go to an address of an answer: WeChat's own, with TLS, or the configured server's."""
    try:
        parts, own = urlsplit(url), urlsplit(configured)
    except ValueError:
        return False
    is_wechats = parts.scheme == "https" and (parts.hostname or "").endswith(".weixin.qq.com")
    return is_wechats or (parts.scheme, parts.netloc) == (own.scheme, own.netloc)


def file_source(media: Payload, key: str, cdn_base: str) -> str:
    """The key and the address of a received file; empty if the message tells no address that can be trusted."""
    url, parameter = media.text("full_url"), media.text("encrypt_query_param")
    if not (url and is_trusted(url, cdn_base)):
        url = f"{cdn_base.rstrip('/')}/download?{urlencode({'encrypted_query_param': parameter})}" if parameter else ""
    return f"{read_key(key or media.text('aes_key'))} {url}" if url else ""


def read_key(text: str) -> str:
    """The 32 hexadecimal digits of a key: they alone, they in base64, or 16 bytes in base64. The text if it is none."""
    if _HEX_KEY.fullmatch(text):
        return text
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return text
    digits = decoded.decode("latin-1")
    return decoded.hex() if len(decoded) == 16 else digits if _HEX_KEY.fullmatch(digits) else text


async def download_file(source: str) -> AsyncIterator[bytes]:
    """Download a file and decrypt it, if there is a key. Raises MediaError, SendError."""
    key, _, url = source.partition(" ")
    if key and not _HEX_KEY.fullmatch(key):
        raise MediaError("WeChat sent a key that is none")
    chunks = download("WeChat", url)
    async for chunk in decrypt(chunks, bytes.fromhex(key)) if key else chunks:
        yield chunk


def encrypt(data: bytes, key: bytes) -> bytes:
    padder, encryptor = PKCS7(AES.block_size).padder(), Cipher(AES(key), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


async def decrypt(chunks: AsyncIterator[bytes], key: bytes) -> AsyncIterator[bytes]:
    """Decrypt a file. Raises MediaError at its end, if it is not complete or the key is another file's."""
    decryptor, unpadder = Cipher(AES(key), modes.ECB()).decryptor(), PKCS7(AES.block_size).unpadder()  # noqa: S305
    async for chunk in chunks:
        yield unpadder.update(decryptor.update(chunk))
    try:
        rest = unpadder.update(decryptor.finalize()) + unpadder.finalize()
    except ValueError as error:
        raise MediaError("the file is not complete, or WeChat sent another file's key") from error
    yield rest
