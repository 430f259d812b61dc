"""Checks a skill: its format, as on https://agentskills.io/specification with the fields of OpenClaw and nanobot, and
what a person should look at before trusting it.

An error keeps a skill from being found, read or trusted; a warning does not. The check for risks finds what hides; it
does not prove that the rest is harmless. Skills run in the sandbox anyway.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from nanobot.agent.skills.bundle import Bundle, BundledFile
from nanobot.agent.skills.manual import OUR_METADATA, SKILL_FILE, Manual, body, decode_manual, parse_manual, table
from nanobot.agent.skills.needs import INSTALLERS, SYSTEMS, SkillNeeds
from nanobot.config.problems import problems_in
from nanobot.utils.text import nearest

_MAX_LINES = 500
_MAX_ALWAYS_CHARS = 4_000
_KNOWN_SYSTEMS = frozenset({"linux", "darwin", "win32", *SYSTEMS})
_FIELD = re.compile(r"^([\w-]+):", re.MULTILINE)
_LINK = re.compile(
    r"\[[^\]\n]*\]\(([^)\s]+)[^)\n]*\)"
    r"|\{baseDir\}/([\w./-]+)"
    r"|(?<![\w/.:}-])((?:scripts|references|assets)/[\w./-]*\w\.\w+)"
)
"""A file named in the text: as a link, in the skill's folder, or in one of the usual folders."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    text: str
    line: int = 0
    """In SKILL.md unless `path` says otherwise; 0 for the whole file."""
    is_error: bool = True
    path: str = SKILL_FILE

    @property
    def summary(self) -> str:
        """The finding in one line, with its place."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        severity = "error" if self.is_error else "warning"
        return {"severity": severity, "file": self.path, "line": self.line, "text": self.text}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list)]


def _as_table(value: object) -> object:
    return table(value) or value


class _Fields(BaseModel):
    """Fields of the front matter. Others belong to other agents."""

    model_config = ConfigDict(extra="allow")


class _Requires(_Fields):
    bins: Names = []
    anyBins: Names = []  # noqa: N815 - as in the file
    env: Names = []
    config: Names = []
    sandbox: Names = []
    skills: Names = []


class _Ours(_Fields):
    """The table of `metadata` for agents like this one."""

    always: StrictBool = False
    os: Names = []
    requires: Annotated[_Requires, BeforeValidator(_as_table)] = _Requires()
    install: list[dict[str, Any]] = []
    skills: Names = []


class _Metadata(_Fields):
    nanobot: Annotated[_Ours, BeforeValidator(_as_table)] = _Ours()
    openclaw: Annotated[_Ours, BeforeValidator(_as_table)] = _Ours()


class _FrontMatter(_Fields):
    name: str
    description: str = Field(min_length=1, max_length=1024)
    license: str = ""
    homepage: str = ""
    compatibility: str = Field("any", min_length=1, max_length=500)
    allowed_tools: Names = Field([], alias="allowed-tools")
    always: StrictBool = False
    metadata: Annotated[_Metadata, BeforeValidator(_as_table)] = _Metadata()


def name_problem(name: str) -> str:
    """Return why this is not a valid skill name; empty if it is."""
    if not re.fullmatch(r"[^\W_]+(-[^\W_]+)*", name) or name != name.lower() or len(name) > 64:
        return "is not 1 to 64 lowercase letters, digits and single hyphens"
    mixes_scripts = re.search("[a-z]", name) and not name.isascii()
    if mixes_scripts or unicodedata.normalize("NFKC", name) != name:
        return "mixes several scripts and may look like another name"
    return ""


def lint_skill(
    bundle: Bundle, *, checks_folder_name: bool = True, with_risks: bool = True, others: Collection[str] | None = None
) -> list[LintFinding]:
    """Return all findings, by place in the file.

    `checks_folder_name`: the name must be that of the folder. `with_risks`: report risks as findings. `others`: the
    names of the installed skills.
    """
    text, problem = decode_manual(bundle.manual)
    if problem:
        return [LintFinding(f"{problem}. Save it as plain UTF-8 text, with details in other files of the folder.")]
    manual = parse_manual(text)
    if manual.problem:
        advice = "Quote text with `: `, `#`, `[` or `{`; indent with spaces, equally within a table."
        return [LintFinding(f"The {manual.problem}. {advice}", manual.problem_line)]
    if not manual.front:
        is_open = text.startswith("---") and "\n---" not in text
        fault = "The front matter is not closed." if is_open else "There is no front matter."
        return [LintFinding(f"{fault} Write a line `---`, `name: ...`, `description: ...`, and a line `---`.", 1)]
    findings = [
        *_front_findings(manual, bundle.name if checks_folder_name else ""),
        *_needed_findings(manual, bundle.name, others),
        *_body_findings(bundle, text, manual),
        *(find_risks(bundle) if with_risks else ()),
    ]
    return sorted(findings, key=lambda finding: (finding.path != SKILL_FILE, finding.path, finding.line))


def _front_findings(manual: Manual, folder: str) -> Iterator[LintFinding]:
    front, yaml = manual.front, manual.front_text

    def warning(text: str, *path: object) -> LintFinding:
        return LintFinding(text, _line_of(yaml, path), is_error=False)

    if manual.repaired:
        text = "This is not valid YAML; nanobot accepts it, other agents do not. Quote text with `: `."
        yield LintFinding(text, manual.problem_line, is_error=False)
    fields = [match[1] for match in _FIELD.finditer(yaml)]
    for key in dict.fromkeys(key for key in fields if fields.count(key) > 1):
        yield LintFinding(f"{key} appears twice. Remove one.", _line_of(yaml, (key, key)))
    try:
        _FrontMatter.model_validate(front)
    except ValidationError as error:
        for problem in problems_in(error, front):
            yield LintFinding(f"{problem}.", _line_of(yaml, problem.path))
    name, description = front.get("name"), front.get("description")
    if isinstance(name, str) and (problem_text := name_problem(name)):
        yield LintFinding(f"name {problem_text}.", _line_of(yaml, ("name",)))
    elif folder and isinstance(name, str) and name != folder:
        text = f"name is {name}, but the folder is named {folder}. Use one name; nanobot uses the folder's."
        yield LintFinding(text, _line_of(yaml, ("name",)))
    if isinstance(description, str) and description.isascii() and 0 < len(description.split()) < 3:
        yield warning("description is too short. Say what it does and when to use it, as a user would.", "description")
    for key in front.keys() - _FrontMatter.model_fields.keys() - {"allowed-tools"}:
        if similar := nearest(str(key), _FrontMatter.model_fields, 1, cutoff=0.75):
            yield warning(f"{key} is an unknown field. Did you mean {similar[0]}?", key)
    for agent in OUR_METADATA:
        yield from _our_findings(table(table(front.get("metadata")).get(agent)), ("metadata", agent), yaml)


def _our_findings(ours: Mapping[str, Any], path: tuple[str, str], yaml: str) -> Iterator[LintFinding]:
    def warning(text: str, *keys: object) -> LintFinding:
        return LintFinding(text, _line_of(yaml, (*path, *keys)), is_error=False)

    for key in ours.keys() - _Ours.model_fields.keys():
        if similar := nearest(str(key), _Ours.model_fields, 1, cutoff=0.75):
            yield warning(f"{key} in metadata is unknown. Did you mean {similar[0]}?", key)
    for key in table(ours.get("requires")).keys() - _Requires.model_fields.keys():
        known = ", ".join(_Requires.model_fields)
        yield warning(f"requires.{key} is unknown and not checked. Known are {known}.", "requires", key)
    systems = _as_list(ours.get("os"))
    for system in systems if isinstance(systems, list) else ():
        if str(system).lower() not in _KNOWN_SYSTEMS:
            yield warning(f"os has the unknown system {system}. Use linux, darwin or win32.", "os")
    entries = ours.get("install")
    for number, entry in enumerate(entries if isinstance(entries, list) else (), 1):
        kind = str(entry.get("kind")) if isinstance(entry, dict) else ""
        if kind and kind not in INSTALLERS:
            known = ", ".join(INSTALLERS)
            text = f"Entry {number} of install has the unknown kind {kind}. Known are {known}."
            yield warning(text, "install", number - 1)
        elif kind and not any(entry.get(key) for key in INSTALLERS[kind].keys):
            text = f"Entry {number} of install names no package. Add {INSTALLERS[kind].keys[0]}."
            yield LintFinding(text, _line_of(yaml, (*path, "install", number - 1)))


def _line_of(yaml: str, path: Sequence[object]) -> int:
    """Return the line of the field at this path of keys, as far as it is found; else 1."""
    end = 0
    for key in path:
        match = re.compile(rf"""(?<![\w-])["']?{re.escape(str(key))}["']?\s*:""").search(yaml, end)
        end = match.end() if match else end
    return yaml.count("\n", 0, end) + 2 if end else 1


def _needed_findings(manual: Manual, name: str, others: Collection[str] | None) -> Iterator[LintFinding]:
    field = next((key for key in ("skills", "depends-on", "depends") if key in manual.front_text), "metadata")
    line = _line_of(manual.front_text, (field,))
    for needed in SkillNeeds.of(manual).skills:
        if needed == name:
            yield LintFinding("It needs itself. Remove that.", line, is_error=False)
        elif others is not None and needed not in others:
            text = f"It needs the skill {needed}, which is not installed. Install that one too."
            yield LintFinding(text, line, is_error=False)


def _body_findings(bundle: Bundle, text: str, manual: Manual) -> Iterator[LintFinding]:
    message, count = body(text), text.count("\n") + 1
    if not message:
        yield LintFinding("There is no text after the front matter. Describe how it is done.", count)
    if count > _MAX_LINES:
        too_long = f"It has {count} lines, which are all read at once. Move details into references/."
        yield LintFinding(too_long, is_error=False)
    if manual.always and len(message) > _MAX_ALWAYS_CHARS:
        too_long = f"It is in every prompt, with {len(message)} characters. Shorten it, or remove always."
        yield LintFinding(too_long, is_error=False)
    first = manual.front_text.count("\n") + 3
    named: set[str] = set()
    for number, line in enumerate(text.split("\n")[first - 1 :], first):
        for match in _LINK.finditer(line):
            target = match[1] or match[2] or match[3]
            path = target.partition("#")[0].removeprefix("./").removeprefix("{baseDir}/")
            is_elsewhere = re.match(r"[a-z][a-z+.-]*:|/|~|<|\$", path, re.IGNORECASE)
            if not path or is_elsewhere or path.endswith("/") or "..." in path or path in named:
                continue
            named.add(path)
            if not any(f"{file.path}/".startswith(f"{path}/") for file in bundle.files):
                missing = f"It names {target}, which does not exist. Add the file, or correct the name."
                yield LintFinding(missing, number, is_error=False)


# --- risks

_PIPED = (
    r"\|\s*(?:sudo\s+)?(?:\S*/)?(?:env\s+)?(?:ba|z|da|k|c|fi)?sh\b"
    r"|\|\s*(?:sudo\s+)?(?:\S*/)?(?:python[\d.]*|perl|ruby|node|php|iex)\b"
)
_SEVERE = {
    "decodes hidden text and runs it": (
        rf"(?:base64|openssl\s+(?:enc|base64)|xxd\s+-r|uudecode)\b[^\n]*(?:{_PIPED})"
        r"|(?:eval|exec|iex|Invoke-Expression)\b[^\n]{0,80}(?:base64|b64decode|atob|FromBase64)"
    ),
    "runs an encoded command": r"(?:-enc|-EncodedCommand)\s+[A-Za-z0-9+/=]{40,}",
}
_NOTABLE = {
    "contains a long encoded text": r"(?<![A-Za-z0-9+/])(?=[A-Za-z+/]{0,99}[0-9])[A-Za-z0-9+/]{400,}={0,2}",
    "runs what it downloads without a check": rf"(?:curl|wget|Invoke-WebRequest|iwr)\b[^\n|]*(?:{_PIPED})",
    "names a file that holds keys": (
        r"(?<![\w/])(?:~|\$HOME)/\.(?:ssh|aws|gnupg|netrc|kube|docker|nanobot/config)|id_rsa|id_ed25519"
    ),
    "disables a protection of the system": (
        r"xattr\s+-\w*[dc]|spctl\s+--master-disable|Set-ExecutionPolicy|chmod\s+(?:-R\s+)?777|--no-sandbox"
    ),
    "tells the agent to hide something or ignore its rules": (
        r"ignore (?:all |any )?(?:the )?(?:previous|prior|above) instructions|do not tell the (?:user|owner)"
    ),
}
_PATTERNS = [
    (text, re.compile(pattern, re.IGNORECASE), patterns is _SEVERE)
    for patterns in (_SEVERE, _NOTABLE)
    for text, pattern in patterns.items()
]
"""What a line does, its pattern, and whether it must be seen before installing."""
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"7z\xbc\xaf", b"Rar!")
_JOINERS = frozenset("\u200d\ufe0f\ufe0e\u200c")
"""Invisible characters that are part of emoji and of some scripts."""
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+\.[A-Za-z]{2,}|\d+\.\d+\.\d+\.\d+|localhost)", re.IGNORECASE)
_EXAMPLE_HOST = re.compile(r"(?:^|\.)example(?:\.(?:com|org|net))?$|(?:^|\.)(?:test|invalid)$", re.IGNORECASE)
_MAX_RISKS = 50


