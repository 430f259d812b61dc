/** Chats that are about to be deleted. */
import { request } from "../api.js";
import { html } from "../dom.js";
import { go, route } from "../router.js";
import { deleting, loadSessions } from "../store.js";
import { t } from "../words.js";

const UNDO_MS = 10_000;

/** The path of a session's endpoints. */
export function pathOf(session, action = "") {
  return `/api/sessions/${encodeURIComponent(session.name)}${action}`;
}

/** Delete a session in ten seconds, unless it is taken back. A page that closes before deletes it at once. */
export function deleteSoon(session) {
  const timer = setTimeout(() => deleteNow(session), UNDO_MS);
  deleting.value = new Map(deleting.value).set(session.name, { session, timer });
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
export default function Deleting() {
  return html`<div class="toasts" role="alert">
    ${[...deleting.value].map(
      ([name, { session }]) => html`<p class="toast" key=${name}><span dir="auto">${t("deleted", { title: session.title || session.key })}</span>
        <button type="button" onClick=${() => takeBack(name)}>${t("undo")}</button></p>`,
    )}
  </div>`;
}
