"""What read_file makes of pictures, documents and notebooks: sound ones, and those that are made to do harm."""

import asyncio
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from PIL import Image
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.documents import Documents
from nanobot.messages.types import Provenance, text_of
from nanobot.providers.wire.rows import RequestDialect, wire_messages
from nanobot.security.files.paths import PathPolicy
from nanobot.security.provenance import ProvenanceStore
from nanobot.testing import calls, open_bot
from tests.support.tools import Call


def words(result: ToolResult) -> str:
    return text_of(result.content)


def copy_of(result: ToolResult) -> Path:
    """The file that a result shows as a picture."""
    assert isinstance(result.content, list)
    (url,) = [block["image_url"]["url"] for block in result.content if block["type"] == "image_url"]
    return Path(url)


def size_of(result: ToolResult) -> tuple[int, int]:
    with Image.open(copy_of(result)) as image:
        image.load()
        return image.size


def picture(place: Path, size: tuple[int, int], mode: str = "RGB", **how: Any) -> Path:
    Image.new(mode, size, 120 if mode in ("L", "1") else None).save(place, **how)
    return place


# -- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp", "a.bmp", "a.tiff", "no_suffix.png"])
async def test_a_picture_is_shown_scaled_to_what_a_model_looks_at(call: Call, workspace: Path, name: str):
    picture(workspace / name, (2000, 1000))

    result = await call("read_file", path=name)

    assert not result.error, result.content
    assert size_of(result) == (1568, 784)
    assert "2000 x 1000 pixels" in words(result)
    assert "shown as 1568 x 784" in words(result)
    assert result.provenance is Provenance.FILE


async def test_the_session_keeps_a_path_and_never_the_bytes(call: Call, workspace: Path):
    picture(workspace / "a.png", (10, 10))

    first, second = await call("read_file", path="a.png"), await call("read_file", path="a.png")

    assert first.content == second.content
    assert "base64" not in json.dumps(first.content)
    assert str(workspace / ".nanobot" / "images") in json.dumps(first.content)


async def test_a_photo_that_lies_on_its_side_is_turned_upright(call: Call, workspace: Path):
    turned = Image.Exif()
    turned[0x0112] = 6
    picture(workspace / "a.jpg", (400, 200), exif=turned)

    result = await call("read_file", path="a.jpg")

    assert size_of(result) == (200, 400)
    assert "200 x 400 pixels" in words(result)


