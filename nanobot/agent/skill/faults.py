"""What is wrong with a skill, each fault with its line and what to do: `nanobot skills validate`.

The rules are those of https://agentskills.io/specification, and of the fields that OpenClaw and nanobot add to them.
An error is what keeps a skill from being found, read or trusted with its name; a warning is what will be regretted.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from nanobot.agent.skill.bundle import Bundle
from nanobot.agent.skill.manual import OUR_METADATA, SKILL_FILE, Manual, body, decoded, front_matter, parsed, table
from nanobot.agent.skill.needs import SYSTEMS, WAYS, Needs
from nanobot.agent.skill.warnings import Warned, warnings_of
from nanobot.utils.text import nearest

LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_COMPATIBILITY = 64, 1024, 500
_MOST_LINES = 500
_LARGEST_ALWAYS = 4_000

_FIELDS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_OTHERS = frozenset(
    {"homepage", "always", "version", "author", "tags", "requires", "depends", "depends-on", "user-invocable"}
    | {"disable-model-invocation", "command-dispatch", "command-tool", "command-arg-mode", "model", "argument-hint"}
    | {"arguments", "context", "agent", "hooks", "when_to_use", "disallowed-tools", "effort", "paths", "shell"}
    | {"repository", "category", "icon", "emoji", "dependencies", "keywords", "title", "summary"}
)
"""Fields that agents have beside those of the specification: nothing is said of them."""
_OURS = frozenset(
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
_REQUIRES = frozenset({"bins", "anyBins", "env", "config", "skills"})
_KNOWN_SYSTEMS = frozenset({"linux", "darwin", "win32", *SYSTEMS})
_LINK = re.compile(
    r"\[[^\]\n]*\]\(([^)\s]+)[^)\n]*\)"
    r"|\{baseDir\}/([\w./-]+)"
    r"|(?<![\w/.:}-])((?:scripts|references|assets)/[\w./-]*\w)"
)
"""A file that a text names: as a link, in the skill's folder, or in a folder such as skills have."""
_KEY_LINE = re.compile(r"^\s*[\"']?([\w.-]+)[\"']?\s*:")

_LIKE_LATIN = frozenset({"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC"})
"""Scripts with letters that nobody tells from ours by looking."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    text: str
    advice: str
    line: int = 0
    """In SKILL.md unless `path` says otherwise; 0 for the whole file."""
    is_error: bool = True
    path: str = SKILL_FILE

    @property
    def told(self) -> str:
        """In one line."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.text} {self.advice}".strip()


def _warning(text: str, advice: str, line: int = 0) -> Fault:
    return Fault(text, advice, line, is_error=False)


def name_problem(name: str) -> str:
    """Why this is no name of a skill; empty for a good one."""
    if not name:
        return "is empty"
    if len(name) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} characters"
    if name != name.lower() or not all(letter.isalnum() or letter == "-" for letter in name):
        return "has other letters than small ones, digits and hyphens"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        return "begins or ends with a hyphen, or has two in a row"
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in name if letter.isalpha()}
    if unicodedata.normalize("NFKC", name) != name or ("LATIN" in scripts and scripts & _LIKE_LATIN):
        return "mixes letters of several scripts, which may look like another name"
    return ""


def faults_of(
    bundle: Bundle,
    *,
    is_named: bool = True,
    looks: bool = True,
    others: Mapping[str, Collection[str]] | None = None,
) -> list[Fault]:
    """All that is wrong, by its place in the file.

    `is_named`: what its folder is called counts. `looks`: what one has to look at before one trusts it is a fault too.
    `others`: the skills it would stand among, each with those it needs.
    """
    text, problem = decoded(bundle.manual)
    if problem:
        return [Fault(f"{problem}.", "Save it as plain text in UTF-8, with the details in files beside it.")]
    front = front_matter(text)
    if front is None:
        return [_no_front_matter(text)]
    manual = parsed(front)
    if manual.problem:
        return [_unreadable(manual, front)]
    lines = _Lines(front)
    found = [
        *_front_faults(manual, lines),
        *_name_faults(manual, lines, bundle.name if is_named else ""),
        *_our_faults(manual, lines),
        *_body_faults(bundle, text, manual),
        *_needed_faults(Needs.of(manual), lines, bundle.name, others),
        *(_looked_at(one) for one in warnings_of(bundle) if looks),
    ]
    return sorted(found, key=lambda fault: (fault.path != SKILL_FILE, fault.path, fault.line))


