/** One open session: its stored messages, as far as they are loaded, and its running turns. */
import { signal } from "@preact/signals";
import { get, sessionPath } from "./api.js";
import { joinTexts, keepSame, mergeParts, toEntries } from "./entries.js";
import { follow, itemsUntil, onReset, reached } from "./feed.js";
import { seen } from "./outbox.js";
import { applyEvent, newTurnView } from "./turn_view.js";

const PAGE = 80;
const LONGEST_PAGE = 200;

export class Session {
  constructor(key) {
    this.key = key;
    this.entries = signal([]);
    /** Views of running and waiting turns; a view changes in place, and `beat` with it. */
    this.live = signal([]);
    this.beat = signal(0);
    /** loading, ready or failed. */
    this.state = signal("loading");
    this.hasOlder = signal(false);
    this.branchOf = signal(null);
    /** The chat app that gets the answers, null if none does. */
    this.answersIn = signal(null);
    /** What the last turn that ended here answered, for screen readers. */
    this.lastAnswer = signal("");
    this.rows = [];
    this.ended = new Map(); // views of turns that ended since the session was opened, by turn id
    this.results = {}; // model and cost of turns, by turn id
    this.isClosed = false;
    this.unfollow = () => {};
    this.offReset = onReset(() => this.load());
  }

  close() {
    this.isClosed = true;
    this.unfollow();
    this.offReset();
  }

  /** Load the newest messages and what runs, and follow from there. */
  async load() {
    try {
      const page = await get(sessionPath(this.key, `rows?limit=${PAGE}`));
      await reached(page.feed); // for `recall`
      if (this.isClosed) return;
      this.live.value = page.live;
      for (const [id, view] of this.ended) if (view.later) this.ended.delete(id); // it has gone on
      for (const view of page.live) if (view.started.message_id) seen(view.started.message_id);
      this.takePage(page);
      this.recall(page.feed);
      this.state.value = "ready";
      this.unfollow();
      this.unfollow = follow(page.feed, (item) => this.take(item));
    } catch (error) {
      if (this.state.value === "loading") this.state.value = "failed";
    }
  }

  /** Turns that stored nothing, such as commands, from the events that this tab still has. */
  recall(position) {
    const views = new Map();
    for (const { session, channel, event } of itemsUntil(position)) {
      if (session !== this.key) continue;
      if (event.message_id) seen(event.message_id);
      if (event.type === "turn_started") views.set(event.turn_id, newTurnView(event, session, channel));
      const view = views.get(event.turn_id);
      if (!view) continue;
      applyEvent(view, event);
      if (event.type === "turn_ended" && !this.ended.has(event.turn_id)) this.finish(view, event);
    }
    if (views.size) this.setRows(this.rows);
  }

  async loadOlder() {
    const before = this.rows[0].n;
    const page = await get(sessionPath(this.key, `rows?limit=${LONGEST_PAGE}&before=${before}`));
    if (this.rows[0]?.n === before) this.setRows([...page.rows, ...this.rows], page.turns);
  }

  /** Apply an item of the feed. */
  take({ session, channel, event }) {
    if (session !== this.key) return;
    if (event.type === "turn_started") {
      if (event.message_id) seen(event.message_id);
      if (!this.live.value.some((view) => view.turn_id === event.turn_id)) {
        this.live.value = [...this.live.value, newTurnView(event, session, channel)];
      }
    } else if (event.type === "message_posted") {
      this.addPosted(event);
    } else {
      const view = this.live.value.find((each) => each.turn_id === event.turn_id);
      if (!view) return;
      applyEvent(view, event);
      if (event.type === "turn_ended") this.end(view, event);
      this.beat.value += 1;
    }
  }

  /** A message that answers none of this session's is stored; one of a running turn, such as a file, is part of it. */
  addPosted(event) {
    const parts = [
      ...(event.text ? [{ type: "text", text: event.text }] : []),
      ...(event.files?.length ? [{ type: "files", files: event.files }] : []),
    ];
    const view = this.live.value.find((each) => each.turn_id === event.turn_id);
    if (view) {
      view.parts.push(...parts);
      this.beat.value += 1;
    } else {
      this.refresh();
    }
  }

