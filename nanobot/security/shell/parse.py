"""A parser for command lines: the programs with their words, without quotes and operators.

It follows the grammar of POSIX and bash as far as possible without running anything: quotes, here-documents, pipes and
lists, groups, functions, substitutions, and variables set in the same line.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_MAX_DEPTH = 40
_MAX_LENGTH = 200_000
"""Characters of a line, and of the values of its variables."""
MOST_COMMANDS = 2000
_MAX_DOCUMENTS = 100
_RESERVED = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "coproc", "[[", "]]",
})  # fmt: skip
_REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<>|<&|>>|>\||>&|&>>|&>|<|>)")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_NO_ARGUMENTS = re.compile(r"\(\s*\)")
_PLAIN = re.compile(r"[^\s;&|()<>\\'\"$`{]+|\{|\s")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_VARIABLE = re.compile(r"\$(\w+|[@*#?$!-])")
_NAMES = re.compile(r"(?<![\w$])[A-Za-z_]|\$")
_COMPUTED = re.compile(r"@[A-Za-z]\Z|\[(?![\d@*]+\])|\A\w+:(?![-=+?])")
"""Parameter expansions whose value is run, or evaluated as arithmetic."""
_CASE = re.compile(r"\bcase\b")
_END = frozenset(" \t\n;&|()<>")
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"[^\\']+|\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SUBSTITUTION = re.compile(r"(?<!\\)(?:`|\$\((?!\())")
_BRACES = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")
_MAX_WORDS = 100


@dataclass(slots=True)
class Redirect:
    """A redirection. A here-document becomes a `<<<` of its text when the parser reaches that."""

    operator: str
    target: str

    @property
    def writes(self) -> bool:
        """Whether it writes to a file."""
        plain = not (self.operator == ">&" and (self.target.isdigit() or self.target == "-"))
        return ">" in self.operator and plain


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A program with its unquoted words, the first being its name. `text` is its source in the line."""

    argv: tuple[str, ...]
    redirects: tuple[Redirect, ...] = ()
    text: str = ""
    fed_by: tuple["ParsedCommand", ...] = ()
    """The commands before it in its pipe, the nearest last."""
    inside: str = ""
    """The function whose body contains it."""
    background: bool = False
    substituted: tuple["ParsedCommand", ...] = ()
    """The commands whose output becomes part of its words."""

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.argv[0].rpartition("/")[2] if self.argv else ""


UNREAD = ParsedCommand(("[not read]",))
"""Stands for the commands after a limit: the line has too many, or nests them too deeply."""


@dataclass(slots=True)
class ParsedLine:
    """All commands of a line, nested ones included, in source order."""

    commands: list[ParsedCommand] = field(default_factory=list)
    whole: bool = True
    """Whether everything was understood; an open quote, for example, is not."""
    sets: bool = False
    """Whether it sets variables: `PATH` and others decide which program a harmless name runs."""
    expanded: int = 0
    """Characters from variables."""
    cut: bool = False
    """Whether a limit was reached; then the rest is not parsed."""


def read_line(text: str, variables: Mapping[str, str] | None = None) -> ParsedLine:
    """Parse a line; leave the result unchanged. Never raises: what cannot be understood is left out, and `whole` is
    false. At a limit of size or depth parsing ends, and the last command is UNREAD.
    """
    return _read(text, tuple((variables or {}).items()))


@lru_cache(maxsize=8)
def _read(text: str, variables: tuple[tuple[str, str], ...]) -> ParsedLine:
    """Cached, since several checks of one call parse the same line."""
    line = ParsedLine(cut=len(text) > _MAX_LENGTH)
    _Parser(text[:_MAX_LENGTH], {"IFS": " ", **dict(variables)}, line, 0).read()
    if line.cut:
        line.commands = [*line.commands[:MOST_COMMANDS], UNREAD]
        line.whole = False
    return line


