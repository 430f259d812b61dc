/** What waits for the owner: loaded with the page, and counted in its title, its icon and the navigation. */
import { computed, effect, signal } from "@preact/signals";
import { get } from "./api.js";
import { onChange } from "./feed.js";
import { me } from "./store.js";

/** The answer of /api/inbox. */
export const inbox = signal(null);

export const waiting = computed(() => {
  if (!inbox.value) return 0;
  const { approvals, pairing, goals, limits, problems, dead_letters: lost } = inbox.value;
  return approvals.length + pairing.length + goals.length + limits.length + problems.length + (lost ? 1 : 0);
});

const TOPICS = ["inbox", "config", "approval_asked", "approval_answered", "turn_ended"];
const EVERY_MS = 60_000; // problems and dead letters come without an event

export async function loadInbox() {
  inbox.value = await get("/api/inbox").catch(() => inbox.value);
}

let isWatching = false;

export function watchInbox() {
  loadInbox();
  if (isWatching) return;
  isWatching = true;
  onChange(TOPICS, loadInbox);
  setInterval(() => document.hidden || loadInbox(), EVERY_MS);
  const icon = document.querySelector('link[rel="icon"]');
  effect(() => {
    const name = me.value?.name || "nanobot";
    document.title = waiting.value ? `(${waiting.value}) ${name}` : name;
    icon.href = icon.href.replace(/[^/]+$/, waiting.value ? "icon-waiting.svg" : "icon.svg");
  });
}
