"""A reader of command lines: the programs they run, with their words, without quotes and operators.

It follows the grammar of POSIX and bash as far as possible without running anything: quotes, here-documents, pipes and
lists, groups, functions, substitutions, variables set in the same line, and programs that run others (`sudo`, `xargs`,
`find -exec`, `sh -c`...). https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise, takewhile

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish", "rbash"})
_MAX_LENGTH = 200_000
"""Characters of a line, and of the values of its variables."""
_MAX_DEPTH, _MAX_WRAPPERS, _MAX_COMMANDS = 40, 12, 2000
_MAX_WORDS = 20_000
"""Words of all wrapped commands of a line together."""
_MAX_CHOICES = 100

_RESERVED = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "coproc", "[[", "]]",
})  # fmt: skip
_REDIRECT = re.compile(r"(?:\d*|\{\w+\})(<<<|<<-|<<|<>|<&|>>|>\||>&|&>>|&>|<(?!\()|>(?!\())")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_NO_ARGUMENTS = re.compile(r"\(\s*\)")
_PIECE = re.compile(
    r"(?P<plain>[^ \t\n;&|()<>\\'\"$`]+)|\\(?:\n|(?P<escaped>.?))|'(?P<single>[^']*)(?P<end>'?)"
    r"|\$'(?P<ansi>(?:[^\\']|\\.)*)(?P<ansi_end>'?)|\$?(?P<double>\")|(?P<expansion>(?=[$`]))|[<>](?P<process>(?=\())",
    re.DOTALL,
)
"""A piece of an unquoted word."""
_QUOTED_PIECE = re.compile(
    r"(?P<plain>[^\"\\$`]+|\\(?![$`\"\\\n]))|\\(?:\n|(?P<escaped>.))|(?P<expansion>(?=[$`]))", re.DOTALL
)
_VARIABLE = re.compile(r"\$(\w+|[@*#?$!-])")
_NAMES = re.compile(r"(?<![\w$])[A-Za-z_]|\$")
_COMPUTED = re.compile(r"@[A-Za-z]\Z|\[(?![\d@*]+\])|\A\w+:(?![-=+?])")
"""Parameter expansions whose value is run, or evaluated as arithmetic."""
_CASE = re.compile(r"\bcase\b")
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_SUBSTITUTION = re.compile(r"(?<!\\)(?:`|\$\((?!\())")
_BRACKETS = re.compile(r"\\.|'[^']*'?|\"(?:\\.|[^\"\\])*\"?|[(){}]", re.DOTALL)
_BRACES = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")


@dataclass(slots=True)
class Redirect:
    """A redirection. A here-document becomes a `<<<` of its text when the reader reaches that."""

    operator: str
    target: str

    @property
    def writes(self) -> bool:
        """Whether it writes to a file."""
        plain = not (self.operator == ">&" and (self.target.isdigit() or self.target == "-"))
        return ">" in self.operator and plain


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its unquoted words, the first being its name."""

    argv: tuple[str, ...]
    redirects: tuple[Redirect, ...] = ()
    fed_by: tuple["Command", ...] = ()
    """The commands before it in its pipe, the nearest last."""
    inside: str = ""
    """The function whose body contains it."""
    background: bool = False
    substituted: tuple["Command", ...] = ()
    """The commands whose output becomes part of its words."""

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.argv[0].rpartition("/")[2] if self.argv else ""

    @property
    def plain_name(self) -> str:
        """`python` for `python3.11`."""
        name = self.name.removesuffix(".exe")
        return name.rstrip("0123456789.") or name

    @property
    def operands(self) -> list[str]:
        """The words that are not options."""
        before = [*takewhile(lambda word: word != "--", self.argv[1:])]
        return [word for word in before if not word.startswith("-") or word == "-"] + [*self.argv[len(before) + 2 :]]

    def values(self, *names: str) -> list[str]:
        """The values of these options: the next word, or the rest of the same one."""
        values = [value for name, value in pairwise(self.argv) if name in names]
        for word in self.argv[1:]:
            name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
            if equals and name in names:
                values.append(value)
        return values


UNREAD = Command(("[not read]",))
"""Stands for the commands after a limit: the line has too many, or nests them too deeply."""