def _looked_at(one: Warned) -> Fault:
    return Fault(f"It {one.text}.", "Look at it before you trust it.", one.line, one.grave, one.path)


class _Lines:
    """Where the keys of the front matter stand."""

    def __init__(self, front: str) -> None:
        self.lines = front.split("\n")
        self.twice: list[tuple[str, int]] = []
        self._top: dict[str, int] = {}
        self._any: dict[str, int] = {}
        for number, line in enumerate(self.lines, 2):
            for key in re.findall(r"[\"']?([\w.-]+)[\"']?\s*:(?=\s|$|[\"'{\[])", line):
                self._any.setdefault(key, number)
            if (match := _KEY_LINE.match(line)) and not line[0].isspace():
                if match[1] in self._top:
                    self.twice.append((match[1], number))
                self._top.setdefault(match[1], number)

    def of(self, key: str) -> int:
        """Of a field; of its first mention where it is no field; the first line where there is none."""
        return self._top.get(key) or self._any.get(key) or 1


def _no_front_matter(text: str) -> Fault:
    if text.startswith("---"):
        return Fault("The front matter does not end.", "Put a line with `---` behind its last field.", 1)
    return Fault(
        "There is no front matter.",
        "Begin with a line `---`, then `name: ...` and `description: ...`, then `---`.",
        1,
    )


def _unreadable(manual: Manual, front: str) -> Fault:
    match = re.search(r", line (\d+)$", manual.problem)
    line = min(int(match[1]), front.count("\n") + 2) if match else 1
    what = manual.problem.removesuffix(match[0] if match else "")
    advice = "Put text with `: `, `#`, `[` or `{` in quotes; indent by spaces, the same for all of a table."
    return Fault(f"The {what}.", advice, line)


def _front_faults(manual: Manual, lines: _Lines) -> Iterator[Fault]:
    front = manual.front
    if manual.mended:
        odd = (number for number, one in enumerate(lines.lines, 2) if re.match(r"[\w-]+: [^\"'\[{|>].*:|[{\t]", one))
        told = "This is no valid YAML; nanobot understands it, others do not."
        yield _warning(told, "Put text with `: ` in quotes; indent what belongs to a field.", next(odd, 2))
    for key, line in lines.twice:
        yield Fault(f"`{key}` stands there twice.", "Leave one.", line)
    description = front.get("description")
    if description is None:
        yield Fault("`description` is missing.", "Say in a line or two what it does and when to use it.", 1)
    elif not isinstance(description, str) or not description.strip():
        yield Fault("`description` is no text.", "Say what it does and when to use it.", lines.of("description"))
    elif len(description) > LONGEST_DESCRIPTION:
        told = f"`description` has {len(description)} characters; {LONGEST_DESCRIPTION} are allowed."
        yield Fault(told, "Move the details into the text below.", lines.of("description"))
    elif len(description.split()) < 3 and description.isascii():
        yield _warning(
            "`description` says too little to be found by.",
            "Say what it does and when to use it, in words a person would say.",
            lines.of("description"),
        )
    for key in ("license", "homepage"):
        if key in front and not isinstance(front[key], str):
            yield Fault(f"`{key}` is no text.", "Write it in one line, or leave it out.", lines.of(key))
    compatibility = front.get("compatibility")
    if "compatibility" in front and not (
        isinstance(compatibility, str) and 1 <= len(compatibility.strip()) <= LONGEST_COMPATIBILITY
    ):
        told = f"`compatibility` is no text of 1 to {LONGEST_COMPATIBILITY} characters."
        yield Fault(told, "Say what surroundings it needs, or leave it out.", lines.of("compatibility"))
    if "allowed-tools" in front and not _is_text_or_list(front["allowed-tools"]):
        advice = "Write them with spaces between, or as a list of texts."
        yield Fault("`allowed-tools` is neither text nor a list of texts.", advice, lines.of("allowed-tools"))
    if "always" in front and not isinstance(front["always"], bool):
        yield Fault("`always` is neither true nor false.", "Write `always: true`, or leave it out.", lines.of("always"))
    for key in front:
        if key not in _FIELDS | _OTHERS and (near := nearest(str(key), _FIELDS, 1, cutoff=0.75)):
            yield _warning(f"`{key}` is no field; nobody reads it.", f"Did you mean `{near[0]}`?", lines.of(str(key)))


