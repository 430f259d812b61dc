"""Uploads and downloads files, which WeChat's CDN keeps encrypted: AES-128-ECB, padded as PKCS #7 says.

Each file has its own key, which is told beside the file's address: as 16 bytes in base64, or as 32 hexadecimal digits
in base64, or as the digits alone (github.com/Tencent/openclaw-weixin, src/cdn).
"""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.padding import PKCS7

from nanobot.channels import rest
from nanobot.channels.errors import SendError, UndeliverableError
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.payload import Payload
from nanobot.channels.weixin.api import WeixinApi, is_trusted
from nanobot.net.http import load_httpx

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

IMAGE, VIDEO, FILE = 1, 2, 3
"""Kinds of uploads."""
_TIMEOUT = httpx.Timeout(100, connect=10)
_CDN = "WeChat's CDN"
_HEX_KEY = re.compile(r"[0-9a-fA-F]{32}")


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


def read_key(text: str) -> str:
    """The 32 hexadecimal digits of a key in any of its spellings; the text itself if it is none."""
    if _HEX_KEY.fullmatch(text):
        return text
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return text
    digits = decoded.decode("latin-1")
    return decoded.hex() if len(decoded) == 16 else digits if _HEX_KEY.fullmatch(digits) else text


def download_url(media: Payload, cdn_base: str) -> str:
    """The address of a received file; empty if the message tells none that can be trusted."""
    url, parameter = media.text("full_url"), media.text("encrypt_query_param")
    if url and is_trusted(url, cdn_base):
        return url
    query = httpx.QueryParams(encrypted_query_param=parameter)
    return f"{cdn_base.rstrip('/')}/download?{query}" if parameter else ""


async def download(url: str, key: str) -> AsyncIterator[bytes]:
    """Download a file and decrypt it, if there is a key. Raises MediaError, SendError."""
    if key and not _HEX_KEY.fullmatch(key):
        raise MediaError("WeChat sent a key that is none")
    chunks = rest.download(_CDN, url)
    async for chunk in decrypt(chunks, bytes.fromhex(key)) if key else chunks:
        yield chunk


async def upload(api: WeixinApi, to: str, kind: int, data: bytes) -> tuple[dict[str, Any], int]:
    """Encrypt and upload a file for a person. Return how a message refers to it, and its size there.

    Raises SendError, ChannelSetupError.
    """
    key, file_key = secrets.token_bytes(16), secrets.token_hex(16)
    encrypted = await asyncio.to_thread(encrypt, data, key)
    answer = await api.call(
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
    if not is_trusted(url, api.cdn_base):
        query = httpx.QueryParams(encrypted_query_param=answer.text("upload_param"), filekey=file_key)
        url = f"{api.cdn_base}/upload?{query}"
    with rest.as_send_errors(_CDN, may_have_arrived=False):
        async with api.pools.borrow_client(url) as client:
            headers = {"Content-Type": "application/octet-stream"}
            response = await client.post(url, content=encrypted, headers=headers, timeout=_TIMEOUT)
    parameter = response.headers.get("x-encrypted-param", "")
    if response.status_code != httpx.codes.OK or not parameter:
        said = response.headers.get("x-error-message") or f"HTTP {response.status_code}"
        is_final = httpx.codes.is_client_error(response.status_code)
        raise (UndeliverableError if is_final else SendError)(f"{_CDN} does not take the file ({said})")
    key_text = base64.b64encode(key.hex().encode()).decode()
    return {"encrypt_query_param": parameter, "aes_key": key_text, "encrypt_type": 1}, len(encrypted)