@dataclass
class CommandLine:
    """All commands of a line as written, nested ones included, in source order."""

    commands: list[Command] = field(default_factory=list)
    whole: bool = True
    """Whether everything was understood; an open quote, for example, is not."""
    sets: bool = False
    """Whether it sets variables: `PATH` and others decide which program a harmless name runs."""
    expanded: int = 0
    """Characters from variables."""
    cut: bool = False
    """Whether a limit was reached; then the rest is not read."""

    @cached_property
    def programs(self) -> list[Command]:
        """Each command, followed by those it runs. At a limit of count or depth the last is UNREAD."""
        programs: list[Command] = []
        words, waiting = 0, [iter(self.commands)]
        while waiting:
            command = next(waiting[-1], None)
            if command is None:
                waiting.pop()
                continue
            words += len(command.argv) if len(waiting) > 1 else 0
            too_many = len(programs) == _MAX_COMMANDS or words > _MAX_WORDS or len(waiting) > _MAX_WRAPPERS + 1
            if command is UNREAD or too_many:
                return [*programs, UNREAD]
            programs.append(command)
            waiting.append(_run_by(command))
        return programs


def read_line(text: str, variables: Mapping[str, str] | None = None) -> CommandLine:
    """Read a line; leave the result unchanged. Never raises: what cannot be understood is left out, and `whole` is
    false. At a limit of size or depth reading ends, and the last command is UNREAD.
    """
    return _read(text, tuple((variables or {}).items()))


@lru_cache(maxsize=8)
def _read(text: str, variables: tuple[tuple[str, str], ...]) -> CommandLine:
    """Cached, since several checks of one call read the same line."""
    line = CommandLine(cut=len(text) > _MAX_LENGTH)
    _Reader(text[:_MAX_LENGTH], {"IFS": " ", **dict(variables)}, line, 0).read()
    if line.cut:
        line.commands = [*line.commands[:_MAX_COMMANDS], UNREAD]
        line.whole = False
    return line


