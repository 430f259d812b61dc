"""Checks a skill and reports each fault with its line and advice: `nanobot skills validate`.

The rules are those of https://agentskills.io/specification plus the fields that OpenClaw and nanobot add. An error
keeps a skill from being found, read or trusted; a warning does not.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from nanobot.agent.skills.bundle import Bundle
from nanobot.agent.skills.manual import (
    OUR_METADATA,
    SKILL_FILE,
    Manual,
    body,
    decode_manual,
    front_matter,
    parse_front_matter,
    table,
)
from nanobot.agent.skills.needs import INSTALLERS, SYSTEMS, SkillNeeds
from nanobot.agent.skills.risks import RiskWarning, find_risks
from nanobot.utils.text import nearest

MAX_NAME_CHARS, MAX_DESCRIPTION_CHARS, MAX_COMPATIBILITY_CHARS = 64, 1024, 500
_MAX_LINES = 500
_MAX_ALWAYS_CHARS = 4_000

_FIELDS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_OTHER_FIELDS = frozenset(
    {"homepage", "always", "version", "author", "tags", "requires", "depends", "depends-on", "user-invocable"}
    | {"disable-model-invocation", "command-dispatch", "command-tool", "command-arg-mode", "model", "argument-hint"}
    | {"arguments", "context", "agent", "hooks", "when_to_use", "disallowed-tools", "effort", "paths", "shell"}
    | {"repository", "category", "icon", "emoji", "dependencies", "keywords", "title", "summary"}
)
"""Known fields of other agents, which are not checked."""
_OUR_FIELDS = frozenset(
    {
        "always",
        "emoji",
        "homepage",
        "os",
        "requires",
        "install",
        "primaryEnv",
        "skillKey",
        "skills",
        "depends",
        "depends-on",
    }
    | {"cliHelp", "links", "config", "nix", "author", "version", "envVars", "dependencies"}
)
_REQUIRES = frozenset({"bins", "anyBins", "env", "config", "sandbox", "skills"})
_KNOWN_SYSTEMS = frozenset({"linux", "darwin", "win32", *SYSTEMS})
_LINK = re.compile(
    r"\[[^\]\n]*\]\(([^)\s]+)[^)\n]*\)"
    r"|\{baseDir\}/([\w./-]+)"
    r"|(?<![\w/.:}-])((?:scripts|references|assets)/[\w./-]*\w)"
)
"""A file named in the text: as a link, in the skill's folder, or in one of the usual folders."""
_KEY_LINE = re.compile(r"^\s*[\"']?([\w.-]+)[\"']?\s*:")

_LIKE_LATIN = frozenset({"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC"})
"""Scripts with letters that look like Latin ones."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    text: str
    advice: str
    line: int = 0
    """In SKILL.md unless `path` says otherwise; 0 for the whole file."""
    is_error: bool = True
    path: str = SKILL_FILE

    @property
    def summary(self) -> str:
        """The finding in one line, with its place."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.text} {self.advice}".strip()


def _warning(text: str, advice: str, line: int = 0) -> LintFinding:
    return LintFinding(text, advice, line, is_error=False)