class _Parser:
    """Parses one text from left to right. Nested texts get a parser of their own, one level deeper."""

    def __init__(self, text: str, variables: dict[str, str], line: ParsedLine, depth: int, function: str = "") -> None:
        self._text = text
        self._at = 0
        self._variables = variables
        self._line = line
        self._depth = depth
        self._function = function
        self._pipe: list[ParsedCommand] = []
        self._documents: list[tuple[Redirect, bool]] = []
        """Here-documents whose text follows the line, and whether it is literal."""
        self._words: list[str] = []
        self._redirects: list[Redirect] = []
        self._inner: list[ParsedCommand] = []
        self._start = 0

    def read(self) -> None:
        if self._depth > _MAX_DEPTH:
            self._line.cut = True
            return
        while self._at < len(self._text) and not self._line.cut:
            self._step()
        self._end()

    def _step(self) -> None:
        char = self._text[self._at]
        if char in " \t" or self._text.startswith("\\\n", self._at):
            self._at += 1 if char != "\\" else 2
        elif char == "#":
            self._at = _end_of(self._text, "\n", self._at)
        elif char == "\n":
            self._end()
            self._at += 1
            self._read_documents()
        elif (redirect := _REDIRECT.match(self._text, self._at)) and not self._is_process(redirect):
            self._read_redirect(redirect)
        elif char in ";&|()":
            self._read_operator(char)
        else:
            self._read_word()

    def _is_process(self, redirect: re.Match[str]) -> bool:
        return redirect[0] in "<>" and self._text.startswith("(", redirect.end())

    def _read_operator(self, char: str) -> None:
        two = self._text[self._at : self._at + 2]
        if char == "(" and len(self._words) == 1 and _NO_ARGUMENTS.match(self._text, self._at):
            self._function = self._words.pop()  # what follows is its body
            self._at = _end_of(self._text, ")", self._at) + 1
            return
        if char == "(" and two == "((" and not self._words:
            self._read_arithmetic()
            return
        pipes = char == "|" and two != "||"
        self._end(pipes=pipes, background=char == "&" and two != "&&")
        self._at += 2 if two in ("&&", "||", ";;", "|&") else 1

    def _read_redirect(self, match: re.Match[str]) -> None:
        self._at = match.end()
        operator = match[2]
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        quoted = self._text[self._at : self._at + 1] in ("'", '"', "\\")
        words = self._word() if self._at < len(self._text) and self._text[self._at] not in "\n;|()" else []
        redirect = Redirect(operator, words[0] if words else "")
        if operator in ("<<", "<<-"):
            self._documents.append((redirect, quoted))
            self._line.cut = self._line.cut or len(self._documents) > _MAX_DOCUMENTS
        self._redirects.append(redirect)

    def _read_word(self) -> None:
        if not self._words and not self._redirects:
            self._start = self._at
        start = self._at
        words = self._word()
        raw = self._text[start : self._at]
        if not self._words and len(words) == 1:
            if words[0] in _RESERVED and raw == words[0]:
                return
            if _ASSIGNS.match(raw):
                name, _, value = words[0].partition("=")
                self._variables[name.rstrip("+")] = value
                self._line.sets = True
                return
            if raw in ("for", "select", "case"):
                self._skip_header()
                return
            if raw == "function":
                self._skip_spaces()
                self._function = "".join(self._word())
                return
        self._words += words

    def _skip_header(self) -> None:
        """`for x in words`, `case word in`: the words are no command. The variable gets the first value."""
        self._line.sets = True
        self._skip_spaces()
        name = "".join(self._word())
        self._skip_spaces()
        if self._text.startswith("in", self._at):
            self._at += 2
            values: list[str] = []
            while self._at < len(self._text) and self._text[self._at] not in ";\n":
                before = self._at
                self._skip_spaces()
                if self._at < len(self._text) and self._text[self._at] not in ";\n)&|(":
                    values += self._word()
                if self._at == before:
                    break
            if values:
                self._variables[name] = values[0]

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _read_documents(self) -> None:
        documents, self._documents = self._documents, []
        for redirect, is_literal in documents:
            lines = []
            while self._at < len(self._text):
                end = _end_of(self._text, "\n", self._at)
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if redirect.operator == "<<-" else line) == redirect.target:
                    break
                lines.append(line)
            redirect.operator, redirect.target = "<<<", "\n".join(lines)
            if not is_literal:
                self._read_inner_of(redirect.target)
        self._inner = []

    def _end(self, *, pipes: bool = False, background: bool = False) -> None:
        """End the current command, if there is one."""
        if self._words or self._redirects:
            text = self._text[self._start : self._at].strip()
            command = ParsedCommand(
                tuple(self._words), tuple(self._redirects), text, tuple(self._pipe), self._function, background,
                tuple(self._inner),
            )  # fmt: skip
            self._line.commands.append(command)
            self._line.cut = self._line.cut or len(self._line.commands) > MOST_COMMANDS
            self._pipe.append(command)
        if not pipes:
            self._pipe = []
        self._words, self._redirects, self._inner = [], [], []

    def _word(self) -> list[str]:
        """The next word, unquoted; several if braces or an unquoted variable expand to several."""
        parts: list[str] = [""]
        braces = False
        while (self._at < len(self._text) and self._text[self._at] not in _END) or self._at_process():
            char = self._text[self._at]
            if char in "<>":
                self._at += 1
                parts[-1] += self._in_brackets()
            elif char == "\\":
                parts[-1] += self._text[self._at + 1 : self._at + 2].replace("\n", "")
                self._at += 2
            elif char == "'":
                end = self._quote_end("'")
                parts[-1] += self._text[self._at + 1 : end]
                self._at = end + 1
            elif char == '"':
                parts[-1] += self._double_quoted()
            elif self._text.startswith("$'", self._at):
                value, self._at = _ansi_quoted(self._text, self._at + 2)
                parts[-1] += value
            elif char in "$`":
                value = self._expansion()
                pieces = re.split(r"\s+", value) if not value.startswith("$") else [value]
                parts[-1] += pieces[0]
                parts += pieces[1:]
            else:
                braces = braces or char == "{"
                plain = _PLAIN.match(self._text, self._at)
                parts[-1] += plain[0] if plain else char
                self._at = plain.end() if plain else self._at + 1
        words = [word for part in parts for word in (_in_braces(part) if braces else [part])]
        return [word for word in words if word or len(parts) == 1]

    def _at_process(self) -> bool:
        return self._text[self._at : self._at + 2] in ("<(", ">(")

    def _quote_end(self, quote: str) -> int:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            self._line.whole = False
            return len(self._text)
        return end

    def _double_quoted(self) -> str:
        self._at += 1
        value = ""
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\":
                after = self._text[self._at + 1 : self._at + 2]
                value += "" if after == "\n" else after if after in '$`"\\' else char + after
                self._at += 2
            elif char in "$`":
                value += self._expansion()
            else:
                plain = _PLAIN_IN_QUOTES.match(self._text, self._at)
                value += plain[0] if plain else char
                self._at = plain.end() if plain else self._at + 1
        self._line.whole = self._line.whole and self._at < len(self._text)
        self._at += 1
        return value

    def _expansion(self) -> str:
        """The value of `$...` or backticks, if it is known; otherwise its source."""
        if self._text[self._at] == "`":
            end = self._quote_end("`")
            inner = self._text[self._at + 1 : end]
            self._at = end + 1
            return self._substitution(inner)
        after = self._text[self._at + 1 : self._at + 2]
        if self._text.startswith("$((", self._at):
            start = self._at
            self._at += 1
            self._read_arithmetic()
            return self._text[start : self._at]
        if after == "(":
            self._at += 1
            return self._in_brackets()
        if after == "{":
            start, end = self._at, _behind_bracket(self._text, self._at + 1, "{", "}")
            inner = self._text[start + 2 : end - 1]
            self._at = end
            return self._parameter(inner)
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            self._at += 1
            return "$"
        self._at = match.end()
        return self._value(match[1]) if match[1] in self._variables else match[0]

    def _read_arithmetic(self) -> None:
        """Skip arithmetic. A name in it may hold a text that is evaluated in turn, and runs commands."""
        start = self._at
        self._at = _behind_bracket(self._text, start, "(", ")")
        inner = self._text[start : self._at]
        self._read_inner_of(inner)
        self._line.whole = self._line.whole and _NAMES.search(inner) is None

    def _parameter(self, inner: str) -> str:
        name = re.match(r"\w+", inner)
        self._line.whole = self._line.whole and _COMPUTED.search(inner) is None
        self._read_inner_of(inner)
        if name is None:
            return f"${{{inner}}}"
        if name[0] in self._variables:
            return self._value(name[0])
        default = re.match(r"\w+:?[-=](.*)", inner, re.DOTALL)
        return default[1] if default else f"${{{inner}}}"

    def _value(self, name: str) -> str:
        value = self._variables[name]
        self._line.expanded += len(value)
        if self._line.expanded > _MAX_LENGTH:
            self._line.cut = True
            return ""
        return value

    def _in_brackets(self) -> str:
        start = self._at
        self._at = _behind_bracket(self._text, self._at, "(", ")")
        inner = self._text[start + 1 : self._at - 1]
        self._line.whole = self._line.whole and _CASE.search(inner) is None  # brackets of `case` are not balanced
        return self._substitution(inner)

    def _substitution(self, inner: str) -> str:
        """Parse commands inside a word and return their output: known for an echo, otherwise their source."""
        before = len(self._line.commands)
        _Parser(inner, self._variables, self._line, self._depth + 1, self._function).read()
        commands = self._line.commands[before:]
        self._inner += commands
        if len(commands) == 1 and commands[0].name in ("echo", "printf") and not commands[0].redirects:
            return " ".join(word for word in commands[0].argv[1:] if word not in ("-n", "-e"))
        return f"$({inner})"

    def _read_inner_of(self, text: str) -> None:
        """Parse the substitutions inside a text that is otherwise not commands."""
        at = 0
        while match := _SUBSTITUTION.search(text, at):
            start = match.end()
            if match[0] == "`":
                end = _end_of(text, "`", start)
                at = end + 1
            else:
                at = _behind_bracket(text, start - 1, "(", ")")
                end = at - 1
            self._substitution(text[start:end])


