"""Pictures and documents of the web are shown and read as those in files are."""

import io
from pathlib import Path

import pytest
from PIL import Image

from nanobot.agent.tools.web.fetch import WebFetchTool
from nanobot.agent.tools.web.policy import WebPolicy
from nanobot.messages.types import Provenance
from nanobot.net.egress import NetworkPolicy
from nanobot.security.files.paths import PathPolicy
from tests.fakes.web import saying, serving

POLICY = WebPolicy(NetworkPolicy(whitelist=("127.0.0.0/8",)))


def png() -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(held, "PNG")
    return held.getvalue()


def docx() -> bytes:
    from docx import Document

    held, document = io.BytesIO(), Document()
    document.add_paragraph("Words of the document")
    document.save(held)
    return held.getvalue()


async def test_a_picture_is_shown_by_a_copy_in_the_workspace(workspace):
    async with serving(saying(png(), "Content-Type: image/png")) as server:
        tool = WebFetchTool(POLICY, paths=PathPolicy(workspace))

        result = await tool.execute(f"http://127.0.0.1:{server.port}/a.png")

    assert isinstance(result.content, list)
    assert '"extractor": "image"' in result.content[0]["text"]
    shown = Path(result.content[-1]["image_url"]["url"])
    assert shown.is_relative_to(workspace)
    with Image.open(shown) as picture:
        assert picture.size == (30, 20)
    assert result.provenance is Provenance.WEB


async def test_a_document_is_read_whatever_it_is_called(workspace):
    async with serving(saying(docx(), "Content-Type: application/octet-stream")) as server:
        tool = WebFetchTool(POLICY, paths=PathPolicy(workspace))

        result = await tool.execute(f"http://127.0.0.1:{server.port}/download")

    assert isinstance(result.content, str)
    assert '"extractor": "document"' in result.content
    assert "Words of the document" in result.content


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\0\1\2", "not text. Download it with exec"),
        (b"PK\x03\x04 no archive", "not text. Download it with exec"),
        (png()[:60], "The download is"),
        (b"%PDF-1.7\nbroken", "The download is"),
    ],
)
async def test_what_nobody_can_read_is_told_in_words(workspace, body: bytes, said: str):
    async with serving(saying(body, "Content-Type: application/octet-stream")) as server:
        result = await WebFetchTool(POLICY, paths=PathPolicy(workspace)).execute(f"http://127.0.0.1:{server.port}/a")

    assert isinstance(result.content, str)
    assert said in result.content
