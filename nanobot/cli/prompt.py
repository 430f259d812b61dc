"""The line editor of the chat. It stays on the screen all the time: what happens is drawn above it.

Everything on the screen is one prompt-toolkit application: live lines, the line being typed, a bottom line. Lines that
stay are written above it. Erasing, writing and drawing again leave in one write, so nothing flickers.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, ThreadedCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER, SEARCH_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
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

from nanobot.cli.completion import completes
from nanobot.cli.history import ChatHistory
from nanobot.cli.pastes import Pastes
from nanobot.cli.surface import BEGIN_UPDATE, END_UPDATE, live_rows_of
from nanobot.cli.terminal import say

MENU_ROWS = 8
_COLOURS = {
    "prompt": "fg:ansigreen",
    "bottom": "fg:ansibrightblack",
    "asked": "fg:ansiyellow bold",
    "queued": "fg:ansibrightblack italic",
}
LEAVE_WINDOW_S = 2.0
_SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")

for _sequence in _SHIFT_ENTER:  # terminals that tell Shift+Enter from Enter; prompt-toolkit takes both for Enter
    ANSI_SEQUENCES[_sequence] = (Keys.Escape, Keys.ControlM)


class _OneWriteOutput(Vt100_Output):
    """Holds back what is written until a change of the screen is whole."""

    held = False

    @property
    def responds_to_cpr(self) -> bool:
        """Never ask where the cursor is: the prompt sits right under what was written, not at the screen's end."""
        return False

    def flush(self) -> None:
        """Write out, unless held."""
        if not self.held:
            super().flush()

    def hold(self) -> None:
        """A change begins."""
        if not self.held:
            self.held = True
            self.write_raw(BEGIN_UPDATE)

    def release(self) -> None:
        """The change is whole."""
        if self.held:
            self.held = False
            self.write_raw(END_UPDATE)
            super().flush()


@dataclass(frozen=True, slots=True)
class PromptActions:
    """What the keys do. Each returns at once."""

    take_line: Callable[[str], None]
    stop: Callable[[], bool]
    """Stop what runs; False where nothing runs."""
    queued: Callable[[], Sequence[str]]
    """Lines that wait for their turn."""
    bottom_line: Callable[[], str]
    is_asked: Callable[[], bool]
    """Whether an answer is waited for: then the bottom line, which says how to give it, stands out."""


