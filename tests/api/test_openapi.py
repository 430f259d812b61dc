"""`docs/openapi.json` has the endpoints and bodies that there are."""

import importlib.util
import json
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_description_is_that_of_the_endpoints():
    spec = importlib.util.spec_from_file_location("openapi", DOCS / "openapi.py")
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))

    assert writer.document() == written, "python docs/openapi.py"
    assert all(operation["summary"] for path in written["paths"].values() for operation in path.values())
