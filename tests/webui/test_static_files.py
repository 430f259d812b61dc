"""The files of the page: policy, caching, sizes, vendored code, and the words of both languages."""

import hashlib
import re
import tomllib

import httpx
import pytest

from tests.house.repo import ROOT
from tests.support.running_gateway import OpenGateway

STATIC = ROOT / "nanobot" / "webui" / "static"
MAX_JS, MAX_CSS, MAX_REQUESTS = 60_000, 12_000, 36
"""Compressed bytes at the first load."""


def words_of(language: str) -> dict[str, str]:
    """The words of a language, by key."""
    source = (STATIC / "app" / "words" / f"{language}.js").read_text(encoding="utf-8")
    return dict(re.findall(r'^  (\w+): "((?:[^"\\]|\\.)*)",$', source, re.MULTILINE))


@pytest.fixture
async def shell(running: OpenGateway):
    async with (
        running() as here,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{here.gateway.http.port}", trust_env=False) as client,
    ):
        yield client, await client.get("/")


async def test_the_document_runs_only_its_own_files_and_is_framed_by_nobody(shell):
    _, answer = shell
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'self' 'sha256-[\w+/=]+'", policy["script-src"])
    assert (policy["connect-src"], policy["style-src"], policy["base-uri"]) == ("'self'", "'self'", "'none'")
    assert (policy["frame-ancestors"], policy["form-action"]) == ("'none'", "'none'")
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_what_the_first_load_needs_is_small_and_kept_for_good(shell):
    client, answer = shell
    names = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', answer.text))
    files = {name: await client.get(name) for name in names}

    sizes = {".js": 0, ".css": 0, ".svg": 0}
    for name, file in files.items():
        assert file.status_code == 200, name
        assert file.headers["content-encoding"] == "gzip"
        assert "immutable" in file.headers["cache-control"]
        sizes[name[name.rindex(".") :]] += int(file.headers["content-length"])
    assert sizes[".js"] <= MAX_JS
    assert sizes[".css"] <= MAX_CSS
    assert len(names) + 1 <= MAX_REQUESTS


async def test_files_of_another_build_and_files_beside_the_folder_are_not_served(shell):
    client, answer = shell
    (base,) = re.findall(r'<meta name="base" content="([^"]+)"', answer.text)

    for path in (
        "/static/0000/app/main.js",
        f"{base}/app/none.js",
        f"{base}/vendor/vendor.toml",
        f"{base}/%2e%2e/app.py",
    ):
        assert (await client.get(path)).status_code == 404


def test_vendored_files_are_as_published():
    entries = tomllib.loads((STATIC / "vendor" / "vendor.toml").read_text(encoding="utf-8"))

    hashes = {entry["file"]: entry["sha256"] for entry in entries.values()}
    assert hashes == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.js")
    }
    licences = (STATIC / "vendor" / "licences.txt").read_text(encoding="utf-8")
    assert all(f"== {entry['package']}\n" in licences for entry in entries.values())


def test_both_languages_have_the_same_words_and_each_is_used():
    english, chinese = words_of("en"), words_of("zh")
    modules = [
        path.read_text(encoding="utf-8") for path in (STATIC / "app").rglob("*.js") if path.parent.name != "words"
    ]
    source = "\n".join(modules)
    names = ("pages.py", "documents/plain.html")
    plain = "".join((STATIC.parent / name).read_text(encoding="utf-8") for name in names)
    exact = set(re.findall(r"""words\[["'](\w+)["']\]""", plain))
    exact |= set(re.findall(r'\bt\("(\w+)"', source)) | set(re.findall(r'"(key_\w+)"', source))
    families = tuple(re.findall(r"\bt\(`(\w+_)\$\{", source))

    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key
    assert exact <= english.keys()
    assert [key for key in english if key not in exact and not key.startswith(families)] == []


def test_no_text_for_people_stands_outside_the_words():
    """Text between tags, and labels, come from the words."""
    found = []
    for path in (STATIC / "app").rglob("*.js"):
        source = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        texts = re.findall(r">([^<>`${}]*[A-Za-z]{3,}[^<>`${}]*)</", source)
        labels = re.findall(r'(?:aria-label|title|placeholder)="([^"$]+)"', source)
        found += [f"{path.name}: {text.strip()}" for text in (*texts, *labels) if text.strip() != "nanobot web"]

    assert found == []