def _name_faults(manual: Manual, lines: _Lines, folder: str) -> Iterator[Fault]:
    name = manual.front.get("name")
    if name is None:
        yield Fault("`name` is missing.", f"Write `name: {folder or 'its-name'}`.", 1)
    elif not isinstance(name, str):
        yield Fault("`name` is no text.", "Put it in quotes.", lines.of("name"))
    elif problem := name_problem(name):
        advice = "Use 1 to 64 small letters, digits and single hyphens."
        yield Fault(f"`name` {problem}.", advice, lines.of("name"))
    elif folder and name != folder:
        told = f"`name` is {name}, and the folder is called {folder}."
        yield Fault(told, "Give both the same name: the folder's is what counts here.", lines.of("name"))


def _our_faults(manual: Manual, lines: _Lines) -> Iterator[Fault]:
    """Of `metadata`, and what in it speaks to agents like this one."""
    metadata = manual.front.get("metadata")
    if metadata is None:
        return
    as_table = table(metadata)
    if not as_table and metadata != {}:
        advice = 'Write it as a table, or in one line as `{"nanobot": {...}}`.'
        yield Fault("`metadata` is neither a table nor JSON text of one.", advice, lines.of("metadata"))
        return
    for key in OUR_METADATA:
        if key in as_table and not table(as_table[key]) and as_table[key] not in ({}, None):
            yield Fault(f"`metadata.{key}` is no table.", 'Write `{"requires": {...}}`.', lines.of(key))
    ours = manual.ours
    for key in ours:
        if key not in _OURS and (near := nearest(str(key), _OURS, 1, cutoff=0.75)):
            yield _warning(f"`{key}` in metadata is not known.", f"Did you mean `{near[0]}`?", lines.of(str(key)))
    for kind in ("always",):
        if kind in ours and not isinstance(ours[kind], bool):
            yield Fault(f"`{kind}` is neither true nor false.", "Write true, or leave it out.", lines.of(kind))
    if "os" in ours:
        yield from _system_faults(ours["os"], lines)
    if "requires" in ours:
        yield from _requires_faults(ours["requires"], lines)
    if "install" in ours:
        yield from _install_faults(ours["install"], lines)


def _system_faults(systems: object, lines: _Lines) -> Iterator[Fault]:
    if not _is_text_or_list(systems):
        yield Fault("`os` is no list of texts.", 'Write ["linux", "darwin"], say.', lines.of("os"))
        return
    for name in [systems] if isinstance(systems, str) else systems:  # type: ignore[attr-defined]
        if str(name).lower() not in _KNOWN_SYSTEMS:
            yield _warning(f"`os` names {name}, which is no system.", "Use linux, darwin or win32.", lines.of("os"))


def _requires_faults(requires: object, lines: _Lines) -> Iterator[Fault]:
    fields = table(requires)
    if not fields and requires != {}:
        yield Fault("`requires` is no table.", 'Write {"bins": ["git"], "env": ["KEY"]}, say.', lines.of("requires"))
    for key, value in fields.items():
        if key not in _REQUIRES:
            near = nearest(str(key), _REQUIRES, 1, cutoff=0.5)
            advice = f"Did you mean `{near[0]}`?" if near else f"Known are {', '.join(sorted(_REQUIRES))}."
            yield _warning(f"`requires.{key}` is not known; nobody checks it.", advice, lines.of(str(key)))
        elif not _is_text_or_list(value):
            yield Fault(f"`requires.{key}` is no list of texts.", 'Write ["a", "b"].', lines.of(str(key)))