def name_problem(name: str) -> str:
    """Return why this is not a valid skill name; empty if it is."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"is longer than {MAX_NAME_CHARS} characters"
    if name != name.lower() or not all(character.isalnum() or character == "-" for character in name):
        return "may only have lowercase letters, digits and hyphens"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        return "starts or ends with a hyphen, or has two in a row"
    scripts = {unicodedata.name(character, "").partition(" ")[0] for character in name if character.isalpha()}
    if unicodedata.normalize("NFKC", name) != name or ("LATIN" in scripts and scripts & _LIKE_LATIN):
        return "mixes several scripts and may look like another name"
    return ""


def lint_skill(
    bundle: Bundle,
    *,
    checks_folder_name: bool = True,
    with_risks: bool = True,
    others: Mapping[str, Collection[str]] | None = None,
) -> list[LintFinding]:
    """Return all findings, by place in the file.

    `checks_folder_name`: the name must be that of the folder. `with_risks`: report risks as findings. `others`: the
    other skills, each with those it needs.
    """
    text, problem = decode_manual(bundle.manual)
    if problem:
        return [LintFinding(f"{problem}.", "Save it as plain UTF-8 text, with details in other files of the folder.")]
    front = front_matter(text)
    if front is None:
        return [_front_matter_fault(text)]
    manual = parse_front_matter(front)
    if manual.problem:
        return [_syntax_fault(manual, front)]
    lines = _Lines(front)
    faults = [
        *_front_faults(manual, lines),
        *_name_faults(manual, lines, bundle.name if checks_folder_name else ""),
        *_our_faults(manual, lines),
        *_body_faults(bundle, text, manual),
        *_needed_faults(SkillNeeds.of(manual), lines, bundle.name, others),
        *(_risk_fault(item) for item in find_risks(bundle) if with_risks),
    ]
    return sorted(faults, key=lambda fault: (fault.path != SKILL_FILE, fault.path, fault.line))


def _risk_fault(item: RiskWarning) -> LintFinding:
    return LintFinding(f"It {item.text}.", "Check it before you trust it.", item.line, item.is_severe, item.path)


class _Lines:
    """The line numbers of the front matter's keys."""

    def __init__(self, front: str) -> None:
        self.lines = front.split("\n")
        self.duplicates: list[tuple[str, int]] = []
        self._top: dict[str, int] = {}
        self._any: dict[str, int] = {}
        for number, line in enumerate(self.lines, 2):
            for key in re.findall(r"[\"']?([\w.-]+)[\"']?\s*:(?=\s|$|[\"'{\[])", line):
                self._any.setdefault(key, number)
            if (match := _KEY_LINE.match(line)) and not line[0].isspace():
                if match[1] in self._top:
                    self.duplicates.append((match[1], number))
                self._top.setdefault(match[1], number)

    def of(self, key: str) -> int:
        """Return the line of a field, else of its first mention, else 1."""
        return self._top.get(key) or self._any.get(key) or 1


def _front_matter_fault(text: str) -> LintFinding:
    if text.startswith("---"):
        return LintFinding("The front matter is not closed.", "Add a line `---` after its last field.", 1)
    return LintFinding(
        "There is no front matter.",
        "Start with a line `---`, then `name: ...` and `description: ...`, then `---`.",
        1,
    )


def _syntax_fault(manual: Manual, front: str) -> LintFinding:
    match = re.search(r", line (\d+)$", manual.problem)
    line = min(int(match[1]), front.count("\n") + 2) if match else 1
    problem_text = manual.problem.removesuffix(match[0] if match else "")
    advice = "Quote text with `: `, `#`, `[` or `{`; indent with spaces, equally within a table."
    return LintFinding(f"The {problem_text}.", advice, line)


def _front_faults(manual: Manual, lines: _Lines) -> Iterator[LintFinding]:
    front = manual.front
    if manual.repaired:
        odd = (number for number, item in enumerate(lines.lines, 2) if re.match(r"[\w-]+: [^\"'\[{|>].*:|[{\t]", item))
        message = "This is not valid YAML; nanobot accepts it, other agents do not."
        yield _warning(message, "Quote text with `: `; indent what belongs to a field.", next(odd, 2))
    for key, line in lines.duplicates:
        yield LintFinding(f"`{key}` appears twice.", "Remove one.", line)
    description = front.get("description")
    if description is None:
        yield LintFinding("`description` is missing.", "Say in a line or two what it does and when to use it.", 1)
    elif not isinstance(description, str) or not description.strip():
        yield LintFinding("`description` is not text.", "Say what it does and when to use it.", lines.of("description"))
    elif len(description) > MAX_DESCRIPTION_CHARS:
        message = f"`description` has {len(description)} characters; {MAX_DESCRIPTION_CHARS} are allowed."
        yield LintFinding(message, "Move the details into the text below.", lines.of("description"))
    elif len(description.split()) < 3 and description.isascii():
        yield _warning(
            "`description` is too short to be found.",
            "Say what it does and when to use it, in the words of a user.",
            lines.of("description"),
        )
    for key in ("license", "homepage"):
        if key in front and not isinstance(front[key], str):
            yield LintFinding(f"`{key}` is not text.", "Write it in one line, or remove it.", lines.of(key))
    compatibility = front.get("compatibility")
    if "compatibility" in front and not (
        isinstance(compatibility, str) and 1 <= len(compatibility.strip()) <= MAX_COMPATIBILITY_CHARS
    ):
        message = f"`compatibility` is not text of 1 to {MAX_COMPATIBILITY_CHARS} characters."
        yield LintFinding(message, "Describe the environment it needs, or remove it.", lines.of("compatibility"))
    if "allowed-tools" in front and not _is_text_or_list(front["allowed-tools"]):
        advice = "Write them separated by spaces, or as a list of texts."
        yield LintFinding("`allowed-tools` is neither text nor a list of texts.", advice, lines.of("allowed-tools"))
    if "always" in front and not isinstance(front["always"], bool):
        yield LintFinding(
            "`always` is neither true nor false.", "Write `always: true`, or remove it.", lines.of("always")
        )
    for key in front:
        if key not in _FIELDS | _OTHER_FIELDS and (similar := nearest(str(key), _FIELDS, 1, cutoff=0.75)):
            yield _warning(f"`{key}` is an unknown field.", f"Did you mean `{similar[0]}`?", lines.of(str(key)))


