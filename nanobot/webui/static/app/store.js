/** What the whole page shows: who is signed in, the sessions, and what runs. */
import { computed, effect, signal } from "@preact/signals";
import { get } from "./api.js";
import { follow, onChange, onReset } from "./feed.js";

/** The answer of /api/me. */
export const me = signal(null);
/** Sessions as /api/sessions lists them, newest first. */
export const sessions = signal([]);
/** Keys of sessions with a running turn. */
export const running = signal(new Set());
/** Open approval questions of all sessions: `{session, event}` by their id. */
export const questions = signal(new Map());
/** The slash commands. */
export const commands = signal([]);
/** What waits for the owner: the answer of /api/inbox. */
export const inbox = signal(null);
/** How much that is. */
export const waiting = computed(() => {
  if (!inbox.value) return 0;
  const { approvals, pairing, goals, limits, problems, dead_letters: lost } = inbox.value;
  return approvals.length + pairing.length + goals.length + limits.length + problems.length + (lost ? 1 : 0);
});
/** The session whose menu is open. */
export const chosen = signal(null);
/** Sessions that will be deleted, by their name: `{session, timer}`. Lists leave them out. */
export const deleting = signal(new Map());
export const isSidebarOpen = signal(false);
/** The open dialog: "", "jump", "keys" or "session". */
export const dialog = signal("");

const RELOAD_MS = 400;
const INBOX_TOPICS = ["inbox", "config", "approval_asked", "approval_answered", "turn_ended"];
const INBOX_MS = 60_000; // problems and dead letters come without an event
const turns = new Map(); // running turns: id to session
let reloading = 0;

/** Load the sessions. Return the position in the feed from which they change. */
export async function loadSessions() {
  const answer = await get("/api/sessions");
  sessions.value = answer.sessions
    .filter((session) => !session.archived && session.messages > 0)
    .map((session) => ({ ...session, channel: channelOf(session.key) }));
  running.value = new Set(sessions.value.filter((session) => session.running).map((session) => session.key));
  turns.clear();
  for (const key of running.value) turns.set(key, key); // until an event names the turn
  return answer.feed;
}

/** Keep the sessions current. */
export function watchSessions(position) {
  follow(position, take);
  onReset(loadSessions);
  get("/api/commands").then((answer) => (commands.value = answer.commands), () => null);
}

export async function loadInbox() {
  inbox.value = await get("/api/inbox").catch(() => inbox.value);
}

/** Keep current what waits, and count it in the title and the icon of the page. */
export function watchInbox() {
  loadInbox();
  onChange(INBOX_TOPICS, loadInbox);
  setInterval(() => document.hidden || loadInbox(), INBOX_MS);
  const icon = document.querySelector('link[rel="icon"]');
  effect(() => {
    const name = me.value?.name || "nanobot";
    document.title = waiting.value ? `(${waiting.value}) ${name}` : name;
    icon.href = icon.href.replace(/[^/]+$/, waiting.value ? "icon-waiting.svg" : "icon.svg");
  });
}

function take({ session, channel, event }) {
  if (event.type === "turn_started") {
    turns.set(event.turn_id, session);
    touch(session, channel, event.text);
  } else if (event.type === "turn_ended") {
    turns.delete(event.turn_id);
    turns.delete(session);
    reloadSoon();
  } else if (event.type === "changed") {
    if (event.topic === "sessions") reloadSoon();
    return;
  } else if (event.type === "message_posted") {
    reloadSoon();
    return;
  } else if (event.type === "approval_asked") {
    questions.value = new Map(questions.value).set(event.question, { session, event });
  } else if (event.type === "approval_answered") {
    const left = new Map(questions.value);
    left.delete(event.question);
    questions.value = left;
  } else {
    return;
  }
  const keys = new Set(turns.values());
  if ([...keys].sort().join() !== [...running.value].sort().join()) running.value = keys;
}

function reloadSoon() {
  clearTimeout(reloading);
  reloading = setTimeout(() => loadSessions().catch(() => null), RELOAD_MS);
}

/** The channel of a session. Keys without one belong to the terminal. */
export function channelOf(key) {
  return key.includes(":") ? key.split(":")[0] : "cli";
}

/** Move a session to the top, or add it. */
function touch(key, channel, text) {
  const known = sessions.value.find((session) => session.key === key);
  const title = text.trim().split("\n")[0].slice(0, 60);
  const session = known ?? { key, channel, title, messages: 0, archived: false };
  session.updated_at = new Date().toISOString();
  sessions.value = [session, ...sessions.value.filter((other) => other !== known)];
}

/** The name of a channel, as its platform writes it. */
const CHANNELS = {
  cli: "Terminal", web: "Web", api: "API", dingtalk: "DingTalk", whatsapp: "WhatsApp", qq: "QQ", wecom: "WeCom",
  weixin: "WeChat", msteams: "Teams", websocket: "WebSocket", cron: "Cron",
};
export function channelName(name) {
  return CHANNELS[name] ?? name.charAt(0).toUpperCase() + name.slice(1);
}