class _Reader:
    """Reads one text from left to right. Nested texts get a reader of their own, one level deeper."""

    def __init__(self, text: str, variables: dict[str, str], line: CommandLine, depth: int, function: str = "") -> None:
        self._text = text
        self._at = 0
        self._variables = variables
        self._line = line
        self._depth = depth
        self._function = function
        self._documents: list[tuple[Redirect, bool]] = []
        """Here-documents whose text follows the line, and whether it is literal."""
        self._pipe: list[Command] = []
        # of the current command:
        self._words: list[str] = []
        self._redirects: list[Redirect] = []
        self._inner: list[Command] = []

    def read(self) -> None:
        if self._depth > _MAX_DEPTH:
            self._line.cut = True
            return
        while self._at < len(self._text) and not self._line.cut:
            char = self._text[self._at]
            if char in " \t" or self._text.startswith("\\\n", self._at):
                self._at += 1 if char != "\\" else 2
            elif char == "#":
                self._at = _end_of(self._text, "\n", self._at)
            elif char == "\n":
                self._end()
                self._at += 1
                self._read_documents()
            elif redirect := _REDIRECT.match(self._text, self._at):
                self._read_redirect(redirect)
            elif char in ";&|()":
                self._read_operator(char)
            else:
                self._read_command_word()
        self._end()

    def _end(self, *, pipes: bool = False, background: bool = False) -> None:
        """End the current command, if there is one."""
        if self._words or self._redirects:
            command = Command(
                tuple(self._words), tuple(self._redirects), tuple(self._pipe), self._function, background,
                tuple(self._inner),
            )  # fmt: skip
            self._line.commands.append(command)
            self._line.cut = self._line.cut or len(self._line.commands) > _MAX_COMMANDS
            self._pipe.append(command)
        if not pipes:
            self._pipe = []
        self._words, self._redirects, self._inner = [], [], []

    def _read_operator(self, char: str) -> None:
        two = self._text[self._at : self._at + 2]
        if char == "(" and len(self._words) == 1 and _NO_ARGUMENTS.match(self._text, self._at):
            self._function = self._words.pop()  # what follows is its body
            self._at = _end_of(self._text, ")", self._at) + 1
        elif two == "((" and not self._words:
            self._read_arithmetic()
        else:
            self._end(pipes=char == "|" and two != "||", background=char == "&" and two != "&&")
            self._at += 2 if two in ("&&", "||", ";;", "|&") else 1

    def _read_redirect(self, match: re.Match[str]) -> None:
        self._at = match.end()
        self._skip_spaces()
        quoted = self._text[self._at : self._at + 1] in ("'", '"', "\\")
        redirect = Redirect(match[1], next(iter(self._next_word()), ""))
        if match[1] in ("<<", "<<-"):
            self._documents.append((redirect, quoted))
        self._redirects.append(redirect)

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
                self._read_inside(redirect.target)
        self._inner = []

    def _read_command_word(self) -> None:
        start = self._at
        words = self._word()
        raw = self._text[start : self._at]
        if self._words or len(words) != 1:
            self._words += words
        elif raw in ("for", "select", "case"):
            self._read_header()
        elif raw == "function":
            self._function = "".join(self._next_word())
        elif _ASSIGNS.match(raw):
            name, _, value = words[0].partition("=")
            self._variables[name.rstrip("+")] = value
            self._line.sets = True
        elif raw not in _RESERVED or raw != words[0]:
            self._words += words

    def _read_header(self) -> None:
        """`for x in words`, `case word in`: the words are no command. The variable gets the first value."""
        self._line.sets = True
        name, values = "".join(self._next_word()), list[str]()
        self._skip_spaces()
        if self._text.startswith("in", self._at):
            self._at += 2
            while value := self._next_word():
                values += value
        if values:
            self._variables[name] = values[0]

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _next_word(self) -> list[str]:
        """The next word, as `_word`; nothing if an operator or the end of the line comes first."""
        self._skip_spaces()
        start = self._at
        words = self._word()
        return words if self._at > start else []

    def _word(self) -> list[str]:
        """The word here, unquoted; several if braces or an unquoted variable expand to several."""
        fields: list[str] = [""]
        braces = False
        while piece := _PIECE.match(self._text, self._at):
            self._at = piece.end()
            kind, value = piece.lastgroup, ""
            if kind == "plain":
                value = piece[0]
                braces = braces or "{" in value
            elif kind == "escaped":
                value = piece["escaped"]
            elif kind == "end":
                self._note_end(piece["end"])
                value = piece["single"]
            elif kind == "ansi_end":
                self._note_end(piece["ansi_end"])
                value = _ANSI.sub(_unescape, piece["ansi"])
            elif kind == "double":
                value = self._double_quoted()
            elif kind == "process":
                value = self._bracketed()
            elif kind == "expansion":
                expanded = self._expansion()
                known = not expanded.startswith("$")
                value, *more = re.split(r"\s+", expanded) if known else [expanded]
                fields[-1] += value
                fields += more
                continue
            fields[-1] += value
        words = [word for part in fields for word in (_in_braces(part) if braces else [part])]
        return [word for word in words if word or len(fields) == 1]

    def _double_quoted(self) -> str:
        parts = []
        while piece := _QUOTED_PIECE.match(self._text, self._at):
            self._at = piece.end()
            is_expansion = piece["expansion"] is not None
            parts.append(self._expansion() if is_expansion else piece["plain"] or piece["escaped"] or "")
        self._note_end(self._text[self._at : self._at + 1])
        self._at += 1
        return "".join(parts)

    def _note_end(self, quote: str) -> None:
        """Without its closing quote, a line is not understood."""
        self._line.whole = self._line.whole and bool(quote)

    def _expansion(self) -> str:
        """The value of `$...` or backticks, if it is known; otherwise its source."""
        text, start = self._text, self._at
        if text[start] == "`":
            end = _end_of(text, "`", start + 1)
            self._note_end(text[end : end + 1])
            self._at = end + 1
            return self._substitute(text[start + 1 : end])
        if text.startswith("$(", start):
            self._at += 1
            if not text.startswith("$((", start):
                return self._bracketed()
            self._read_arithmetic()
            return text[start : self._at]
        if text.startswith("${", start):
            self._at = _behind_bracket(text, start + 1, "{", "}")
            return self._parameter(text[start + 2 : self._at - 1])
        match = _VARIABLE.match(text, start)
        self._at = match.end() if match else start + 1
        if match and match[1] in self._variables:
            return self._value(match[1])
        return text[start : self._at]

    def _read_arithmetic(self) -> None:
        """Skip arithmetic. A name in it may hold a text that is evaluated in turn, and runs commands."""
        start = self._at
        self._at = _behind_bracket(self._text, start, "(", ")")
        inner = self._text[start : self._at]
        self._read_inside(inner)
        self._line.whole = self._line.whole and _NAMES.search(inner) is None

    def _parameter(self, inner: str) -> str:
        name = re.match(r"\w+", inner)
        self._line.whole = self._line.whole and _COMPUTED.search(inner) is None
        self._read_inside(inner)
        if name is not None and name[0] in self._variables:
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

    def _bracketed(self) -> str:
        start = self._at
        self._at = _behind_bracket(self._text, self._at, "(", ")")
        inner = self._text[start + 1 : self._at - 1]
        self._line.whole = self._line.whole and _CASE.search(inner) is None  # brackets of `case` are not balanced
        return self._substitute(inner)

    def _substitute(self, inner: str) -> str:
        """Read commands inside a word and return their output: known for an echo, otherwise their source."""
        before = len(self._line.commands)
        _Reader(inner, self._variables, self._line, self._depth + 1, self._function).read()
        commands = self._line.commands[before:]
        self._inner += commands
        if len(commands) == 1 and not commands[0].redirects and (output := _echoed(commands[0])) is not None:
            return output
        return f"$({inner})"

    def _read_inside(self, text: str) -> None:
        """Read the substitutions inside a text that is otherwise not commands."""
        at = 0
        while match := _SUBSTITUTION.search(text, at):
            start = match.end()
            if match[0] == "`":
                end = _end_of(text, "`", start)
                at = end + 1
            else:
                at = _behind_bracket(text, start - 1, "(", ")")
                end = at - 1
            self._substitute(text[start:end])


