/** The dialog that jumps to a session or a view, and the list of keys. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../dom.js";
import { go } from "../router.js";
import { channelName, dialog, sessions } from "../store.js";
import { VIEWS } from "../views.js";
import { t } from "../words.js";
import { SessionMenu } from "./session_menu.js";

const MOST = 12;

export default function Dialogs() {
  if (dialog.value === "jump") return html`<${Jump} />`;
  if (dialog.value === "keys") return html`<${Keys} />`;
  if (dialog.value === "session") return html`<${SessionMenu} />`;
  return null;
}

/** A modal dialog; the focus returns when it closes. `close` takes it off the page. */
export function Modal({ label, close = () => (dialog.value = ""), children }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const onClick = (event) => event.target === box.current && close();
  return html`<dialog ref=${box} aria-label=${label} onClose=${close} onClick=${onClick}><div class="dialog">${children}</div></dialog>`;
}

function Jump() {
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState(0);
  const places = [
    { id: "new", title: t("new_chat"), note: "", open: () => go("chat") },
    ...VIEWS.filter(({ name }) => name !== "chat" && name !== "replay").map(({ name }) => ({ id: name, title: t(`view_${name}`), note: "", open: () => go(name) })),
    ...sessions.value.map(({ key, title, channel }) => ({
      id: key, title: title || key, note: channelName(channel), open: () => go("chat", key),
    })),
  ];
  const found = places.filter((place) => place.title.toLowerCase().includes(words.trim().toLowerCase())).slice(0, MOST);
  const index = Math.min(chosen, found.length - 1);
  function open(place) {
    dialog.value = "";
    place.open();
  }
  function onKeyDown(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && found[index]) open(found[index]);
    else if (event.key === "ArrowDown") setChosen((index + 1) % found.length);
    else if (event.key === "ArrowUp") setChosen((index - 1 + found.length) % found.length);
    else return;
    event.preventDefault();
  }
  return html`<${Modal} label=${t("jump")}>
    <input type="text" value=${words} placeholder=${t("jump")} aria-label=${t("jump")} role="combobox" aria-expanded="true"
      aria-controls="places" aria-activedescendant=${found[index] ? `place-${index}` : undefined}
      onInput=${(event) => (setWords(event.currentTarget.value), setChosen(0))} onKeyDown=${onKeyDown} />
    <ul class="menu" id="places" role="listbox" aria-label=${t("jump")}>
      ${found.map(
        (place, at) => html`<li role="option" id="place-${at}" key=${place.id} aria-selected=${at === index} onClick=${() => open(place)}>
          <span dir="auto">${place.title}</span><span>${place.note}</span></li>`,
      )}
    </ul>
  <//>`;
}

function Keys() {
  const keys = [
    ["/", "key_slash"], ["Ctrl K", "key_jump"], ["Alt ↑ ↓", "key_sessions"], ["Esc Esc", "key_stop"],
    ["Enter", "key_send"], ["Shift Enter", "key_line"], ["y n a", "key_answer"], ["?", "key_help"],
  ];
  return html`<${Modal} label=${t("keys")}>
    <h2>${t("keys")}</h2>
    <dl class="keys">${keys.map(([key, word]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${t(word)}</dd></div>`)}</dl>
    <form method="dialog"><button type="submit">${t("close")}</button></form>
  <//>`;
}
