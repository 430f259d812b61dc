"""What has begun and not ended is on the disk, in a file that does not grow for ever."""

from pathlib import Path
from typing import Any

from nanobot.utils.under_way import UnderWay


def test_a_file_that_is_never_empty_stays_small_and_keeps_what_is_under_way(tmp_path: Path):
    busy = UnderWay(tmp_path)
    first = busy.begin({"name": "long"})
    for number in range(20_000):
        busy.end(busy.begin({"name": f"short {number}"}))

    [file] = tmp_path.glob("*.jsonl")
    left: list[dict[str, Any]] = []
    (tmp_path / "dead.jsonl").write_bytes(file.read_bytes())
    UnderWay(tmp_path).take_over(left.extend)
    busy.end(first)
    busy.close()

    assert left == [{"name": "long"}]
    assert not list(tmp_path.iterdir())


def test_it_stays_below_a_megabyte(tmp_path: Path):
    busy = UnderWay(tmp_path)
    busy.begin({"name": "long"})
    for _ in range(20_000):
        busy.end(busy.begin({"name": "x" * 50}))

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000