  end(view, event) {
    this.finish(view, event);
    this.lastAnswer.value = (event.text ?? "").slice(0, 200);
    this.refresh(view);
  }

  /** Complete the view of a turn that has ended, and keep it. */
  finish(view, event) {
    const { model, cost_usd: usd, usage, outcome, error, text, later } = event;
    this.results = { ...this.results, [event.turn_id]: { model, usd, ...usage } };
    const isShown = joinTexts(view.parts).some((part) => part.type === "text" && part.text.trim() === text?.trim());
    if (text && !isShown) {
      view.parts = view.parts.filter((part) => !(part.continues && text.includes(part.text.trim()))); // the end of it
      view.parts.push({ type: outcome === "failed" ? "error" : "text", text, error });
    }
    if (outcome === "stopped" && !later) view.parts.push({ type: "stopped" });
    const hasMore = view.parts.some((part) => part.type !== "notice" || part.kind !== "receipt");
    if (!hasMore) return;
    const at = view.started.at;
    const before = this.rows.findLast((row) => !row.timestamp || new Date(row.timestamp) <= new Date(at));
    this.ended.set(view.turn_id, { ...view, after: before?.n ?? -1, at, later });
  }

  /** Load what was stored since, then show it in place of the turn that ended. */
  async refresh(view) {
    try {
      const last = this.rows.at(-1)?.n ?? -1;
      let page = await get(sessionPath(this.key, `rows?limit=${PAGE}`));
      if (page.rows[0]?.n > last + 1) page = await get(sessionPath(this.key, `rows?limit=${LONGEST_PAGE}`));
      this.takePage(page);
    } catch {
      // shown from its events until the next load
      this.setRows(this.rows);
    }
    this.live.value = this.live.value.filter((other) => other !== view);
  }

  /** Newest rows: they continue those that are loaded, or replace them if the session was started over. */
  takePage({ rows, turns, branch_of: branchOf, answers_in: answersIn }) {
    this.branchOf.value = branchOf;
    this.answersIn.value = answersIn;
    const first = rows[0]?.n ?? 0;
    const known = this.rows.at(-1)?.n ?? -1;
    const continues = rows.length > 0 && first <= known + 1 && rows.at(-1).n >= known;
    this.setRows(continues ? [...this.rows.filter((row) => row.n < first), ...rows] : rows, turns);
  }

  setRows(rows, turns = {}) {
    this.results = { ...turns, ...this.results };
    this.rows = rows;
    this.hasOlder.value = rows.length > 0 && rows[0].n > 0;
    const stored = toEntries(rows);
    for (const entry of stored) {
      if (entry.inbound) seen(entry.inbound.slice(entry.inbound.lastIndexOf(":") + 1));
    }
    this.entries.value = keepSame(this.entries.value, this.withEnded(stored));
  }

  /** Stored entries with what only events showed: notices and durations, and turns that store nothing (commands). */
  withEnded(stored) {
    const count = new Map();
    for (const entry of stored) if (entry.kind === "turn") count.set(entry.turn_id, (count.get(entry.turn_id) ?? 0) + 1);
    const inRows = new Set(stored.map((entry) => entry.turn_id));
    for (const entry of stored) {
      const view = this.ended.get(entry.turn_id);
      if (view && entry.kind === "turn" && count.get(entry.turn_id) === 1) {
        entry.parts = mergeParts(entry.parts, view.parts);
        entry.view = view;
      }
    }
    const others = [...this.ended].filter(([turnId]) => !count.has(turnId));
    const extra = others.flatMap(([turnId, view]) => {
      const place = { turn_id: turnId, first: view.after + 0.5, last: view.after + 0.5, at: view.at, view };
      const asked = { ...view.started, ...place, id: `u${turnId}`, kind: "user", timestamp: view.started.at };
      const answer = { ...place, id: `t${turnId}`, kind: "turn", parts: view.parts };
      return inRows.has(turnId) ? [answer] : [asked, answer];
    });
    return [...stored, ...extra].sort((one, other) => one.first - other.first);
  }
}

