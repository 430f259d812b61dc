"""Files on WeChat's CDN: AES-128-ECB as openssl and Tencent's plugin have it, and keys in each spelling."""

import base64
from pathlib import Path

import pytest

from nanobot.channels.media import one_chunk
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.weixin.api import decrypt, encrypt, read_key
from nanobot.testing.live_channel import live
from tests.fakes.weixin import cipher, pad, text_item

KEY = "000102030405060708090a0b0c0d0e0f"
# printf PLAIN | xxd -r -p | openssl enc -aes-128-ecb -K KEY | xxd -p; so does encryptAesEcb of openclaw-weixin 2.4.9
VECTORS = {
    "": "954f64f2e4e86e9eee82d20216684899",
    "61": "fe123486508b0eb503a8468388ef5812",
    "00112233445566778899aabbccddeeff": "69c4e0d86a7b0430d8cdb78070b4c55a954f64f2e4e86e9eee82d20216684899",
    "616263616263616263616263616263616263": "f327fe403baa37026d815e9beb874464f9d8e54a7d0adfbdfa1856a5bc355ec2",
}


@pytest.mark.parametrize(("plain", "encrypted"), VECTORS.items())
async def test_files_are_encrypted_as_openssl_does_it(plain, encrypted):
    key, data = bytes.fromhex(KEY), bytes.fromhex(encrypted)

    async def pieces():
        for start in range(0, len(data), 5):
            yield data[start : start + 5]

    assert encrypt(bytes.fromhex(plain), key).hex() == encrypted
    assert b"".join([chunk async for chunk in decrypt(pieces(), key)]).hex() == plain


@pytest.mark.parametrize("data", [b"", b"x" * 15, bytes.fromhex(VECTORS["61"])[:-1], bytes(16)])
async def test_a_file_that_is_not_complete_or_has_another_key_is_an_error(data):
    with pytest.raises(MediaError, match="not complete, or WeChat sent another file's key"):
        _ = [chunk async for chunk in decrypt(one_chunk(data), bytes.fromhex(KEY))]


def test_a_key_is_read_in_each_of_its_spellings():
    raw = base64.b64encode(bytes.fromhex(KEY)).decode()
    digits = base64.b64encode(KEY.encode()).decode()

    assert [read_key(text) for text in (raw, digits, KEY)] == [KEY] * 3
    assert [read_key(text) for text in ("", "none", "AAAA")] == ["", "none", "AAAA"]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 300_000])
@pytest.mark.parametrize("spelling", ["base64 of digits", "base64 of bytes", "digits", "no key"])
async def test_received_files_are_decrypted(weixin, tmp_path, size, spelling):
    data = (b"\x89PNG\r\n\x1a\n" + b"x" * size)[-size:]
    media = weixin.put_file(data, hex_key=spelling != "base64 of bytes")
    item = {"media": media}
    if spelling == "digits":
        item |= {"aeskey": base64.b64decode(media.pop("aes_key")).decode()}
    elif spelling == "no key":
        del media["aes_key"]
        weixin.stored[media["encrypt_query_param"]] = data
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes({"type": 2, "image_item": item})
        message = await life.hears("[")

    assert Path(message.media[0]).read_bytes() == data


@pytest.mark.parametrize(
    ("key", "told"), [("bad", "a key that is none"), (base64.b64encode(bytes(16)).decode(), "another file's key")]
)
async def test_a_file_that_cannot_be_decrypted_is_said_to_be_missing(weixin, tmp_path, caplog, key, told):
    media = weixin.put_file(b"%PDF-1.7")
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes(text_item("look"), {"type": 4, "file_item": {"media": media | {"aes_key": key}}})
        message = await life.hears("look")

    assert message.content == "look\n[file: download failed]"
    assert told in caplog.text


def test_the_fake_encrypts_in_the_same_way():
    assert cipher(bytes.fromhex(KEY)).encryptor().update(pad(b"a")).hex() == VECTORS["61"]