def _install_faults(entries: object, lines: _Lines) -> Iterator[Fault]:
    line = lines.of("install")
    if not isinstance(entries, list):
        yield Fault("`install` is no list.", 'Write [{"kind": "brew", "formula": "gh", "bins": ["gh"]}], say.', line)
        return
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            yield Fault(f"Entry {number} of `install` is no table.", 'Write {"kind": ..., "bins": [...]}.', line)
            continue
        way = WAYS.get(str(entry.get("kind")))
        if way is None:
            told = f"Entry {number} of `install` has the kind {entry.get('kind')!r}, which is not known."
            yield _warning(told, f"Known are {', '.join(WAYS)}.", line)
        elif not any(isinstance(entry.get(key), str) and entry[key] for key in way.keys):
            yield Fault(f"Entry {number} of `install` does not say what.", f"Give it `{way.keys[0]}`.", line)


def _body_faults(bundle: Bundle, text: str, manual: Manual) -> Iterator[Fault]:
    told = body(text)
    if not told:
        yield Fault("There is nothing below the front matter.", "Write down how it is done.", text.count("\n") + 1)
    if (count := text.count("\n") + 1) > _MOST_LINES:
        yield _warning(f"It has {count} lines, all of which are read at once.", "Move details into references/.")
    if manual.always and len(told) > _LARGEST_ALWAYS:
        yield _warning(f"It is in every prompt, with {len(told)} characters.", "Shorten it, or leave `always` out.")
    yield from _link_faults(bundle, text)


def _link_faults(bundle: Bundle, text: str) -> Iterator[Fault]:
    """Files it names and does not bring."""
    files = {file.path for file in bundle.files}
    places = files | {str(parent) for path in files for parent in PurePosixPath(path).parents}
    begins = text.find("\n---", 3) if text.startswith("---") else 0
    first = text.count("\n", 0, max(begins, 0)) + 2
    said: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if number < first:
            continue
        for match in _LINK.finditer(line):
            named = match[1] or match[2] or match[3]
            plain = named.partition("#")[0].removeprefix("./").removeprefix("{baseDir}/").rstrip("/.")
            if not plain or plain in said or re.match(r"[a-z][a-z+.-]*:|/|~|<|\$", plain, re.IGNORECASE):
                continue
            if named.endswith("/"):  # a folder, or the beginning of `scripts/<name>.py`
                continue
            if plain.startswith("../"):
                said.add(plain)
                yield _warning(f"It names {named}, which is outside of its folder.", "Bring the file along.", number)
            elif plain not in places and (not match[3] or _looks_like_a_file(plain)):
                said.add(plain)
                yield _warning(
                    f"It names {named}, which is not there.", "Bring the file along, or mend the name.", number
                )


def _looks_like_a_file(path: str) -> bool:
    return "." in PurePosixPath(path).name and "..." not in path


def _needed_faults(
    needs: Needs, lines: _Lines, name: str, others: Mapping[str, Collection[str]] | None
) -> Iterator[Fault]:
    """Skills it needs that are not there, or that need it in turn."""
    line = lines.of("skills") if lines.of("skills") > 1 else lines.of("depends")
    for needed in needs.skills:
        if needed == name:
            yield _warning("It needs itself.", "Leave that out.", line)
        elif others is not None and needed not in others:
            yield _warning(f"It needs the skill {needed}, which is not there.", "Install that one too.", line)
        elif others is not None and (way := _way_back(needed, name, lambda one: others.get(one, ()))):
            yield _warning(
                f"It needs skills in a circle: {' -> '.join([name, *way])}.", "Break it at one of them.", line
            )


def _way_back(start: str, goal: str, needed_by: Callable[[str], Collection[str]]) -> list[str]:
    """From one skill to another by what they need; empty where there is no way."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        for one in sorted(needed_by(way[-1])):
            if one == goal:
                return [*way, goal]
            if one not in seen:
                seen.add(one)
                ways.append([*way, one])
    return []


def _is_text_or_list(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def facts_of(fault: Fault) -> dict[str, Any]:
    """For programs."""
    severity = "error" if fault.is_error else "warning"
    return {"severity": severity, "file": fault.path, "line": fault.line, "text": fault.text, "advice": fault.advice}
