"""Skills are found, checked and summed up; a damaged one never takes the others with it."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.skills.loader import SkillsLoader
from nanobot.agent.skills.manual import MAX_BYTES, _load
from nanobot.utils.installation import skills_dir


@pytest.fixture
def builtin(tmp_path: Path) -> Path:
    return tmp_path / "builtin"


@pytest.fixture
def loader(tmp_path: Path, builtin: Path) -> SkillsLoader:
    return SkillsLoader(tmp_path, builtin)


def write_skill(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_own(tmp_path: Path, name: str, text: str | bytes) -> Path:
    return write_skill(tmp_path / "skills", name, text)


def missing(loader: SkillsLoader, name: str) -> tuple[str, ...]:
    return next(skill.missing for skill in loader.skills() if skill.name == name)


def test_front_matter_is_read_as_yaml_reads_it():
    values = ["Make tea", "https://a.b/c", "a#b", "a # b", "a: b", "a:", "- a", "*a", "'a'", "a\tb", "~", "1e5", ""]
    values += ["\u00a0a", "true", "True", "yes", "Off", "null", "y", '"a: b"', '"a\\n"', "[]", '["a",]', '"a" # b']
    values += ['{"a": {"b": ["c"]}}', '{"a": true}', "{a: b}"]
    for key in ("name", "on", "a b", "A-1"):
        for value in values:
            text = f"{key}: {value}\nname: tea\n"
            try:
                expected = yaml.safe_load(text)
            except yaml.YAMLError:
                continue  # a text with a colon is accepted all the same

            assert _load(text) == expected, text


def test_the_person_s_skill_stands_before_the_built_in_one_of_the_same_name(tmp_path, builtin, loader):
    write_skill(builtin, "tea", "built in")
    path = write_own(tmp_path, "tea", "my own, by {baseDir}/kettle.sh")
    write_skill(tmp_path, "outside", "secret")

    assert loader.list_skills() == [{"name": "tea", "path": str(path), "source": "workspace"}]
    assert loader.load_skill("tea") == f"my own, by {path.parent}/kettle.sh"
    assert loader.load_skill("../outside") is None


def test_a_disabled_skill_does_not_exist(tmp_path, builtin):
    write_own(tmp_path, "tea", "---\ndescription: x\nalways: true\n---\nBoil.")
    loader = SkillsLoader(tmp_path, builtin, disabled=["tea"])

    assert loader.list_skills(filter_unavailable=False) == []
    assert loader.load_skill("tea") is None
    assert loader.get_always_skills() == []
    assert loader.build_skills_summary() == ""


@pytest.mark.parametrize(("mark", "line_end"), [(b"", b"\n"), (b"\xef\xbb\xbf", b"\r\n")])
def test_an_always_on_skill_goes_into_the_prompt_without_its_front_matter(tmp_path, loader, mark, line_end):
    text = b"---\ndescription: Make tea\nalways: true\n---\n\n# Tea\n\n---\nBoil.\n"
    write_own(tmp_path, "tea", mark + text.replace(b"\n", line_end))

    assert loader.load_skills_for_context(loader.get_always_skills()) == "### Skill: tea\n\n# Tea\n\n---\nBoil."


@pytest.mark.parametrize(
    "metadata",
    [
        '{"nanobot": {"always": true}}',
        '{"openclaw": {"always": true}}',
        '{"clawdbot": {"always": true}}',
        '\'{"nanobot": {"always": true}}\'',
        "\n  openclaw:\n    always: true",
    ],
)
def test_metadata_may_be_a_table_or_json_text_for_either_name(tmp_path, loader, metadata):
    write_own(tmp_path, "tea", f"---\nname: tea\ndescription: d\nmetadata: {metadata}\n---\n")

    assert loader.get_always_skills() == ["tea"]


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ('{"requires": {"bins": ["no-such-program"]}}', "program: no-such-program"),
        ('{"requires": {"anyBins": ["no-such-a", "no-such-b"]}}', "program: no-such-a or no-such-b"),
        ('{"requires": {"env": ["NO_SUCH_VARIABLE"]}}', "environment variable: NO_SUCH_VARIABLE"),
        ('{"os": ["plan9"]}', "system: plan9"),
    ],
)
def test_what_is_missing_is_said_in_the_summary(tmp_path, loader, requires, reason):
    write_own(tmp_path, "tea", f'---\ndescription: d\nmetadata: {{"nanobot": {requires}}}\n---\n')

    summary = ET.fromstring(loader.build_skills_summary())

    skill = summary[0]
    assert skill.get("available") == "false"
    assert skill.findtext("requires") == reason
    assert loader.list_skills() == []
    assert len(loader.list_skills(filter_unavailable=False)) == 1


def test_a_skill_becomes_available_when_its_program_is_installed(tmp_path, loader, monkeypatch):
    write_own(tmp_path, "tea", '---\nmetadata: {"nanobot": {"requires": {"bins": ["kettle"], "env": ["CUP"]}}}\n---\n')
    assert missing(loader, "tea") == ("program: kettle", "environment variable: CUP")

    program = tmp_path / ("kettle.exe" if os.name == "nt" else "kettle")
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUP", "blue")
    monkeypatch.setattr("nanobot.agent.skills.loader._HOST_CACHE_S", 0)  # two seconds later

    assert missing(loader, "tea") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"---\nname: [\n---\n", "not valid YAML"),
        (b"---\ndate: 2024-13-45\n---\n", "not valid YAML"),
        (b"---\nx: " + b"[" * 1_000 + b"\n---\n", "not valid YAML"),
        (b"---\n- a\n- b\n---\n", "not a list of `key: value` lines"),
        (b"\xff\xfe\x00\x01", "not UTF-8"),
        (b"text\x00text", "not text"),
        (b"x" * (MAX_BYTES + 1), "larger than 256 kB"),
    ],
)
def test_a_damaged_skill_is_listed_with_its_reason_and_the_others_work(tmp_path, loader, text, reason):
    write_own(tmp_path, "broken", text)
    write_own(tmp_path, "tea", "---\ndescription: Make tea\n---\nBoil.")

    summary = loader.build_skills_summary()

    assert reason in missing(loader, "broken")[0]
    assert 'available="true">\n<name>tea</name>' in summary


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_pipe_called_skill_md_keeps_nobody_waiting(tmp_path, loader):
    (tmp_path / "skills" / "pipe").mkdir(parents=True)
    os.mkfifo(tmp_path / "skills" / "pipe" / "SKILL.md")

    assert loader.skills() == ()


@pytest.mark.parametrize("text", ["# Tea\n", "---\nno end of it\n", "", "---\n---\n", "---\n# only a comment\n---\n"])
def test_a_skill_without_front_matter_is_known_by_its_folder(tmp_path, loader, text):
    write_own(tmp_path, "tea", text)

    assert missing(loader, "tea") == ()
    assert "<description>tea</description>" in loader.build_skills_summary()


def test_names_and_descriptions_cannot_break_the_xml(tmp_path, loader):
    write_own(tmp_path, "a&b", '---\ndescription: "<skill> & </skills>"\n---\n')

    summary = ET.fromstring(loader.build_skills_summary())

    assert summary[0].findtext("description") == "<skill> & </skills>"


@given(
    front=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
)
def test_no_front_matter_whatever_raises(tmp_path, front):
    write_own(tmp_path, "odd", b"---\n" + front + b"\n---\nbody")
    loader = SkillsLoader(tmp_path, tmp_path / "none")

    assert [skill.name for skill in loader.skills()] == ["odd"]
    loader.build_skills_summary()
    loader.load_skills_for_context(["odd"])


def test_every_built_in_skill_is_sound(tmp_path):
    loader = SkillsLoader(tmp_path)

    for skill in loader.skills():
        assert skill.description
        assert not any("SKILL.md" in reason for reason in skill.missing)
    assert loader.get_always_skills() == ["memory"]
    assert len(loader.skills()) == len(list(skills_dir().iterdir()))


# --- skills that need skills


def needing(name: str, *skills: str, programs: str = "[]") -> str:
    wanted = ", ".join(f'"{one}"' for one in skills)
    ours = f'{{"nanobot": {{"requires": {{"bins": {programs}, "skills": [{wanted}]}}}}}}'
    return f"---\nname: {name}\ndescription: d\nmetadata: {ours}\n---\nText.\n"


def test_a_skill_needs_the_skills_it_names(tmp_path, loader):
    write_own(tmp_path, "party", needing("party", "tea", "cake"))
    write_own(tmp_path, "tea", needing("tea", "water"))
    write_own(tmp_path, "water", needing("water", programs='["no-such-tap"]'))

    assert missing(loader, "tea") == ("skill: water, which lacks program: no-such-tap",)
    assert missing(loader, "party") == ("skill: tea, which lacks another skill", "skill: cake")

    write_own(tmp_path, "cake", needing("cake"))
    write_own(tmp_path, "water", needing("water"))

    assert missing(loader, "party") == ()
    assert "<requires>skill: tea, skill: cake</requires>" in loader.build_skills_summary()


# --- those of most use first


def many(tmp_path: Path, count: int = 40) -> None:
    for number in range(count):
        write_own(tmp_path, f"skill-{number:03}", f"---\ndescription: {'word ' * 20}{number}\n---\nText.\n")


def shown(summary: str) -> list[str]:
    return [str(one.findtext("name")) for one in ET.fromstring(summary).iter("skill")]


def test_where_not_all_fit_the_rest_is_named_with_how_to_find_it(tmp_path, builtin):
    many(tmp_path, 300)
    assert len(full := SkillsLoader(tmp_path, builtin).build_skills_summary()) < 8_200
    assert " more. Their files are" in full
    loader = SkillsLoader(tmp_path, builtin, summary_chars=4_000)

    summary = loader.build_skills_summary()
    more = ET.fromstring(summary).find("more")

    assert len(summary) < 4_400
    assert shown(summary) == [f"skill-{number:03}" for number in range(len(shown(summary)))]
    assert more is not None and int(str(more.get("count"))) == 300 - len(shown(summary)) > 20
    assert "skill-039" in str(more.text) and str(tmp_path / "skills") in str(more.text)


def test_what_a_skill_says_of_itself_cannot_fill_a_prompt_or_break_a_line(tmp_path, loader):
    ours = json.dumps({"nanobot": {"requires": {"bins": ["a\nb", "x" * 90_000]}}})
    write_own(tmp_path, "tea", f"---\ndescription: {'tea ' * 20_000}\nmetadata: {ours}\n---\n")

    summary = loader.build_skills_summary()

    assert "program: a b, program: xxx" in summary
    assert len(summary) < 2_000


def test_a_skill_that_only_a_person_may_name_is_in_no_prompt(tmp_path, loader):
    write_own(tmp_path, "tea", "---\ndescription: d\nalways: true\ndisable-model-invocation: true\n---\nBoil.\n")
    write_own(tmp_path, "cake", "---\ndescription: d\n---\nBake.\n")

    assert shown(loader.build_skills_summary()) == shown(loader.format_catalog(loader.catalog())) == ["cake"]
    assert loader.get_always_skills() == []
    assert [row["name"] for row in loader.list_skills()] == ["cake", "tea"]


def test_a_folder_that_begins_with_a_point_is_no_skill(tmp_path, loader):
    write_own(tmp_path, ".replaced", "Old.")

    assert loader.skills() == ()