def _end_of(text: str, char: str, at: int) -> int:
    """The offset of the next such character; the end of the text if there is none."""
    offset = text.find(char, at)
    return len(text) if offset < 0 else offset


def _behind_bracket(text: str, at: int, opening: str, closing: str) -> int:
    """The offset after the bracket that closes the one at `at`, ignoring quoted ones."""
    depth, quote = 0, ""
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text) + 1


def _in_braces(word: str) -> list[str]:
    """Expand `{a,b}` to two words. Sequences and unclosed braces stay; at most about a hundred words come back."""
    words = [word]
    for at in range(_MAX_WORDS):
        if at >= len(words) or len(words) >= _MAX_WORDS:
            break
        while len(words) < _MAX_WORDS and (match := _BRACES.search(words[at])) is not None:
            start, end = words[at][: match.start()], words[at][match.end() :]
            words[at : at + 1] = [start + choice + end for choice in match[1].split(",")]
    return words


def _ansi_quoted(text: str, at: int) -> tuple[str, int]:
    """The value of `$'...'` from after its first quote, and the offset after it."""
    value = ""
    while at < len(text) and text[at] != "'":
        match = _ANSI.match(text, at)
        if match is None:
            at += 1
            continue
        hexa, octal = match[1] or match[2] or match[3], match[4]
        code = int(hexa, 16) if hexa else int(octal, 8) if octal else None
        if code is not None:
            value += chr(code) if code < 0x110000 else ""
        else:
            value += _ESCAPES.get(match[5], match[5]) if match[5] else match[0]
        at = match.end()
    return value, at + 1