def _name_faults(manual: Manual, lines: _Lines, folder: str) -> Iterator[LintFinding]:
    name = manual.front.get("name")
    if name is None:
        yield LintFinding("`name` is missing.", f"Write `name: {folder or 'its-name'}`.", 1)
    elif not isinstance(name, str):
        yield LintFinding("`name` is not text.", "Quote it.", lines.of("name"))
    elif problem := name_problem(name):
        advice = "Use 1 to 64 lowercase letters, digits and single hyphens."
        yield LintFinding(f"`name` {problem}.", advice, lines.of("name"))
    elif folder and name != folder:
        message = f"`name` is {name}, but the folder is named {folder}."
        yield LintFinding(message, "Use the same name for both; nanobot uses the folder's.", lines.of("name"))


def _our_faults(manual: Manual, lines: _Lines) -> Iterator[LintFinding]:
    """Check `metadata` and the fields for agents like this one."""
    metadata = manual.front.get("metadata")
    if metadata is None:
        return
    as_table = table(metadata)
    if not as_table and metadata != {}:
        advice = 'Write it as a table, or in one line as `{"nanobot": {...}}`.'
        yield LintFinding("`metadata` is neither a table nor JSON text of one.", advice, lines.of("metadata"))
        return
    for key in OUR_METADATA:
        if key in as_table and not table(as_table[key]) and as_table[key] not in ({}, None):
            yield LintFinding(f"`metadata.{key}` is not a table.", 'Write `{"requires": {...}}`.', lines.of(key))
    ours = manual.ours
    for key in ours:
        if key not in _OUR_FIELDS and (similar := nearest(str(key), _OUR_FIELDS, 1, cutoff=0.75)):
            yield _warning(f"`{key}` in metadata is unknown.", f"Did you mean `{similar[0]}`?", lines.of(str(key)))
    if "always" in ours and not isinstance(ours["always"], bool):
        yield LintFinding("`always` is neither true nor false.", "Write true, or remove it.", lines.of("always"))
    if "os" in ours:
        yield from _system_faults(ours["os"], lines)
    if "requires" in ours:
        yield from _requires_faults(ours["requires"], lines)
    if "install" in ours:
        yield from _install_faults(ours["install"], lines)


def _system_faults(systems: object, lines: _Lines) -> Iterator[LintFinding]:
    if not _is_text_or_list(systems):
        yield LintFinding("`os` is not a list of texts.", 'For example: ["linux", "darwin"].', lines.of("os"))
        return
    for name in [systems] if isinstance(systems, str) else systems:  # type: ignore[attr-defined]
        if str(name).lower() not in _KNOWN_SYSTEMS:
            yield _warning(f"`os` has the unknown system {name}.", "Use linux, darwin or win32.", lines.of("os"))


def _requires_faults(requires: object, lines: _Lines) -> Iterator[LintFinding]:
    fields = table(requires)
    if not fields and requires != {}:
        yield LintFinding(
            "`requires` is not a table.", 'For example: {"bins": ["git"], "env": ["KEY"]}.', lines.of("requires")
        )
    for key, value in fields.items():
        if key not in _REQUIRES:
            similar = nearest(str(key), _REQUIRES, 1, cutoff=0.5)
            advice = f"Did you mean `{similar[0]}`?" if similar else f"Known are {', '.join(sorted(_REQUIRES))}."
            yield _warning(f"`requires.{key}` is unknown and not checked.", advice, lines.of(str(key)))
        elif not _is_text_or_list(value):
            yield LintFinding(f"`requires.{key}` is not a list of texts.", 'Write ["a", "b"].', lines.of(str(key)))


