"""The line editor of the chat, with its history and paste handling; also the surface the chat's screen draws on.

One prompt-toolkit application shows live lines, the input and a bottom line. Permanent lines are written above it.
Erasing, writing and redrawing is one write, to avoid flicker.
"""

import asyncio
import base64
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, Completion, ThreadedCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER, SEARCH_BUFFER
from prompt_toolkit.filters import Condition, FilterOrBool, has_focus
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import HighlightIncrementalSearchProcessor, HighlightSelectionProcessor
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from nanobot.agent.events import ApprovalAsked
from nanobot.cli.chat.completion import can_complete
from nanobot.cli.chat.screen import BEGIN_UPDATE, END_UPDATE, Screen, max_live_rows
from nanobot.cli.output import repair_output, write_text
from nanobot.utils.files import PRIVATE_FILE, make_private_folder

MAX_HISTORY_CHARS = 50_000
"""Longer lines are not stored."""


class ChatHistory(FileHistory):
    """The prompt's history in a private file. Disk errors lose the history, never the chat."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            make_private_folder(path.parent)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE))
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        """The stored lines, newest first; none if the file cannot be read."""
        with suppress(OSError):
            return [*super().load_history_strings()]
        return []

    def store_string(self, string: str) -> None:
        if len(string) <= MAX_HISTORY_CHARS:
            with suppress(OSError):
                super().store_string(repair_output(string))


_LONG_LINES = 12
_LONG_CHARS = 2_000
_MARK = re.compile(r"\[pasted #(\d+), \d+ lines?\]")


class PasteStore:
    """Replaces long pastes by a short mark while a line is edited."""

    def __init__(self) -> None:
        self._pastes: list[str] = []

    def collapse(self, data: str) -> str:
        """The text to insert for a paste: itself, or a mark if it is long."""
        text = data.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        lines = text.count("\n") + 1
        if lines <= _LONG_LINES and len(text) <= _LONG_CHARS:
            return text
        self._pastes.append(text)
        return f"[pasted #{len(self._pastes)}, {lines} line{'s' if lines > 1 else ''}]"

    def expand(self, line: str) -> str:
        """Replace the marks in a line by the pasted texts."""
        texts = {str(number): text for number, text in enumerate(self._pastes, 1)}
        return _MARK.sub(lambda mark: texts.get(mark[1], mark[0]), line)


MENU_ROWS = 12
_COLOURS = {
    "prompt": "fg:ansigreen",
    "bottom": "fg:ansibrightblack",
    "asked": "fg:ansiyellow bold",
    "queued": "fg:ansibrightblack italic",
    "completion-menu": "noinherit",  # the terminal's own colours suit dark and light
    "completion-menu.completion": "noinherit fg:ansicyan",
    "completion-menu.completion.current": "noinherit reverse",
    "completion-menu.meta.completion": "noinherit fg:ansibrightblack",
    "completion-menu.meta.completion.current": "noinherit reverse",
    "scrollbar.background": "noinherit",
    "scrollbar.button": "noinherit reverse",
}
EXIT_CONFIRM_S = 2.0
_SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")

for _sequence in _SHIFT_ENTER:  # prompt-toolkit treats Shift+Enter as Enter
    ANSI_SEQUENCES[_sequence] = (Keys.Escape, Keys.ControlM)


class _OneWriteOutput(Vt100_Output):
    """Buffers output until an update of the screen is complete."""

    held = False

    @property
    def responds_to_cpr(self) -> bool:
        """Never query the cursor position: the prompt is right below the output, not at the end of the screen."""
        return False

    def flush(self) -> None:
        if not self.held:
            super().flush()

    def hold(self) -> None:
        if not self.held:
            self.held = True
            self.write_raw(BEGIN_UPDATE)

    def release(self) -> None:
        if self.held:
            self.held = False
            self.write_raw(END_UPDATE)
            super().flush()


class Chat(Protocol):
    """What the prompt shows and controls (`ChatSession`). Every method returns at once."""

    screen: Screen
    waiting: deque[str]
    """Lines that are queued."""
    question: ApprovalAsked | None
    """The open question; then the bottom line, which shows the choices, is highlighted."""

    def accept_line(self, line: str) -> bool:
        """Act on a line; False if it stays in the prompt for editing."""

    def stop(self) -> bool:
        """Stop the running turn; False if there is none."""

    def bottom_line(self) -> str:
        """The line below the input."""


class Prompt:
    """The input line of the chat, and the Surface of its screen."""

    def __init__(self, chat: Chat, completer: Completer, history_file: Path, *, colour: bool) -> None:
        self._chat = chat
        self._paste_store = PasteStore()
        self._live = ""
        self.is_suspended = False
        """Whether a program has the terminal."""
        self._exit_requested_s = 0.0
        self._stream = sys.stdout
        self._output = _output(self._stream)
        self._buffer = Buffer(
            name=DEFAULT_BUFFER,
            multiline=True,
            history=ChatHistory(history_file),
            completer=ThreadedCompleter(completer),
            complete_while_typing=Condition(lambda: can_complete(self._buffer.document.text_before_cursor)),
            enable_history_search=False,
            accept_handler=self._accept,
        )
        self._app: Application[None] = Application(
            layout=self._build_layout(),
            key_bindings=self._build_keys(),
            style=Style.from_dict(_COLOURS if colour else {}),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            output=self._output,
            erase_when_done=True,
            after_render=lambda _app: self._release(),
        )
        self._app.ttimeoutlen = 0.05
        self._app.timeoutlen = 0.1  # how long Esc waits to become Alt+key

    @property
    def columns(self) -> int:
        """Cells in a line minus one."""
        return max(self._output.get_size().columns - 1, 10)

    @property
    def live_rows(self) -> int:
        return max_live_rows(self._output.get_size().rows)

    def show(self, permanent: str, live: str) -> None:
        """Write permanent lines above the prompt and replace the live ones, in one write."""
        if not self._app.is_running:
            self._live = live
            if permanent:
                write_text(self._stream, permanent)
            return
        shrinks = live.count("\n") < self._live.count("\n") or bool(self._live and not live)
        changed = live != self._live
        self._live = live
        if permanent or shrinks:
            if isinstance(self._output, _OneWriteOutput):
                self._output.hold()
            self._app.renderer.erase()
            self._output.write_raw(permanent.replace("\n", "\r\n"))
        if permanent or changed:
            self._app.invalidate()

    def refresh(self) -> None:
        """Redraw: the bottom line or the queue has changed."""
        self.show("", self._live)
        if self._app.is_running:
            self._app.invalidate()

    def put_back(self, text: str) -> None:
        """Insert queued lines before the text being typed."""
        typed = self._buffer.text
        self._buffer.text = f"{text}\n{typed}" if typed else text
        self._buffer.cursor_position = len(self._buffer.text)

    def suggest(self, text: str) -> None:
        """Begin a line for the user, with its completions open; does nothing while one is being typed."""
        if self._buffer.text or self._app.context is None:
            return
        self._buffer.text = text
        self._buffer.cursor_position = len(text)
        self._app.context.run(self._buffer.start_completion, select_first=True)

    def copy(self, text: str) -> None:
        """Put the text on the clipboard of the terminal, also through ssh (OSC 52)."""
        encoded = base64.b64encode(text.encode(errors="replace")).decode()
        self._output.write_raw(f"\x1b]52;c;{encoded}\x07")
        self._output.flush()

    async def run(self) -> None:
        """Accept lines until the user exits."""
        try:
            await self._app.run_async()
        finally:
            self._release()

    async def run_on_terminal(self, command: str) -> int:
        """Give the terminal to a shell command until it ends; return its exit code. Raises OSError."""
        async with in_terminal():
            self.is_suspended = True
            process = None
            try:
                process = await asyncio.create_subprocess_shell(command)
                return await process.wait()
            except asyncio.CancelledError:
                if process is not None and process.returncode is None:
                    process.terminate()
                raise
            finally:
                self.is_suspended = False

    def ring(self) -> None:
        self._output.write_raw("\a")
        self._output.flush()

    def leave(self) -> None:
        """End `run`."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def _release(self) -> None:
        if isinstance(self._output, _OneWriteOutput):
            self._output.release()

    def _accept(self, buffer: Buffer) -> bool:
        full = self._paste_store.expand(buffer.text)
        if full != buffer.text:
            buffer.text = full  # the history keeps what was sent
        return not self._chat.accept_line(full)

    def _build_layout(self) -> Layout:
        search = SearchToolbar(Buffer(name=SEARCH_BUFFER), ignore_case=True)
        typing = BufferControl(
            self._buffer,
            search_buffer_control=search.control,
            input_processors=[HighlightIncrementalSearchProcessor(), HighlightSelectionProcessor()],
            include_default_input_processors=False,
            preview_search=True,
        )

        def lines(text: Callable[[], AnyFormattedText], is_shown: Callable[[], bool]) -> ConditionalContainer:
            window = Window(FormattedTextControl(text), dont_extend_height=True)
            return ConditionalContainer(window, Condition(is_shown))

        rows = HSplit(
            [
                lines(lambda: ANSI(self._live), lambda: bool(self._live)),
                lines(self._queued_lines, lambda: bool(self._chat.waiting)),
                Window(height=1),
                Window(
                    typing,
                    height=self._typing_height,
                    get_line_prefix=lambda line, wrap: [("class:prompt", "> " if line == 0 and wrap == 0 else "  ")],
                    wrap_lines=True,
                    dont_extend_height=True,
                ),
                search,
                lines(self._bottom_line, lambda: self._buffer.complete_state is None),
            ],
            align=VerticalAlign.TOP,
        )
        menu = Float(CompletionsMenu(max_height=MENU_ROWS, scroll_offset=1), xcursor=True, ycursor=True)
        return Layout(FloatContainer(rows, [menu]), focused_element=typing)

    def _typing_height(self) -> Dimension:
        rows = self._output.get_size().rows
        menu = min(MENU_ROWS, max(rows - 4, 1)) if self._buffer.complete_state else 1
        return Dimension(min=menu, max=max(menu, rows // 2))

    def _queued_lines(self) -> StyleAndTextTuples:
        width = self.columns - 10
        shown = [" ".join(line[:1000].split())[:width] for line in self._chat.waiting]
        return [("class:queued", "\n".join(f"queued: {line}" for line in shown))]

    def _bottom_line(self) -> StyleAndTextTuples:
        is_confirming = time.monotonic() - self._exit_requested_s < EXIT_CONFIRM_S
        text = "Ctrl+C again exits" if is_confirming and self._exit_requested_s else self._chat.bottom_line()
        return [("class:asked" if self._chat.question is not None else "class:bottom", text[: self.columns])]

    def _build_keys(self) -> KeyBindings:
        keys, typing = KeyBindings(), has_focus(DEFAULT_BUFFER)
        menu_open = Condition(lambda: self._buffer.complete_state is not None)
        is_empty = Condition(lambda: not self._buffer.text)
        actions: Sequence[tuple[str, FilterOrBool, Callable[[], object]]] = (
            ("enter", typing, self._send),
            ("tab", typing, self._complete),
            ("escape enter", typing, lambda: self._buffer.insert_text("\n")),
            ("escape", typing & ~menu_open, self._chat.stop),
            ("escape", typing & menu_open, self._buffer.cancel_completion),
            ("c-c", typing, self._on_interrupt),
            ("<sigint>", True, self._on_interrupt),
            ("c-d", typing & is_empty, self.leave),
            ("c-z", hasattr(signal, "SIGTSTP"), lambda: self._app.suspend_to_background()),  # noqa: PLW0108 made later
            ("c-o", typing, lambda: self._chat.screen.expand_last_call()),  # noqa: PLW0108 the screen is made later
            ("c-t", typing, lambda: self._chat.screen.toggle_reasoning()),  # noqa: PLW0108
            ("c-l", True, self._clear_screen),
        )
        for names, filter_, action in actions:
            keys.add(*names.split(), filter=filter_)(lambda _event, action=action: action())

        @keys.add(Keys.BracketedPaste, filter=typing)
        def _paste(event: KeyPressEvent) -> None:
            self._buffer.insert_text(self._paste_store.collapse(event.data))

        return keys

    def _send(self) -> None:
        state = self._buffer.complete_state
        if state is not None and state.current_completion and not self._buffer.text.startswith("/"):
            self._buffer.complete_state = None  # a file or skill was completed; keep editing
        else:
            self._buffer.validate_and_handle()

    def _clear_screen(self) -> None:
        self._app.renderer.erase()  # else the prompt stays in the scrollback
        self._output.write_raw("\x1b[H\x1b[2J")
        self._app.renderer.reset()
        self._app.invalidate()

    def _complete(self) -> None:
        """Tab: open the menu, select its next entry; go into a folder that is selected or the only entry."""
        state = self._buffer.complete_state
        if state is None:
            self._buffer.start_completion(insert_common_part=True)
            return
        if not _is_folder(state.current_completion):
            self._buffer.complete_next()
            if len(state.completions) > 1:
                return
        if _is_folder(state.current_completion):
            self._buffer.complete_state = None
            self._buffer.start_completion()

    def _on_interrupt(self) -> None:
        """Ctrl+C: stop the turn, else clear the line, else (pressed twice) exit."""
        if self._chat.stop():
            return
        if self._buffer.text:
            self._buffer.reset()
        elif time.monotonic() - self._exit_requested_s < EXIT_CONFIRM_S and self._exit_requested_s:
            self.leave()
        else:
            self._exit_requested_s = time.monotonic()
            asyncio.get_running_loop().call_later(EXIT_CONFIRM_S, self._app.invalidate)


def _is_folder(completion: Completion | None) -> bool:
    return completion is not None and completion.text.endswith("/")


def _output(stream: TextIO) -> Output:
    output = create_output(stream)
    if type(output) is Vt100_Output:
        return _OneWriteOutput.from_pty(stream, term=os.environ.get("TERM"), enable_bell=False)
    return output
