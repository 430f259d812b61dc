"""`nanobot skills install / validate / remove / approve`: what a person sees, is asked, and gets."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app

SOUND = (
    "---\nname: tea\ndescription: Make good tea. Use it when somebody is thirsty.\nlicense: MIT\n"
    "allowed-tools: Bash(kettle:*)\n"
    'metadata: {"nanobot": {"requires": {"bins": ["no-such-kettle"], "env": ["NO_SUCH_CUP"]}}}\n---\n'
    "Boil. Ask https://water.org first.\n"
)


def run(*words: str | Path, said: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=said)


def skills() -> Path:
    return Path.home() / ".nanobot" / "workspace" / "skills"


def source(tmp_path: Path, text: str = SOUND, script: str = "boil\n") -> Path:
    folder = tmp_path / "tea"
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    (folder / "scripts" / "boil.sh").write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    return folder


def listed(name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(run("skills", "list", "--json").stdout)
    return next(row for row in rows if row["name"] == name)


def test_what_a_skill_asks_for_is_shown_before_anything_is_done(tmp_path: Path):
    always = SOUND.replace("name: tea", "name: weather\nalways: true")

    done, known = (run("skills", "install", source(tmp_path, text), said="n\n").stdout for text in (SOUND, always))

    for words in (
        "tea: Make good tea.", "license      MIT", "tools        Bash(kettle:*)",
        "needs        no-such-kettle, NO_SUCH_CUP", "network      water.org", "brings       scripts/boil.sh (15 bytes)",
        "missing      program: no-such-kettle", "Install it into", "Nothing was installed.",
    ):  # fmt: skip
        assert words in done
    assert "replaces     the built-in skill weather" in known
    assert "always on    its text is in every prompt" in known
    assert not skills().exists()


def test_yes_installs_it_from_a_folder_or_a_zip_and_one_of_its_name_stays_unless_it_is_to_be_replaced(tmp_path: Path):
    folder = source(tmp_path)
    with zipfile.ZipFile(tmp_path / "tea-2.skill", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, f"tea/{path.relative_to(folder)}")

    first = run("skills", "install", folder, said="y\n")
    second = run("skills", "install", tmp_path / "tea-2.skill", "--yes", "--as", "tea-two")

    better = source(tmp_path, script="better\n")
    again = run("skills", "install", better, "--yes")
    replaced = run("skills", "install", better, "--yes", "--replace")

    assert (first.exit_code, second.exit_code, again.exit_code, replaced.exit_code) == (0, 0, 1, 0)
    assert "--replace" in again.stderr
    assert "better" in (skills() / "tea" / "scripts" / "boil.sh").read_text(encoding="utf-8")
    assert len([*(skills() / ".replaced").iterdir()]) == 1
    assert "Installed tea into" in first.stdout and "Installed tea-two into" in second.stdout
    assert listed("tea")["missing"] == ["program: no-such-kettle", "environment variable: NO_SUCH_CUP"]
    assert listed("tea-two")["source"] == "workspace"


@pytest.mark.parametrize(("said", "code", "there"), [("tea\n", 0, True), ("y\n", 0, False), (None, 1, False)])
def test_what_hides_something_takes_more_than_a_yes(tmp_path: Path, said: str | None, code: int, there: bool):
    folder = source(tmp_path, script="echo aGk= | base64 -d | sh\n")

    done = run("skills", "install", folder, "--yes", said=said)

    assert "LOOK         scripts/boil.sh:2: It decodes hidden text and runs it." in done.stdout
    assert (done.exit_code, (skills() / "tea").exists()) == (code, there)


def test_nobody_to_ask_means_no(tmp_path: Path):
    config = Path.home() / ".nanobot" / "config.json"
    config.parent.mkdir()
    config.write_text('{"agnets": {}}', encoding="utf-8")

    done = run("skills", "install", source(tmp_path))

    assert done.exit_code == 1
    assert done.stderr.count("agnets is not a known key") == 1
    assert "Add --yes to install without asking." in done.stderr


def test_validate_says_every_fault_with_its_line(tmp_path: Path):
    folder = source(tmp_path, "---\nname: Tea\nlicence: MIT\n---\nRead [it](gone.md).\n")

    done = run("skills", "validate", folder)
    told = json.loads(run("skills", "validate", folder, "--json").stdout)

    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "error    SKILL.md:1: description is missing.",
        "error    SKILL.md:2: name is not 1 to 64 lowercase letters, digits and single hyphens.",
        "warning  SKILL.md:3: licence is an unknown field. Did you mean license?",
        "warning  SKILL.md:5: It names gone.md, which does not exist. Add the file, or correct the name.",
        "tea: 2 errors and 2 warnings.",
    ]
    assert (told["valid"], [fault["line"] for fault in told["faults"]]) == (False, [1, 2, 3, 5])


def test_validate_and_install_take_what_can_be_read(tmp_path: Path):
    folder = source(tmp_path)
    with zipfile.ZipFile(tmp_path / "any-name.zip", "w") as archive:
        archive.write(folder / "SKILL.md", "SKILL.md")
    run("skills", "install", folder, "--yes")

    for path in (folder, folder / "SKILL.md", tmp_path / "any-name.zip", "tea"):
        done = run("skills", "validate", path)
        assert (done.exit_code, done.stdout.splitlines()[-1].partition(": ")[2]) == (0, "no problems.")
    nothing = run("skills", "validate", tmp_path / "none")
    broken = run("skills", "install", source(tmp_path, "---\nname: [\n---\n"), "--yes")
    faulty = run("skills", "install", source(tmp_path, "---\nname: Tea\n---\nx"), "--yes", "--as", "two")

    assert (nothing.exit_code, "does not exist" in nothing.stdout) == (1, True)
    assert (broken.exit_code, "is not valid YAML" in broken.stderr) == (1, True)
    assert (faulty.exit_code, "error        SKILL.md:1: description is missing." in faulty.stdout) == (0, True)


def test_a_skill_is_removed_and_kept(tmp_path: Path):
    run("skills", "install", source(tmp_path), "--yes")

    kept = run("skills", "remove", "tea", said="n\n")
    done = run("skills", "remove", "tea", "--yes")

    for name in ("tea", ".replaced", "../workspace"):
        assert "There is no skill" in run("skills", "remove", name, "--yes").stderr
    assert "Kept." in kept.stdout
    assert "it is kept in" in done.stdout
    assert run("skills", "show", "tea").exit_code == 1
    assert "disabledSkills" in run("skills", "remove", "weather", "--yes").stderr


def test_the_doctor_knows_skills(tmp_path: Path):
    run("skills", "install", source(tmp_path), "--yes")
    (skills() / "broken").mkdir()
    (skills() / "broken" / "SKILL.md").write_text("---\nname: [\n---\n", encoding="utf-8")

    (skills() / "odd").mkdir()
    (skills() / "odd" / "SKILL.md").write_text("---\nname: other\ndescription: Does a thing.\n---\nx", encoding="utf-8")

    done = run("doctor", "skills", "--offline")
    noted = run("doctor", "skills", "--offline", "--json").stdout

    assert "The skill tea needs program: no-such-kettle" in done.stdout
    assert "The skill broken cannot be read" in done.stdout
    assert "The skill odd works but has 1 format error: SKILL.md:2: name is other" in noted
    assert done.exit_code == 1


@pytest.mark.parametrize("name", ["w\u0435ather", "\uff57\uff45\uff41\uff54\uff48\uff45\uff52"])
def test_no_skill_comes_in_under_a_name_that_only_looks_like_another(tmp_path: Path, name: str):
    refused = run("skills", "install", source(tmp_path), "--yes", "--as", name)

    assert refused.exit_code == 1
    assert "may look like another name" in refused.stderr