def _end_of(text: str, char: str, at: int) -> int:
    """The offset of the next such character; the end of the text if there is none."""
    offset = text.find(char, at)
    return len(text) if offset < 0 else offset


def _behind_bracket(text: str, at: int, opening: str, closing: str) -> int:
    """The offset after the bracket that closes the one at `at`, ignoring quoted ones."""
    depth = 0
    for token in _BRACKETS.finditer(text, at):
        depth += (token[0] == opening) - (token[0] == closing)
        if token[0] == closing and depth == 0:
            return token.end()
    return len(text) + 1


def _in_braces(word: str) -> list[str]:
    """Expand `{a,b}` to two words. Sequences and unclosed braces stay; at most about a hundred words come back."""
    words = [word]
    for at in range(_MAX_CHOICES):
        while at < len(words) < _MAX_CHOICES and (match := _BRACES.search(words[at])) is not None:
            start, end = words[at][: match.start()], words[at][match.end() :]
            words[at : at + 1] = [start + choice + end for choice in match[1].split(",")]
    return words


def _unescape(match: re.Match[str]) -> str:
    """The character that an escape of `$'...'` stands for."""
    digits = match[1] or match[2] or match[3]
    if not digits and not match[4]:
        return _ESCAPES.get(match[5], match[5])
    code = int(digits, 16) if digits else int(match[4], 8)
    return chr(code) if code < 0x110000 else ""


def _echoed(command: Command | None) -> str | None:
    """What a command prints, if it is an echo."""
    if command is None or command.name not in ("echo", "printf"):
        return None
    return " ".join(word for word in command.argv[1:] if word not in ("-n", "-e"))


_WRAPPERS: dict[str, frozenset[str]] = {
    name: frozenset(taking.split())
    for name, taking in {
        "sudo": "-u -g -h -p -C -T -r -t -U -D -R --user --group --host --prompt --chdir --chroot",
        "doas": "-u -C",
        "env": "-u -C --unset --chdir",
        "nice": "-n --adjustment",
        "ionice": "-c -n -p --class --classdata",
        "timeout": "-s -k --signal --kill-after",
        "stdbuf": "-i -o -e --input --output --error",
        "xargs": "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines",
        "time": "-o -f --output --format",
        "watch": "-n --interval",
        "chrt": "-T -P -D",
        "setpriv": "--reuid --regid --groups --inh-caps --ambient-caps --bounding-set",
        "flock": "-w -E --timeout",
        "unshare": "-S -G --setuid --setgid --root --wd",
        "strace": "-o -e -p -s",
        **dict.fromkeys(
            ("nohup", "setsid", "exec", "command", "builtin", "busybox", "toybox", "caffeinate", "fakeroot", "chronic",
             "unbuffer", "systemd-run", "torsocks", "ltrace", "parallel", "chroot", "taskset"), ""),
    }.items()
}  # fmt: skip
"""Programs that run their first operand, with those of their options that take a value."""
_TAKES_OPERAND = frozenset({"timeout", "chroot", "taskset", "chrt", "flock"})
"""Their first operand is a time, a folder, a mask or a lock; the second is the program."""
_SPLITS = frozenset({"-S", "--split-string"})
"""With these, `env` runs a command line."""
_FILTERS = (
    "-name", "-iname", "-path", "-regex", "-empty", "-newer", "-mtime", "-mmin", "-size", "-user", "-perm", "-mindepth",
)  # fmt: skip