class Prompt:
    """The chat's place to type; and the surface its screen draws on."""

    def __init__(self, actions: PromptActions, completer: Completer, history_file: Path, *, colour: bool) -> None:
        self._actions = actions
        self._pastes = Pastes()
        self._live = ""
        self._leave_asked = 0.0
        self._stream = sys.stdout
        self._output = _output(self._stream)
        self._buffer = Buffer(
            name=DEFAULT_BUFFER,
            multiline=True,
            history=ChatHistory(history_file),
            completer=ThreadedCompleter(completer),
            complete_while_typing=Condition(self._can_complete),
            enable_history_search=False,
            accept_handler=self._accept,
        )
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=self._keys(),
            style=Style.from_dict(_COLOURS if colour else {}),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            output=self._output,
            erase_when_done=True,
            after_render=lambda _app: self._release(),
        )
        self._app.ttimeoutlen = 0.05
        self._app.timeoutlen = 0.1  # how long a lone Esc waits to be Alt+something

    @property
    def columns(self) -> int:
        """Cells in a line, but one."""
        return max(self._output.get_size().columns - 1, 10)

    @property
    def live_rows(self) -> int:
        """How many lines may be drawn anew."""
        return live_rows_of(self._output.get_size().rows)

    def show(self, stay: str, live: str) -> None:
        """Write whole lines above the prompt and replace the live ones, in one go."""
        if not self._app.is_running:
            self._live = live
            if stay:
                say(self._stream, stay)
            return
        shrinks = live.count("\n") < self._live.count("\n") or bool(self._live and not live)
        changed = live != self._live
        self._live = live
        if stay or shrinks:
            self._hold()
            self._app.renderer.erase()
            self._output.write_raw(stay.replace("\n", "\r\n"))
        if stay or changed:
            self._app.invalidate()

    def refresh(self) -> None:
        """Draw the prompt anew: the bottom line or the queue has changed."""
        self.show("", self._live)
        if self._app.is_running:
            self._app.invalidate()

    def put_back(self, text: str) -> None:
        """Give lines that were queued back to be edited, before what is being typed."""
        typed = self._buffer.text
        self._buffer.text = f"{text}\n{typed}" if typed else text
        self._buffer.cursor_position = len(self._buffer.text)

    async def run(self) -> None:
        """Take lines until somebody leaves."""
        try:
            await self._app.run_async()
        finally:
            self._release()

    def leave(self) -> None:
        """End `run`."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def _hold(self) -> None:
        if isinstance(self._output, _OneWriteOutput):
            self._output.hold()

    def _release(self) -> None:
        if isinstance(self._output, _OneWriteOutput):
            self._output.release()

    def _accept(self, buffer: Buffer) -> bool:
        whole = self._pastes.restored(buffer.text)
        if whole != buffer.text:
            buffer.text = whole  # the history keeps what was sent
        self._actions.take_line(whole)
        return False

    def _can_complete(self) -> bool:
        return completes(self._buffer.document.text_before_cursor)

    def _layout(self) -> Layout:
        search = SearchToolbar(Buffer(name=SEARCH_BUFFER), ignore_case=True)
        typing = BufferControl(
            self._buffer,
            search_buffer_control=search.control,
            input_processors=[HighlightIncrementalSearchProcessor(), HighlightSelectionProcessor()],
            include_default_input_processors=False,
            preview_search=True,
        )
        rows = HSplit(
            [
                _lines(lambda: ANSI(self._live), Condition(lambda: bool(self._live))),
                _lines(self._queued_lines, Condition(lambda: bool(self._actions.queued()))),
                Window(height=1),
                Window(
                    typing,
                    height=self._typing_height,
                    get_line_prefix=lambda line, wrap: [("class:prompt", "> " if line == 0 and wrap == 0 else "  ")],
                    wrap_lines=True,
                    dont_extend_height=True,
                ),
                search,
                ConditionalContainer(
                    Window(FormattedTextControl(self._bottom), height=1, dont_extend_height=True),
                    Condition(lambda: self._buffer.complete_state is None),
                ),
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
        shown = [" ".join(line[:1000].split())[:width] for line in self._actions.queued()]
        return [("class:queued", "\n".join(f"queued: {line}" for line in shown))]

    def _bottom(self) -> StyleAndTextTuples:
        asked = time.monotonic() - self._leave_asked < LEAVE_WINDOW_S
        text = "Ctrl+C again leaves" if asked and self._leave_asked else self._actions.bottom_line()
        return [("class:asked" if self._actions.is_asked() else "class:bottom", text[: self.columns])]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)
        menu_open = Condition(lambda: self._buffer.complete_state is not None)

        @keys.add("enter", filter=typing)
        def _send(_event: KeyPressEvent) -> None:
            state = self._buffer.complete_state
            if state is not None and state.current_completion and not self._buffer.text.startswith("/"):
                self._buffer.complete_state = None  # a file or a skill was chosen; the message goes on
            else:
                self._buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        def _new_line(_event: KeyPressEvent) -> None:
            self._buffer.insert_text("\n")

        @keys.add("escape", filter=typing & ~menu_open)
        def _stop(_event: KeyPressEvent) -> None:
            self._actions.stop()

        @keys.add("escape", filter=typing & menu_open)
        def _close_menu(_event: KeyPressEvent) -> None:
            self._buffer.cancel_completion()

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _interrupt(_event: KeyPressEvent) -> None:
            self._interrupted()

        @keys.add("c-d", filter=typing & Condition(lambda: not self._buffer.text))
        def _leave(_event: KeyPressEvent) -> None:
            self.leave()

        @keys.add("c-z", filter=Condition(lambda: hasattr(signal, "SIGTSTP")))
        def _suspend(_event: KeyPressEvent) -> None:
            self._app.suspend_to_background()

        @keys.add(Keys.BracketedPaste, filter=typing)
        def _paste(event: KeyPressEvent) -> None:
            self._buffer.insert_text(self._pastes.taken(event.data))

        return keys

    def _interrupted(self) -> None:
        """Ctrl+C: stop what runs, else empty the line, else (the second time) leave."""
        if self._actions.stop():
            return
        if self._buffer.text:
            self._buffer.reset()
        elif time.monotonic() - self._leave_asked < LEAVE_WINDOW_S and self._leave_asked:
            self.leave()
        else:
            self._leave_asked = time.monotonic()
            asyncio.get_running_loop().call_later(LEAVE_WINDOW_S, self._app.invalidate)


def _lines(text: Callable[[], AnyFormattedText], shown: Condition) -> ConditionalContainer:
    return ConditionalContainer(Window(FormattedTextControl(text), dont_extend_height=True), shown)


def _output(stream: TextIO) -> Output:
    output = create_output(stream)
    if type(output) is Vt100_Output:
        return _OneWriteOutput.from_pty(stream, term=os.environ.get("TERM"), enable_bell=False)
    return output
