"""What read_file makes of pictures, documents and notebooks: sound ones, and those that are made to do harm."""

import asyncio
import json
import os
import re
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

from nanobot.agent.tools.base import ToolResult
from nanobot.messages.types import Provenance, text_of
from nanobot.testing import calls, open_bot
from tests.support.tools import Call, call_in_turn, lay


def words(result: ToolResult) -> str:
    return text_of(result.content)


def shown(result: ToolResult) -> Path:
    """The file that a result shows as a picture."""
    assert isinstance(result.content, list)
    (url,) = [block["image_url"]["url"] for block in result.content if block["type"] == "image_url"]
    return Path(url)


def size_of(result: ToolResult) -> tuple[int, int]:
    with Image.open(shown(result)) as image:
        image.load()
        return image.size


# -- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp", "a.bmp", "a.tiff", "no_suffix.png"])
async def test_a_picture_is_shown_scaled_to_what_a_model_looks_at(call: Call, workspace: Path, name: str):
    Image.new("RGB", (1600, 800)).save(workspace / name)

    result, again = await call("read_file", path=name), await call("read_file", path=name)

    assert size_of(result) == (1568, 784)
    assert "1600 x 800 pixels" in words(result) and "shown as 1568 x 784" in words(result)
    assert result.provenance is Provenance.FILE
    assert shown(result).parent == workspace / ".nanobot" / "images"  # the session keeps a path, never the bytes
    assert again.content == result.content