def _run_by(command: Command) -> Iterator[Command]:
    """The commands that this one runs itself."""
    name, words = command.name, command.argv[1:]
    if name == "find":
        yield from _run_by_find(command)
    elif name in _WRAPPERS and not (name == "watch" or (name == "env" and _SPLITS & set(words[:-1]))):
        if rest := _wrapped_words(command):
            wrapped = replace(command, argv=rest)
            yield replace(wrapped, argv=(*rest, *_input_words(command)), fed_by=()) if name == "xargs" else wrapped
    else:
        for text in _run_texts(command):
            yield from read_line(text).commands


def _run_texts(command: Command) -> list[str]:
    """The texts that a command runs as command lines."""
    name, words = command.name, command.argv[1:]
    if name == "eval":
        return [" ".join(words)]
    if name == "trap":
        return [*words[:1]] if len(words) > 1 else []
    if name in ("su", "script"):
        return command.values("-c", "--command")
    if name == "env" and not _SPLITS.isdisjoint(words):
        before = [*takewhile(lambda word: word not in _SPLITS, words)]
        return [" ".join(words[len(before) + 1 :])]
    if name == "watch":
        return [" ".join(_wrapped_words(command))]
    if name not in SHELLS:
        return []
    if texts := [text for option, text in pairwise(words) if re.fullmatch(r"-(?!-).*c", option, re.DOTALL)][:1]:
        return texts
    feeder = command.fed_by[-1] if command.fed_by else None
    fed_by_cat = feeder.redirects if feeder is not None and feeder.name == "cat" else ()
    texts = [redirect.target for redirect in (*command.redirects, *fed_by_cat) if redirect.operator == "<<<"]
    return texts if (echoed := _echoed(feeder)) is None else [*texts, echoed]


def _wrapped_words(command: Command) -> tuple[str, ...]:
    """The words after the wrapper's own."""
    at, takes_operand = 1, command.name in _TAKES_OPERAND
    while at < len(command.argv):
        word = command.argv[at]
        if word == "--":
            return command.argv[at + 1 :]
        if word in _WRAPPERS[command.name]:
            at += 1  # its value follows
        elif not word.startswith("-") and not ("=" in word and command.name in ("env", "sudo", "doas")):
            if not takes_operand:
                break
            takes_operand = False
        at += 1
    return command.argv[at:]


def _input_words(xargs: Command) -> tuple[str, ...]:
    """The words that xargs reads, if they are known."""
    feeder = xargs.fed_by[-1] if xargs.fed_by else None
    if feeder is not None and feeder.name == "find":
        return _searched_folders(feeder)
    if _echoed(feeder) is not None and feeder is not None:
        return feeder.argv[1:]
    return ("$(input)",)


def _searched_folders(find: Command) -> tuple[str, ...]:
    return tuple(takewhile(lambda word: not word.startswith(("-", "(", "!")), find.argv[1:])) or (".",)


def _run_by_find(command: Command) -> Iterator[Command]:
    """`-exec` runs a program with the files found, `-delete` removes them. Unfiltered, its folders stand for them."""
    words = command.argv
    found = ("$(found)",) if any(word.startswith(_FILTERS) for word in words) else _searched_folders(command)
    for index, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            run = takewhile(lambda word: word not in (";", "+"), words[index + 1 :])
            argv = (word for part in run for word in (found if part == "{}" else (part,)))
            yield replace(command, argv=tuple(islice(argv, _MAX_WORDS + 1)))
        elif word == "-delete":
            yield replace(command, argv=("rm", "-rf", *found))
