/**
 * The feed of all turns. One tab of a browser reads it and tells the others, since a browser opens only six connections
 * to a server. The tab that holds the lock reads; when it closes, the next one continues at the same position.
 */
import { signal } from "@preact/signals";
import { isSignedIn, get } from "./api.js";

/** Whether the gateway can be reached. */
export const isOnline = signal(true);

const KEPT = 2000;
const LONGEST_WAIT_MS = 15_000;
const CHANGED_MS = 300;
const REACHED_MS = 500;
const listeners = new Set();
const resetListeners = new Set();
const channel = new BroadcastChannel("nanobot-feed");
const recent = [];
let position = "";
let source = null;
let failures = 0;

/** Split `<epoch>.<number>`. */
export function parsePosition(text) {
  const [epoch, number] = text.split(".");
  return { epoch, number: Number(number) };
}

/** Call with each item `{epoch, number, session, channel, event}`, starting with those after a position. */
export function follow(after, listener) {
  const { epoch, number } = parsePosition(after);
  for (const item of recent) {
    if (item.epoch === epoch && item.number > number) listener(item);
  }
  const ifNewer = (item) => (item.epoch !== epoch || item.number > number) && listener(item);
  listeners.add(ifNewer);
  return () => listeners.delete(ifNewer);
}

/** Wait until the feed has come to a position, for a moment at most: its items come in groups, later than an answer. */
export function reached(target) {
  const { epoch, number } = parsePosition(target);
  const isThere = () => parsePosition(position).epoch !== epoch || parsePosition(position).number >= number;
  if (isThere()) return Promise.resolve();
  return new Promise((resolve) => {
    const unfollow = follow(position, () => isThere() && end());
    const timer = setTimeout(end, REACHED_MS);
    function end() {
      clearTimeout(timer);
      unfollow();
      resolve();
    }
  });
}

/** The items that are still kept, up to a position. */
export function itemsUntil(position) {
  const { epoch, number } = parsePosition(position);
  return recent.filter((item) => item.epoch === epoch && item.number <= number);
}

/** Call when events may be missing: everything has to be loaded again. */
export function onReset(listener) {
  resetListeners.add(listener);
  return () => resetListeners.delete(listener);
}

/** Call soon after a change of these topics, or an event of these types. */
export function onChange(topics, listener) {
  let timer = 0;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(listener, CHANGED_MS);
  };
  const unfollow = follow("", ({ event }) => topics.includes(event.type === "changed" ? event.topic : event.type) && soon());
  const offReset = onReset(soon);
  return () => (clearTimeout(timer), unfollow(), offReset());
}

/** Start to read after a position, or to listen to the tab that reads. */
export function startFeed(after) {
  position = after;
  channel.onmessage = ({ data }) => receive(data);
  addEventListener("online", () => source && connect());
  addEventListener("offline", () => share({ kind: "online", value: false }));
  if (navigator.locks) {
    channel.postMessage({ kind: "ask" });
    navigator.locks.request("nanobot-feed", () => {
      connect();
      return new Promise(() => {}); // held until the tab closes
    });
  } else {
    connect();
    document.addEventListener("visibilitychange", () => (document.hidden ? source?.close() : connect()));
  }
}

function share(message) {
  receive(message);
  channel.postMessage(message);
}

function receive(message) {
  if (message.kind === "ask" && source) channel.postMessage({ kind: "online", value: isOnline.value });
  if (message.kind === "online") isOnline.value = message.value;
  if (message.kind === "item") take(message);
  if (message.kind === "reset") {
    position = message.position;
    recent.length = 0;
    for (const listener of [...resetListeners]) listener();
  }
}

function take({ id, data }) {
  const { epoch, number } = parsePosition(id);
  position = id;
  for (const event of splitDeltas(data.event)) {
    const item = { epoch, number, session: data.session, channel: data.channel, event };
    recent.push(item);
    for (const listener of [...listeners]) listener(item);
  }
  if (recent.length > KEPT) recent.splice(0, recent.length - KEPT / 2);
}

/** Joined deltas carry a list of texts, one for each number up to that of the last. */
function splitDeltas(event) {
  if (!Array.isArray(event.text)) return [event];
  const first = event.seq - event.text.length + 1;
  return event.text.map((text, index) => ({ ...event, seq: first + index, text }));
}

function connect() {
  source?.close();
  const opened = new EventSource(`/api/feed?after=${encodeURIComponent(position)}`);
  source = opened;
  opened.onopen = () => {
    failures = 0;
    share({ kind: "online", value: true });
  };
  opened.addEventListener("turn", (event) =>
    share({ kind: "item", id: event.lastEventId, data: JSON.parse(event.data) }),
  );
  opened.addEventListener("reset", (event) => share({ kind: "reset", position: event.lastEventId }));
  opened.onerror = () => {
    share({ kind: "online", value: false });
    failures += 1;
    if (opened.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    const wait = Math.min(1000 * 2 ** failures, LONGEST_WAIT_MS) * (0.5 + Math.random());
    setTimeout(async () => {
      await get("/api/me").catch(() => null); // finds out whether the sign-in has ended
      if (source === opened && isSignedIn.value) connect();
    }, wait);
  };
}