def _install_faults(entries: object, lines: _Lines) -> Iterator[LintFinding]:
    line = lines.of("install")
    if not isinstance(entries, list):
        yield LintFinding(
            "`install` is not a list.", 'For example: [{"kind": "brew", "formula": "gh", "bins": ["gh"]}].', line
        )
        return
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            yield LintFinding(
                f"Entry {number} of `install` is not a table.", 'Write {"kind": ..., "bins": [...]}.', line
            )
            continue
        installer = INSTALLERS.get(str(entry.get("kind")))
        if installer is None:
            message = f"Entry {number} of `install` has the unknown kind {entry.get('kind')!r}."
            yield _warning(message, f"Known are {', '.join(INSTALLERS)}.", line)
        elif not any(isinstance(entry.get(key), str) and entry[key] for key in installer.keys):
            yield LintFinding(f"Entry {number} of `install` names no package.", f"Add `{installer.keys[0]}`.", line)


def _body_faults(bundle: Bundle, text: str, manual: Manual) -> Iterator[LintFinding]:
    message = body(text)
    if not message:
        yield LintFinding("There is no text after the front matter.", "Describe how it is done.", text.count("\n") + 1)
    if (count := text.count("\n") + 1) > _MAX_LINES:
        yield _warning(f"It has {count} lines, which are all read at once.", "Move details into references/.")
    if manual.always and len(message) > _MAX_ALWAYS_CHARS:
        yield _warning(f"It is in every prompt, with {len(message)} characters.", "Shorten it, or remove `always`.")
    yield from _link_faults(bundle, text)


def _link_faults(bundle: Bundle, text: str) -> Iterator[LintFinding]:
    """Report files that are named but missing."""
    files = {file.path for file in bundle.files}
    places = files | {str(parent) for path in files for parent in PurePosixPath(path).parents}
    front_end = text.find("\n---", 3) if text.startswith("---") else 0
    first = text.count("\n", 0, max(front_end, 0)) + 2
    reported: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if number < first:
            continue
        for match in _LINK.finditer(line):
            target = match[1] or match[2] or match[3]
            relative = target.partition("#")[0].removeprefix("./").removeprefix("{baseDir}/").rstrip("/.")
            if not relative or relative in reported or re.match(r"[a-z][a-z+.-]*:|/|~|<|\$", relative, re.IGNORECASE):
                continue
            if target.endswith("/"):  # a folder, or the beginning of `scripts/<name>.py`
                continue
            if relative.startswith("../"):
                reported.add(relative)
                yield _warning(
                    f"It names {target}, which is outside of its folder.", "Add the file to the skill.", number
                )
            elif relative not in places and (not match[3] or _looks_like_a_file(relative)):
                reported.add(relative)
                yield _warning(
                    f"It names {target}, which does not exist.", "Add the file, or correct the name.", number
                )


def _looks_like_a_file(path: str) -> bool:
    return "." in PurePosixPath(path).name and "..." not in path


def _needed_faults(
    needs: SkillNeeds, lines: _Lines, name: str, others: Mapping[str, Collection[str]] | None
) -> Iterator[LintFinding]:
    """Report needed skills that are missing, and cycles."""
    line = lines.of("skills") if lines.of("skills") > 1 else lines.of("depends")
    for needed in needs.skills:
        if needed == name:
            yield _warning("It needs itself.", "Remove that.", line)
        elif others is not None and needed not in others:
            yield _warning(f"It needs the skill {needed}, which is not installed.", "Install that one too.", line)
        elif others is not None and (path := _find_path(needed, name, lambda item: others.get(item, ()))):
            yield _warning(f"Its needs form a cycle: {' -> '.join([name, *path])}.", "Remove one of these needs.", line)


def _find_path(start: str, goal: str, needed_by: Callable[[str], Collection[str]]) -> list[str]:
    """Return a path between two skills by their needs; empty if there is none."""
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop()
        for item in sorted(needed_by(path[-1])):
            if item == goal:
                return [*path, goal]
            if item not in seen:
                seen.add(item)
                paths.append([*path, item])
    return []


def _is_text_or_list(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def fault_to_json(fault: LintFinding) -> dict[str, Any]:
    severity = "error" if fault.is_error else "warning"
    return {"severity": severity, "file": fault.path, "line": fault.line, "text": fault.text, "advice": fault.advice}
