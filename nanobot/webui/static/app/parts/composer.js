/** Where messages are written: text, files, and a menu of the slash commands. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { getOne, put, remove } from "../db.js";
import { Icon, classes, html, isTouch } from "../dom.js";
import { size } from "../format.js";
import { commands } from "../store.js";
import { t } from "../words.js";

const MAX_FILES = 10;
const DRAFT_MS = 300;
const MENU_SIZE = 8;

/** `editing`: `{text, files}` of the message that is written anew. `onSend(text, files)` returns once it is stored. */
export function Composer({ draftKey, editing, isRunning, note, addFiles, onCancelEdit, onSend, onStop }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [chosen, setChosen] = useState(0);
  const [isMenuClosed, setMenuClosed] = useState(false);
  const [problem, setProblem] = useState("");
  const box = useRef(null);
  const picker = useRef(null);
  const camera = useRef(null);

  useEffect(() => {
    let isCurrent = true;
    if (editing) {
      setText(editing.text);
      setFiles(editing.files);
    } else {
      setFiles([]);
      setText("");
      getOne("drafts", draftKey).then((draft) => isCurrent && draft && setText(draft.text), () => null);
    }
    if (!isTouch) box.current.focus();
    return () => (isCurrent = false);
  }, [draftKey, editing]);

  useEffect(() => {
    if (editing) return undefined;
    const timer = setTimeout(() => {
      if (text) put("drafts", { session: draftKey, text });
      else remove("drafts", draftKey);
    }, DRAFT_MS);
    return () => clearTimeout(timer);
  }, [text, draftKey, editing]);

  useLayoutEffect(() => {
    box.current.style.height = "auto";
    box.current.style.height = `${box.current.scrollHeight}px`;
  }, [text]);

  function attach(list) {
    const added = [...list]; // the list of a file input empties itself
    setFiles((before) => [...before, ...added]);
  }
  useEffect(() => {
    addFiles.current = attach;
    if (files.length > MAX_FILES) {
      setFiles(files.slice(0, MAX_FILES));
      setProblem(t("too_many_files", { n: MAX_FILES }));
    }
  });

  const query = /^\/([a-z-]*)$/i.exec(text)?.[1].toLowerCase();
  const matching = query === undefined ? [] : commands.value.filter((command) => command.name.startsWith(query));
  const isMenuOpen = matching.length > 0 && !isMenuClosed && !(matching.length === 1 && matching[0].name === query);
  const index = Math.min(chosen, matching.length - 1);

  function write(value) {
    setText(value);
    setChosen(0);
    setMenuClosed(false);
  }

  function pick(command) {
    write(`/${command.name} `);
    box.current.focus();
  }

  async function submit() {
    const ready = text.trim();
    if (!ready && !files.length) return;
    try {
      await onSend(ready, files);
      write("");
      setFiles([]);
      setProblem("");
      remove("drafts", draftKey);
    } catch {
      setProblem(t("not_stored"));
    }
  }

  function onKeyDown(event) {
    if (event.isComposing || event.keyCode === 229) return; // the Enter that ends a composition
    if (isMenuOpen) {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const step = event.key === "ArrowDown" ? 1 : -1;
        setChosen((index + step + matching.length) % matching.length);
        event.preventDefault();
        return;
      }
      if (event.key === "Tab" || (event.key === "Enter" && matching[index].name !== query)) {
        pick(matching[index]);
        event.preventDefault();
        return;
      }
      if (event.key === "Escape") {
        setMenuClosed(true);
        event.stopPropagation();
        return;
      }
    }
    if (event.key === "Escape" && editing) {
      onCancelEdit();
      event.stopPropagation();
    } else if (event.key === "Enter" && !event.shiftKey && !isTouch) {
      event.preventDefault();
      submit();
    }
  }

  function onPaste(event) {
    if (event.clipboardData.files.length) {
      event.preventDefault();
      attach(event.clipboardData.files);
    }
  }

  function onPick(event) {
    attach(event.currentTarget.files);
    event.currentTarget.value = "";
  }

  const canSend = text.trim() || files.length > 0;
  const start = Math.max(0, Math.min(index - MENU_SIZE + 1, matching.length - MENU_SIZE));
  return html`<form class="composer" onSubmit=${(event) => (event.preventDefault(), submit())}>
    ${isMenuOpen &&
    html`<ul class="menu" id="commands" role="listbox" aria-label=${t("commands")}>
      ${matching.slice(start, start + MENU_SIZE).map(
        (command, at) => html`<li role="option" id="command-${command.name}" key=${command.name}
          aria-selected=${start + at === index} onMouseDown=${(event) => (event.preventDefault(), pick(command))}>
          <strong>/${command.name}</strong><span>${command.text}</span>
        </li>`,
      )}
    </ul>`}
    ${editing &&
    html`<p class="composer-note"><${Icon} name="branch" /><span>${t("editing")}</span>
      <button type="button" class="quiet" onClick=${onCancelEdit}>${t("cancel")}</button></p>`}
    ${note && html`<p class="composer-note">${note}</p>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="composer-box">
      ${files.length > 0 &&
      html`<ul class="chips">
        ${files.map(
          (file, at) => html`<li key=${at}><${Icon} name="file" /><span class="file-name">${file.name}</span>
            <span class="file-note">${size(file.size ?? 0)}</span>
            <button type="button" class="quiet" aria-label=${t("remove_file", { name: file.name })}
              onClick=${() => setFiles(files.filter((other) => other !== file))}><${Icon} name="close" /></button></li>`,
        )}
      </ul>`}
      <textarea ref=${box} rows="1" value=${text} aria-label=${t("message")} placeholder=${t("message_hint")} dir="auto"
        aria-autocomplete="list" aria-controls=${isMenuOpen ? "commands" : undefined}
        aria-activedescendant=${isMenuOpen ? `command-${matching[index].name}` : undefined}
        onInput=${(event) => write(event.currentTarget.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
      <div class="composer-row">
        <input ref=${picker} type="file" multiple hidden onChange=${onPick} aria-label=${t("attach")} />
        <button type="button" class="quiet tool" title=${t("attach")} aria-label=${t("attach")}
          onClick=${() => picker.current.click()}><${Icon} name="clip" /></button>
        ${isTouch &&
        html`<input ref=${camera} type="file" accept="image/*" capture="environment" hidden onChange=${onPick} aria-label=${t("camera")} />
          <button type="button" class="quiet tool" aria-label=${t("camera")} onClick=${() => camera.current.click()}>
            <${Icon} name="camera" /></button>`}
        <span class="gap"></span>
        ${isRunning &&
        html`<button type="button" class="round stop" title=${t("stop")} aria-label=${t("stop")} onClick=${onStop}><${Icon} name="stop" /></button>`}
        ${(!isRunning || canSend) &&
        html`<button type="submit" class=${classes("round primary")} disabled=${!canSend} title=${t("send")} aria-label=${t("send")}>
          <${Icon} name="send" /></button>`}
      </div>
    </div>
  </form>`;
}
