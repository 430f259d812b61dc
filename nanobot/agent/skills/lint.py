"""Checks a skill: its format, as on https://agentskills.io/specification with the fields of OpenClaw and nanobot, and
what a person should look at before trusting it.

The check for risks finds what hides; it does not prove that the rest is harmless. Skills run in the sandbox anyway.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator

from nanobot.agent.skills.manual import (
    INSTALLERS,
    SYSTEMS,
    LintFinding,
    Manual,
    ManualError,
    body,
    decode_manual,
    line_of,
    parse_manual,
)
from nanobot.agent.skills.package import Bundle, BundledFile

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
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|/|~|<|\$", re.IGNORECASE)
"""How a link to something outside of the skill's folder begins."""


def name_problem(name: str) -> str:
    """Return why this is not a valid skill name; empty if it is."""
    if not re.fullmatch(r"[^\W_]+(-[^\W_]+)*", name) or name != name.lower() or len(name) > 64:
        return "is not 1 to 64 lowercase letters, digits and single hyphens"
    mixes_scripts = re.search("[a-z]", name) and not name.isascii()
    if mixes_scripts or unicodedata.normalize("NFKC", name) != name:
        return "mixes several scripts and may look like another name"
    return ""


def lint_skill(
    bundle: Bundle, *, checks_folder_name: bool = True, others: Collection[str] | None = None, with_risks: bool = True
) -> list[LintFinding]:
    """Return what is wrong with the format, by line, then the risks.

    `checks_folder_name`: the name must be that of the folder. `others`: the names of the installed skills.
    """
    try:
        text = decode_manual(bundle.manual)
        manual = parse_manual(text, finds_unknown=True)
    except ManualError as error:
        advice = "Save it as UTF-8 text; quote values with `: `, `#`, `[` or `{`; indent with spaces."
        return [LintFinding(f"{error}. {advice}", error.line)]
    if not manual.yaml or not manual.yaml.strip():
        is_open = text.startswith("---") and "\n---" not in text
        fault = "The front matter is not closed." if is_open else "There is no front matter."
        return [LintFinding(f"{fault} Write a line `---`, `name: ...`, `description: ...`, and a line `---`.", 1)]
    folder = bundle.name if checks_folder_name else ""
    findings = [*manual.findings, *_field_findings(manual, manual.yaml, folder), *_body_findings(bundle, text, manual)]
    for needed in manual.skills if others is not None else ():
        if needed not in {*(others or ()), bundle.name}:
            line = line_of(manual.yaml, ["skills" if "skills" in manual.yaml else "depends"])
            advice = f"It needs the skill {needed}, which is not installed. Install that one too."
            findings.append(LintFinding(advice, line, is_error=False))
    findings.sort(key=lambda finding: finding.line)
    return findings + (find_risks(bundle) if with_risks else [])


def _field_findings(manual: Manual, yaml: str, folder: str) -> Iterator[LintFinding]:
    """Check what the types of the fields leave open."""
    fields = [match[1] for match in _FIELD.finditer(yaml)]
    for key in sorted({key for key in fields if fields.count(key) > 1}):
        yield LintFinding(f"{key} appears twice. Remove one.", line_of(yaml, (key, key)))
    line = line_of(yaml, ["name"])
    if manual.name and (problem := name_problem(manual.name)):
        yield LintFinding(f"name {problem}.", line)
    elif folder and manual.name not in ("", folder):
        text = f"name is {manual.name}, but the folder is named {folder}. Use one name; nanobot uses the folder's."
        yield LintFinding(text, line)
    if manual.description.isascii() and 0 < len(manual.description.split()) < 3:
        text = "description is too short. Say what it does and when to use it, as a user would."
        yield LintFinding(text, line_of(yaml, ["description"]), is_error=False)
    for system in manual.systems:
        if system not in _KNOWN_SYSTEMS:
            text = f"os has the unknown system {system}. Use linux, darwin or win32."
            yield LintFinding(text, line_of(yaml, ["metadata", "os"]), is_error=False)
    line = line_of(yaml, ["metadata", "install"])
    for number, entry in enumerate(manual.install, 1):
        kind = str(entry.get("kind") or "")
        if kind and kind not in INSTALLERS:
            text = f"Entry {number} of install has the unknown kind {kind}. Known are {', '.join(INSTALLERS)}."
            yield LintFinding(text, line, is_error=False)
        elif kind and not any(entry.get(key) for key in INSTALLERS[kind].keys):
            yield LintFinding(f"Entry {number} of install names no package. Add {INSTALLERS[kind].keys[0]}.", line)


def _body_findings(bundle: Bundle, text: str, manual: Manual) -> Iterator[LintFinding]:
    message, lines = body(text), text.split("\n")
    if not message:
        yield LintFinding("There is no text after the front matter. Describe how it is done.", len(lines))
    if len(lines) > _MAX_LINES:
        too_long = f"It has {len(lines)} lines, which are all read at once. Move details into references/."
        yield LintFinding(too_long, is_error=False)
    if manual.always and len(message) > _MAX_ALWAYS_CHARS:
        too_long = f"It is in every prompt, with {len(message)} characters. Shorten it, or remove always."
        yield LintFinding(too_long, is_error=False)
    first = str(manual.yaml).count("\n") + 3
    named: set[str] = set()
    for number, line in enumerate(lines[first - 1 :], first):
        for match in _LINK.finditer(line):
            target = match[1] or match[2] or match[3]
            path = target.partition("#")[0].removeprefix("./").removeprefix("{baseDir}/")
            if not path or path.endswith("/") or "..." in path or path in named or _ELSEWHERE.match(path):
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