async def test_a_photo_of_many_megabytes_gets_small(call: Call, workspace: Path):
    noise, photo = Image.effect_noise((1300, 1000), 80), Image.new("RGB", (2600, 2000))
    for number in range(4):
        photo.paste(noise, (number % 2 * 1300, number // 2 * 1000))
    photo.save(workspace / "big.jpg", quality=99)
    assert (workspace / "big.jpg").stat().st_size > 5_000_000

    result = await call("read_file", path="big.jpg")

    assert max(size_of(result)) == 1568
    assert copy_of(result).stat().st_size < 1_500_000


def truncated(place: Path) -> None:
    Image.effect_noise((300, 300), 50).save(place, "PNG")
    place.write_bytes(place.read_bytes()[:5000])


def bomb(place: Path) -> None:
    """A picture of 900 million pixels, as far as its head tells."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(1000))
    chunks = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, data)]
    place.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def heic(place: Path) -> None:
    place.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500))


def nonsense(place: Path) -> None:
    place.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(2000))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (truncated, "cannot be decoded"),
        (bomb, "30000 x 30000 pixels, too many to decode"),
        (heic, "HEIC image cannot be decoded here. Ask for it as JPEG"),
        (nonsense, "cannot be decoded"),
    ],
)
async def test_a_picture_that_would_spoil_the_session_is_named_not_shown(
    call: Call, workspace: Path, make: Callable[[Path], None], said: str
):
    make(workspace / "thing.png")

    result = await call("read_file", path="thing.png")

    assert result.error
    assert isinstance(result.content, str)
    assert said in words(result)
    assert not (workspace / ".nanobot/images").exists()


# -- documents ----------------------------------------------------------------------------------------------------


def pdf(place: Path, pages: int = 3, password: str | None = None) -> None:
    """A PDF by pypdf, each page with a line of text."""
    writer = PdfWriter()
    font = DictionaryObject({
        NameObject("/Type"): NameObject("/Font"),
        NameObject("/Subtype"): NameObject("/Type1"),
        NameObject("/BaseFont"): NameObject("/Helvetica"),
    })  # fmt: skip
    for number in range(1, pages + 1):
        page = writer.add_blank_page(300, 300)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td (words of page {number}) Tj ET".encode())
        page[NameObject("/Contents")] = stream
    if password:
        writer.encrypt(password)
    writer.write(place)


def word(place: Path) -> None:
    document = docx.Document()
    document.add_heading("Report", 1)
    document.add_paragraph("Grüße 🌍")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"
    document.save(str(place))


def excel(place: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "Sums"
    book.active.append(["name", "sum"])
    book.active.append(["rent", 900])
    book.create_sheet("Second").append(["more"])
    book.save(place)


def powerpoint(place: Path) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Title"
    slide.placeholders[1].text_frame.text = "A point"
    slide.notes_slide.notes_text_frame.text = "say hello"
    deck.save(str(place))


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        (
            "no_suffix",
            pdf,
            ["--- page 1 of 3 ---", "words of page 1", "--- page 3 of 3 ---", "words of page 3", "3 pages."],
        ),
        ("a.docx", word, ["# Report", "Grüße 🌍", "left | right"]),
        ("a.xlsx", excel, ["--- sheet 1 of 2 ---", "[Sums]", "2\trent\t900", "[Second]", "2 sheets."]),
        ("a.pptx", powerpoint, ["--- slide 1 of 1 ---", "Title", "A point", "(notes) say hello"]),
    ],
)
async def test_a_document_is_read_as_text_with_its_pages_marked_and_is_somebody_elses_words(
    call: Call, workspace: Path, name: str, make: Callable[[Path], None], told: list[str]
):
    make(workspace / name)

    result = await call("read_file", path=name)

    assert not result.error, result.content
    for part in told:
        assert part in words(result)
    assert result.provenance is Provenance.PERSON


async def test_a_document_is_read_on_like_any_text(call: Call, workspace: Path):
    pdf(workspace / "a.pdf")

    page = words(await call("read_file", path="a.pdf", offset=4, limit=2))
    past = await call("read_file", path="a.pdf", offset=400)

    assert page.startswith("     4\t--- page 2 of 3 ---\n     5\twords of page 2")
    assert "Lines 4-5 of 8. Read on with offset=6." in page
    assert past.error


def encrypted(place: Path) -> None:
    pdf(place, password="secret")


def damaged(place: Path) -> None:
    pdf(place)
    place.write_bytes(place.read_bytes()[:200])


def old_word(place: Path) -> None:
    place.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))


def zip_bomb(place: Path) -> None:
    """A document that says of its words that they are 400 MB."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", bytes(1000))
    data = bytearray(place.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, 400 * 1024 * 1024)
    place.write_bytes(data)


def broken_word(place: Path) -> None:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("word/document.xml", "<not word>")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (encrypted, "it is encrypted: ask for the password"),
        (damaged, "damaged"),
        (old_word, "old binary format or encrypted. Convert it"),
        (zip_bomb, "unpacks to more than 300 MB"),
        (broken_word, "damaged or of a kind that cannot be read"),
    ],
)
async def test_a_document_that_cannot_be_read_says_why(
    call: Call, workspace: Path, make: Callable[[Path], None], said: str
):
    make(workspace / "thing")

    result = await call("read_file", path="thing")

    assert result.error
    assert said in words(result)
    assert result.provenance is Provenance.TOOL, "none of it is the document's"


async def test_a_document_that_takes_too_long_is_stopped_and_leaves_no_child(workspace: Path):
    pdf(workspace / "a.pdf")

    with (workspace / "a.pdf").open("rb") as file:
        result = await Documents(timeout_s=0.01).text("a.pdf", file, "pdf")

    assert isinstance(result, ToolResult)
    assert "took longer than 0.01 s and was stopped" in words(result)


