/**
 * Messages on their way. Each is stored before it is sent, and leaves once the feed or a stored message carries its id;
 * so it is heard exactly once, whatever ends meanwhile: the line, the tab or the gateway.
 */
import { effect, signal } from "@preact/signals";
import { request, post, sessionPath } from "./api.js";
import { getAll, put, remove } from "./db.js";
import { isOnline } from "./feed.js";

/** Entries `{id, session, text, files, branch_from, at, state, error}`; `state` is waiting, sent or failed. */
export const outbox = signal([]);

const RETRY_MS = 3000;
const channel = new BroadcastChannel("nanobot-outbox");
const accepted = new Set();
let isSending = false;

/** Load what an earlier page left, and send it. */
export async function startOutbox() {
  await reload();
  channel.onmessage = reload;
  effect(() => {
    if (isOnline.value) flush();
  });
}

/** The key of a new session. */
export function newKey() {
  return `web:${randomId().slice(0, 12)}`;
}

/** Store a message and send it. `files` are File objects, or `{id}` of files that the gateway has. */
export async function send({ session, text, files = [], branch_from = null }) {
  const entry = { id: crypto.randomUUID?.() ?? randomId(), session, text, branch_from, state: "waiting" };
  entry.at = new Date().toISOString();
  entry.files = files.map((file) =>
    file instanceof Blob ? { name: file.name, type: file.type, size: file.size, blob: file } : file,
  );
  await put("outbox", entry);
  outbox.value = [...outbox.value, entry];
  flush();
}

/** Try a failed message again. */
export async function retry(entry) {
  await change(entry, { state: "waiting", error: "" });
  flush();
}

export async function discard(id) {
  outbox.value = outbox.value.filter((entry) => entry.id !== id);
  await remove("outbox", id);
  channel.postMessage("changed");
}

/** A message with this id has reached the agent. */
export function seen(id) {
  if (outbox.value.some((entry) => entry.id === id)) discard(id);
}

async function reload() {
  const entries = await getAll("outbox");
  outbox.value = entries.sort((first, second) => first.at.localeCompare(second.at));
}

/** Change an entry, unless it has left meanwhile. */
async function change(entry, values) {
  if (!outbox.peek().some(({ id }) => id === entry.id)) return;
  const changed = { ...entry, ...values };
  outbox.value = outbox.peek().map((each) => (each.id === entry.id ? changed : each));
  await put("outbox", changed);
  channel.postMessage("changed");
}

/** Send what waits, in order. Only one tab does. */
async function flush() {
  if (isSending || !outbox.peek().length) return;
  isSending = true;
  try {
    await (navigator.locks ? navigator.locks.request("nanobot-outbox", sendAll) : sendAll());
  } finally {
    isSending = false;
  }
}

async function sendAll() {
  const tried = new Set(accepted);
  const next = () => outbox.peek().find((entry) => entry.state !== "failed" && !tried.has(entry.id));
  for (let entry = next(); entry; entry = next()) {
    tried.add(entry.id);
    if (!(await sendOne(entry))) {
      setTimeout(flush, RETRY_MS);
      return;
    }
  }
}

/** Return false if there was no answer: the rest has to wait too. */
async function sendOne(entry) {
  try {
    for (const file of entry.files) await upload(file);
    const { id, text, branch_from, session } = entry;
    const files = entry.files.map((file) => file.id);
    const answer = await post(sessionPath(session, "messages"), { id, text, files, branch_from });
    accepted.add(id);
    if (answer.accepted) await change(entry, { state: "sent" });
    else await discard(id); // the gateway had it already
    return true;
  } catch (error) {
    if (error.status === 404 && entry.files.some((file) => file.blob && file.id)) {
      for (const file of entry.files) if (file.blob) delete file.id; // the gateway started anew meanwhile
      return false;
    }
    if (!error.status || error.status >= 500 || error.status === 401) return false;
    await change(entry, { state: "failed", error: error.message });
    return true;
  }
}

async function upload(file) {
  if (file.id) return;
  const headers = { "x-file-name": encodeURIComponent(file.name), "content-type": file.type || "application/octet-stream" };
  file.id = (await request("POST", "/api/files", file.blob, headers)).id;
}

/** For pages without https, where browsers have no randomUUID. */
export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