def find_risks(bundle: Bundle) -> list[LintFinding]:
    """Return the risks, those first that nobody should install without a look: errors."""
    risks = [risk for file in bundle.files for risk in _scan_file(file)]
    return sorted(risks, key=lambda risk: (not risk.is_error, risk.path, risk.line))[:_MAX_RISKS]


def addresses_in(bundle: Bundle) -> list[str]:
    """Return the hosts named in its files."""
    texts = (file.data.decode("utf-8", "replace") for file in bundle.files if not file.is_binary)
    hosts = {match[1].lower() for text in texts for match in _ADDRESS.finditer(text)}
    return sorted(host for host in hosts if not _EXAMPLE_HOST.search(host))


def _scan_file(file: BundledFile) -> Iterator[LintFinding]:
    if file.is_unreadable:
        yield LintFinding("It is an executable that cannot be reviewed.", path=file.path)
    elif file.data.startswith(_ARCHIVES):
        yield LintFinding("It is an archive; its content was not checked.", is_error=False, path=file.path)
    elif file.is_binary and file.is_program:
        yield LintFinding("It has the name of a program but is not text.", path=file.path)
    elif not file.is_binary:
        text = file.data.decode("utf-8", "replace").removeprefix("\ufeff")
        for number, line in enumerate(text.splitlines(), 1):
            if hidden := _find_hidden(line):
                yield LintFinding(f"It contains invisible text ({hidden}).", number, path=file.path)
            for what, pattern, is_severe in _PATTERNS:
                if pattern.search(line[:5_000]):
                    yield LintFinding(f"It {what}.", number, is_severe, file.path)


def _find_hidden(line: str) -> str:
    """Return the first character that is invisible or changes the text direction; empty if none."""
    if line.isascii():
        return ""
    for index, character in enumerate(line):
        if unicodedata.category(character) != "Cf" and not "\U000e0100" <= character <= "\U000e01ef":
            continue
        previous = line[index - 1 : index]
        is_joining = character in _JOINERS and previous and not previous.isascii() and previous not in "\u200c\u200d"
        if not is_joining and character != "\u00ad":
            return f"U+{ord(character):04X}"
    return ""