async def test_of_a_document_with_too_much_text_the_first_pages_are_shown(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nanobot.agent.tools.documents._MAX_OUTPUT_BYTES", 60)
    monkeypatch.setattr("nanobot.agent.tools.documents._CHUNK", 60)  # all pages may come at once
    pdf(workspace / "a.pdf", pages=9)

    said = words(await call("read_file", path="a.pdf"))

    assert "words of page 1" in said
    assert "are shown: it has more text than can be read at once." in said


async def test_a_cancel_while_a_document_is_read_leaves_nothing_open(call: Call, workspace: Path):
    pdf(workspace / "a.pdf")

    for delay in (0, 0.02):
        task = asyncio.ensure_future(call("read_file", path="a.pdf"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert not (await call("read_file", path="a.pdf")).error


# -- notebooks ----------------------------------------------------------------------------------------------------

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "m1", "metadata": {}, "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "id": "c1",
            "metadata": {"tags": ["x"]},
            "execution_count": 3,
            "source": ["print('hi')"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["hi\n"]},
                {"output_type": "display_data", "metadata": {}, "data": {"image/png": "AAAA", "text/plain": "<fig>"}},
            ],
        },
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def notebook(workspace: Path) -> Path:
    place = workspace / "a.ipynb"
    place.write_text(json.dumps(NOTEBOOK, indent=1) + "\n", encoding="utf-8")
    return place


def cells(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place.read_text(encoding="utf-8"))["cells"]
    return found


async def test_a_notebook_is_shown_as_cells(call: Call, notebook: Path):
    told = words(await call("read_file", path="a.ipynb"))

    assert "--- cell 0 markdown id=m1 ---" in told
    assert "--- cell 1 code id=c1 ---" in told
    assert "--- output ---" in told
    assert "[image/png]" in told
    assert "AAAA" not in told


async def test_a_cell_is_replaced_and_its_old_output_goes(call: Call, notebook: Path):
    result = await call("notebook_edit", path="a.ipynb", cell="c1", source="print('a')\nprint('b')")

    first, second = cells(notebook)
    assert not result.error, result.content
    assert result.display is not None
    assert "+print('b')" in result.display
    assert second == {
        "cell_type": "code",
        "id": "c1",
        "metadata": {"tags": ["x"]},
        "source": ["print('a')\n", "print('b')"],
        "execution_count": None,
        "outputs": [],
    }
    assert first == NOTEBOOK["cells"][0]  # type: ignore[index]
    assert json.loads(notebook.read_text(encoding="utf-8"))["metadata"] == NOTEBOOK["metadata"]


async def test_cells_are_inserted_and_deleted(call: Call, notebook: Path):
    await call("notebook_edit", path="a.ipynb", mode="insert", source="first", cell_type="markdown")
    await call("notebook_edit", path="a.ipynb", mode="insert", cell="1", source="x = 1")
    await call("notebook_edit", path="a.ipynb", mode="delete", cell="c1")

    found = cells(notebook)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in found] == [
        ("markdown", "first"),
        ("markdown", "# Title\ntext"),
        ("code", "x = 1"),
    ]
    assert len({cell["id"] for cell in found}) == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cell": "9", "source": "x"}, "There is no cell 9. There are 2 cells"),
        ({"source": "x"}, "Which cell to replace?"),
        ({"cell": "0"}, "There is no source to replace"),
        ({"cell": "1", "source": "print('hi')"}, "nothing to change"),
        ({"mode": "delete"}, "Which cell to delete?"),
        ({"path": "plain.ipynb", "cell": "0", "source": "x"}, "plain.ipynb is no valid notebook"),
        ({"path": "old.ipynb", "cell": "0", "source": "x"}, "old.ipynb has no list of cells"),
        ({"path": "none.ipynb", "cell": "0", "source": "x"}, "There is no none.ipynb"),
        ({"path": "../sessions", "cell": "0", "source": "x"}, "outside the workspace"),
    ],
)
async def test_what_cannot_be_done_to_a_notebook_is_said_and_nothing_changes(
    call: Call, workspace: Path, notebook: Path, asked: dict[str, str], said: str
):
    (workspace / "plain.ipynb").write_text("no json", encoding="utf-8")
    (workspace / "old.ipynb").write_text('{"worksheets": []}', encoding="utf-8")
    before = notebook.read_bytes()

    result = await call("notebook_edit", **{"path": "a.ipynb", **asked})

    assert result.error
    assert said in words(result)
    assert notebook.read_bytes() == before


# -- whose words --------------------------------------------------------------------------------------------------


async def test_what_people_sent_and_what_is_remembered_is_trusted_as_little_as_they_are(
    tmp_path: Path, ctx: ToolContext
):
    places = {"media/telegram/a.txt": "person", "media/email/b.txt": "mail", "workspace/c.txt": "web"}
    for name in places:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words\n", encoding="utf-8")
    book = ProvenanceStore(tmp_path / "state/provenance.json", tmp_path / "media")
    book.mark(tmp_path / "workspace/c.txt", Provenance.WEB)
    registry = build_tools(ToolPolicies(PathPolicy(tmp_path / "workspace", data_folder=tmp_path), marks=book))

    for name, trusted in places.items():
        path = str(tmp_path / name)
        for tool, more in (("read_file", {}), ("grep", {"pattern": "words"})):
            result = await registry.call(tool, {"path": path, **more}, ctx)
            assert result.provenance == trusted, (tool, name)
    edit = await registry.call("edit_file", {"path": "c.txt", "old_text": "werds", "new_text": "x"}, ctx)
    assert edit.provenance is Provenance.WEB


async def test_a_bad_picture_costs_a_sentence_and_the_session_goes_on(tmp_path: Path):
    script = (calls(("read_file", {"path": "bad.png"})), calls(("read_file", {"path": "good.png"})), "seen", "hello")
    async with open_bot(tmp_path, *script) as bot:
        truncated(bot.workspace / "bad.png")
        picture(bot.workspace / "good.png", (10, 10))
        await bot.say("look")
        await bot.say("hi")

        blind, sighted = (
            wire_messages(bot.provider.requests[-1], RequestDialect(images=images)) for images in (False, True)
        )
    assert json.dumps(sighted).count('"type": "image_url"') == 1
    assert "image_url" not in json.dumps(blind)
    assert "An image was not delivered: this model takes none." in json.dumps(blind)