async def test_a_photo_of_many_megabytes_that_lies_on_its_side_gets_small_and_upright(call: Call, workspace: Path):
    noise, photo, turned = Image.effect_noise((1300, 1000), 80), Image.new("RGB", (2600, 2000)), Image.Exif()
    for number in range(4):
        photo.paste(noise, (number % 2 * 1300, number // 2 * 1000))
    turned[0x0112] = 6
    photo.save(workspace / "big.jpg", quality=99, exif=turned)
    assert (workspace / "big.jpg").stat().st_size > 5_000_000

    result = await call("read_file", path="big.jpg")

    assert "2000 x 2600 pixels" in words(result)
    assert size_of(result) == (1206, 1568)
    assert shown(result).stat().st_size < 1_500_000


def truncated(place: Path) -> None:
    Image.effect_noise((300, 300), 50).save(place, "PNG")
    place.write_bytes(place.read_bytes()[:5000])


def bomb(place: Path) -> None:
    """A picture of 900 million pixels, as far as its head tells."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(1000))
    chunks = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, data)]
    place.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


async def test_a_bad_picture_costs_a_sentence_and_the_session_goes_on(tmp_path: Path):
    script = (calls(("read_file", {"path": "bad.png"}), ("read_file", {"path": "good.png"})), "seen", "hello")
    async with open_bot(tmp_path, *script) as bot:
        truncated(bot.workspace / "bad.png")
        Image.new("RGB", (10, 10)).save(bot.workspace / "good.png")
        await bot.say("look")
        await bot.say("hi")

        request = json.dumps(bot.requests[-1])
    assert request.count('"type": "image_url"') == 1
    assert "cannot be decoded" in request


# -- documents ----------------------------------------------------------------------------------------------------


def pdf(place: Path, pages: int = 3, password: str | None = None) -> None:
    """A PDF by pypdf, each page with a line of text."""
    writer, key = PdfWriter(), NameObject
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({key(name): key(value) for name, value in names.items()})
    fonts = DictionaryObject({key("/Font"): DictionaryObject({key("/F1"): font})})
    for number in range(1, pages + 1):
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td (words of page {number}) Tj ET".encode())
        writer.add_blank_page(300, 300).update({key("/Resources"): fonts, key("/Contents"): stream})
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
    ("make", "told"),
    [
        (pdf, ["--- page 1 of 3 ---", "words of page 1", "--- page 3 of 3 ---", "words of page 3", "3 pages."]),
        (word, ["# Report", "Grüße 🌍", "left | right"]),
        (excel, ["--- sheet 1 of 2 ---", "[Sums]", "2\trent\t900", "[Second]", "2 sheets."]),
        (powerpoint, ["--- slide 1 of 1 ---", "Title", "A point", "(notes) say hello"]),
    ],
)
async def test_a_document_is_read_as_text_with_its_pages_marked_and_is_somebody_elses_words(
    call: Call, workspace: Path, make: Callable[[Path], None], told: list[str]
):
    make(workspace / "no_suffix")

    result = await call("read_file", path="no_suffix")

    assert [part for part in told if part not in words(result)] == []
    assert (result.error, result.provenance) == (False, Provenance.PERSON)


async def test_a_document_is_read_on_like_any_text_also_after_a_cancel(call: Call, workspace: Path):
    pdf(workspace / "a.pdf")
    for delay in (0, 0.02):
        task = asyncio.ensure_future(call("read_file", path="a.pdf"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    page = words(await call("read_file", path="a.pdf", offset=4, limit=2))
    past = await call("read_file", path="a.pdf", offset=400)

    assert page.startswith("     4\t--- page 2 of 3 ---\n     5\twords of page 2")
    assert "Lines 4-5 of 8. Read on with offset=6." in page
    assert past.error


async def test_of_a_document_with_too_much_text_the_first_pages_are_shown(call: Call, workspace: Path):
    book = openpyxl.Workbook(write_only=True)
    for number in range(20):
        sheet = book.create_sheet(str(number))
        for _ in range(17):
            sheet.append(["x" * 500] * 60)  # as much as is read of a sheet
    book.save(workspace / "a.xlsx")

    last = words(await call("read_file", path="a.xlsx", offset=200))

    assert re.search(r"20 sheets. Only the first 1\d are shown: it has more text than can be read at once.", last)


def damaged(place: Path) -> None:
    pdf(place)
    place.write_bytes(place.read_bytes()[:200])


def zip_bomb(place: Path) -> None:
    """A document that says of its words that they are 400 MB."""
    broken_word(place)
    data = bytearray(place.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, 400 * 1024 * 1024)
    place.write_bytes(data)


def broken_word(place: Path) -> None:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("word/document.xml", "<not word>")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (truncated, "cannot be decoded"),
        (bomb, "30000 x 30000 pixels, too many to decode"),
        (
            lambda place: place.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500)),
            "HEIC image cannot be decoded here. Ask for it as JPEG",
        ),
        (lambda place: place.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(2000)), "cannot be decoded"),
        (lambda place: pdf(place, password="secret"), "it is encrypted: ask for the password"),
        (damaged, "damaged"),
        (
            lambda place: place.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)),
            "old binary format or encrypted. Convert it",
        ),
        (zip_bomb, "unpacks to more than 300 MB"),
        (broken_word, "damaged or of a kind that cannot be read"),
    ],
    ids=["cut", "bomb", "heic", "noise", "encrypted", "damaged", "old", "zip bomb", "no word"],
)
async def test_what_would_do_harm_is_named_not_shown_and_says_why(
    call: Call, workspace: Path, make: Callable[[Path], None], said: str
):
    make(workspace / "thing")

    result = await call("read_file", path="thing")

    assert result.error
    assert said in str(result.content)
    assert result.provenance is Provenance.TOOL, "none of it is the document's"
    assert not (workspace / ".nanobot/images").exists()


# -- notebooks ----------------------------------------------------------------------------------------------------

MARKDOWN = {"cell_type": "markdown", "id": "m1", "metadata": {}, "source": ["# Title\n", "text"]}
CODE = {
    "cell_type": "code",
    "id": "c1",
    "metadata": {"tags": ["x"]},
    "execution_count": 3,
    "source": ["print('hi')"],
    "outputs": [
        {"output_type": "stream", "name": "stdout", "text": ["hi\n"]},
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": "AAAA", "text/plain": "<fig>"}},
    ],
}
METADATA = {"kernelspec": {"name": "python3"}}


@pytest.fixture
def notebook(workspace: Path) -> Path:
    content = {"cells": [MARKDOWN, CODE], "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    lay(workspace, {"a.ipynb": json.dumps(content, indent=1) + "\n"})
    return workspace / "a.ipynb"


def cells(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place.read_text(encoding="utf-8"))["cells"]
    return found


async def test_a_notebook_is_shown_as_cells(call: Call, notebook: Path):
    told = words(await call("read_file", path="a.ipynb"))

    for part in ("--- cell 0 markdown id=m1 ---", "--- cell 1 code id=c1 ---", "--- output ---", "[image/png]"):
        assert part in told
    assert "AAAA" not in told


async def test_a_cell_is_replaced_and_its_old_output_goes(call: Call, notebook: Path):
    result = await call("notebook_edit", path="a.ipynb", cell="c1", source="print('a')\nprint('b')")

    source = ["print('a')\n", "print('b')"]
    assert result.display is not None and "+print('b')" in result.display
    assert cells(notebook) == [MARKDOWN, {**CODE, "source": source, "execution_count": None, "outputs": []}]
    assert json.loads(notebook.read_text(encoding="utf-8"))["metadata"] == METADATA
    await call("notebook_edit", path="a.ipynb", cell="c1", source="words", cell_type="markdown")
    kept = {key: CODE[key] for key in ("id", "metadata")}
    assert cells(notebook)[1] == {"cell_type": "markdown", "source": ["words"], **kept}


async def test_cells_are_inserted_and_deleted(call: Call, notebook: Path):
    await call("notebook_edit", path="a.ipynb", mode="insert", source="first", cell_type="markdown")
    await call("notebook_edit", path="a.ipynb", mode="insert", cell="1", source="x = 1")
    await call("notebook_edit", path="a.ipynb", mode="delete", cell="c1")

    left = cells(notebook)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in left] == [
        ("markdown", "first"),
        ("markdown", "# Title\ntext"),
        ("code", "x = 1"),
    ]
    assert len({cell["id"] for cell in left}) == 3


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
    lay(workspace, {"plain.ipynb": "no json", "old.ipynb": '{"worksheets": []}'})
    before = notebook.read_bytes()

    result = await call("notebook_edit", **{"path": "a.ipynb", **asked})

    assert result.error
    assert said in words(result)
    assert notebook.read_bytes() == before


# -- whose words --------------------------------------------------------------------------------------------------


async def test_what_people_sent_and_what_came_from_the_web_is_trusted_as_little_as_they_are(tmp_path: Path):
    places = {
        "media/telegram/a.txt": "person",
        "media/email/b.txt": "mail",
        "workspace/.nanobot/spill/t-web-1.txt": "web",
    }
    looks: dict[str, dict[str, str]] = {"read_file": {}, "grep": {"pattern": "words"}}
    looks["edit_file"] = {"old_text": "werds", "new_text": "x"}  # what is closest to it is told
    for name, trust in places.items():
        for tool, more in looks.items():
            if trust == "web" or tool != "edit_file":
                async with open_bot(tmp_path / tool / trust) as bot:
                    lay(bot.home, {name: "words\n"})
                    row = await call_in_turn(bot, tool, path=str(bot.home / name), **more)
                assert (row["provenance"], "words" in str(row["content"])) == (trust, True), (tool, name)
