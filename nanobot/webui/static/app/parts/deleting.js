/** Chats that are about to be deleted, and the chat whose menu is open. */
import { signal } from "@preact/signals";
import { request } from "../api.js";
import { html } from "../dom.js";
import { go, route } from "../router.js";
import { dialog, loadSessions } from "../store.js";
import { t } from "../words.js";

const UNDO_MS = 10_000;

/** The session whose menu is open. */
export const chosen = signal(null);
/** Sessions that will be deleted, by their name: `{title, timer}`. Lists leave them out. */
export const deleting = signal(new Map());

export function openMenu(session) {
  chosen.value = session;
  dialog.value = "session";
}

/** The path of a session's endpoints. */
export function pathOf(session, action = "") {
  return `/api/sessions/${encodeURIComponent(session.name)}${action}`;
}

/** Delete a session in ten seconds, unless it is taken back. A page that closes before deletes it at once. */
export function deleteSoon(session) {
  const timer = setTimeout(() => deleteNow(session), UNDO_MS);
  deleting.value = new Map(deleting.value).set(session.name, { title: session.title || session.key, timer, session });
  if (route.value.view === "chat" && route.value.rest === session.key && !session.archived) go("chat");
}

async function deleteNow(session) {
  await request("DELETE", pathOf(session)).catch(() => null);
  await loadSessions().catch(() => null);
  forget(session.name);
}

function takeBack(name) {
  clearTimeout(deleting.value.get(name).timer);
  forget(name);
}

function forget(name) {
  const left = new Map(deleting.value);
  left.delete(name);
  deleting.value = left;
}

addEventListener("pagehide", () => {
  for (const { session } of deleting.value.values()) fetch(pathOf(session), { method: "DELETE", keepalive: true });
});

/** What is about to be deleted, with a way back. */
export function Deleting() {
  return html`<div class="toasts" role="status">
    ${[...deleting.value].map(
      ([name, { title }]) => html`<p class="toast" key=${name}><span dir="auto">${t("deleted", { title })}</span>
        <button type="button" onClick=${() => takeBack(name)}>${t("undo")}</button></p>`,
    )}
  </div>`;
}
