/** A chat: its messages, what runs, and where to write. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { post, sessionPath } from "../api.js";
import { Icon, html } from "../dom.js";
import { mergeParts } from "../entries.js";
import { discard, newKey, outbox, retry, send } from "../outbox.js";
import { Composer } from "../parts/composer.js";
import { History } from "../parts/history.js";
import { ActionButton, CopyButton, TurnMessage, UserMessage, answerOf } from "../parts/message.js";
import { go, href } from "../router.js";
import { Session } from "../session.js";
import { channelName, me, sessions } from "../store.js";
import { t } from "../words.js";

const BOTTOM_PX = 60;
const HANDS = ["wheel", "touchmove", "pointerdown", "keydown"];
const TOUCH_MS = 1000;
const CHANGE_MS = 200;
const DRAWN_MS = 60; // until the browser has drawn, and says again what is near
const RETRY_MS = 1000;
const STOP_AGAIN_MS = 2500;
const ACTIVITY_S = 2;

export default function Chat({ rest: key }) {
  return key ? html`<${OpenChat} key=${key} sessionKey=${key} />` : html`<${NewChat} />`;
}

function NewChat() {
  const addFiles = useRef(null);
  async function onSend(text, files) {
    const key = newKey();
    await send({ session: key, text, files });
    go("chat", key);
  }
  return html`<${DropTarget} addFiles=${addFiles} className="chat new">
    <div class="welcome">
      <h2>${t("welcome", { name: me.value.name })}</h2>
      <p>${t("welcome_hint")}</p>
    </div>
    <${Composer} draftKey="new" addFiles=${addFiles} onSend=${onSend} />
  <//>`;
}

function OpenChat({ sessionKey: key }) {
  const session = useMemo(() => new Session(key), []);
  const [editing, setEditing] = useState(null);
  const addFiles = useRef(null);
  const scroller = useRef(null);
  const stick = useStickToBottom(scroller);
  useEffect(() => {
    session.load();
    return () => session.close();
  }, []);

  const live = session.live.value;
  const isRunning = live.length > 0;
  const stop = () => post(sessionPath(key, "stop")).catch(() => null);
  const isStopArmed = useStopKey(isRunning, stop);

  async function onSend(text, files) {
    if (editing) return branch(editing.before, text, files);
    await send({ session: key, text, files });
    stick.toBottom();
  }

  async function branch(before, text, files) {
    const branchKey = newKey();
    await send({ session: branchKey, text, files, branch_from: { session: key, before } });
    setEditing(null);
    go("chat", branchKey);
  }

  const channel = session.answersIn.value;
  const note = channel && t("answers_in", { channel: channelName(channel) });
  return html`<${DropTarget} addFiles=${addFiles} className="chat">
    <div class="scroll" ref=${scroller} onScroll=${stick.onScroll} tabindex="-1">
      <div class="column" ref=${stick.content}>
        <${Messages} session=${session} scroller=${scroller} onEdit=${setEditing} onBranch=${branch} />
      </div>
    </div>
    ${!stick.isAtBottom &&
    html`<button type="button" class="jump" onClick=${stick.toBottom}><${Icon} name="down" />${t("newest")}</button>`}
    <p class="stop-hint" role="status">${isStopArmed ? t("stop_again") : ""}</p>
    <p class="hidden" role="status" aria-live="polite">${isRunning ? "" : session.lastAnswer.value}</p>
    <${Composer} draftKey=${key} editing=${editing} isRunning=${isRunning} note=${note} addFiles=${addFiles}
      onCancelEdit=${() => setEditing(null)} onSend=${onSend} onStop=${stop} />
  <//>`;
}

function Messages({ session, scroller, onEdit, onBranch }) {
  const { entries, live, state, branchOf } = session;
  const liveIds = new Set(live.value.map((view) => view.turn_id));
  const shown = entries.value.filter((entry) => entry.kind === "user" || !liveIds.has(entry.turn_id));
  const lastTurn = shown.findLast((entry) => entry.kind === "turn");
  const lastUser = shown.findLast((entry) => entry.kind === "user" && Number.isInteger(entry.first));
  const own = outbox.value.filter((entry) => entry.session === session.key);

  function draw(entry) {
    if (entry.kind === "user") {
      const edit = () => onEdit({ before: entry.first, text: entry.text, files: entry.files ?? [] });
      const actions = html`<${CopyButton} text=${() => entry.text} />
        ${Number.isInteger(entry.first) && html`<${ActionButton} icon="edit" label=${t("edit")} onClick=${edit} />`}`;
      return html`<${UserMessage} entry=${entry} actions=${actions} />`;
    }
    const again = () => onBranch(lastUser.first, lastUser.text, lastUser.files ?? []);
    const actions = html`<${CopyButton} text=${() => answerOf(entry.parts)} />
      ${entry.turn_id && Number.isInteger(entry.first) &&
      html`<a class="action" href=${href("replay", `${entry.turn_id} ${session.key}`)} title=${t("view_replay")} aria-label=${t("view_replay")}><${Icon} name="clock" /></a>`}
      ${entry === lastTurn && lastUser && !live.value.length &&
      html`<${ActionButton} icon="again" label=${t("again")} onClick=${again} />`}`;
    return html`<${TurnMessage} parts=${entry.parts} result=${session.results[entry.turn_id]} actions=${actions} />`;
  }

  if (state.value === "loading") return null;
  if (state.value === "failed") {
    return html`<p class="empty">${t("not_loaded")}
      <button type="button" onClick=${() => session.load()}>${t("try_again")}</button></p>`;
  }
  return html`<${Older} session=${session} scroller=${scroller} />
    ${branchOf.value &&
    html`<p class="notice"><${Icon} name="branch" /> <a href=${href("chat", branchOf.value)}>${t("branch_of", { title: titleOf(branchOf.value) })}</a></p>`}
    <${History} entries=${shown} draw=${draw} mark=${`${lastTurn?.id} ${live.value.length}`} scroller=${scroller} />
    ${live.value.map(
      (view, at) => html`<${LiveTurn} key=${view.turn_id} session=${session} view=${view} isFirst=${at === 0} />`,
    )}
    ${own.map((entry) => html`<${Waiting} key=${entry.id} entry=${entry} />`)}
    ${!shown.length && !live.value.length && !own.length && html`<p class="empty">${t("no_messages")}</p>`}`;
}

function titleOf(key) {
  return sessions.value.find((session) => session.key === key)?.title || key;
}

/** Loads older messages when it comes near the screen. */
function Older({ session, scroller }) {
  const mark = useRef(null);
  const before = useRef(null);
  useEffect(() => {
    let isNear = false;
    let isLoading = false;
    async function load() {
      if (isLoading) return;
      isLoading = true;
      while (isNear && session.hasOlder.value && !session.isClosed) {
        const { scrollHeight, scrollTop } = scroller.current;
        before.current = scrollHeight - scrollTop;
        const isLoaded = await session.loadOlder().then(() => true, () => false);
        await new Promise((resolve) => setTimeout(resolve, isLoaded ? DRAWN_MS : RETRY_MS));
      }
      isLoading = false;
    }
    const observer = new IntersectionObserver(
      (changes) => {
        isNear = changes.at(-1).isIntersecting;
        load();
      },
      { root: scroller.current, rootMargin: "800px 0px" },
    );
    observer.observe(mark.current);
    return () => ((isNear = false), observer.disconnect());
  }, []);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (before.current !== null && box.scrollTop < 2) box.scrollTop = box.scrollHeight - before.current;
    before.current = null;
  }, [session.entries.value[0]?.id]);
  return html`<div ref=${mark} class="older">${session.hasOlder.value ? t("loading") : ""}</div>`;
}

/** A running turn, or one that waits behind it. */
function LiveTurn({ session, view, isFirst }) {
  session.beat.value; // draws again with each event
  const stored = session.entries.value.filter((entry) => entry.turn_id === view.turn_id);
  const isAsked = !stored.some((entry) => entry.kind === "user");
  const parts = mergeParts(stored.flatMap((entry) => (entry.kind === "turn" ? entry.parts : [])), view.parts);
  const isWaiting = !isFirst && parts.every((part) => part.type === "notice");
  const entry = { ...view.started, timestamp: view.started.at };
  return html`${isAsked && entry.text !== undefined && html`<div class="entry"><${UserMessage} entry=${entry} note=${isWaiting && t("queued")} /></div>`}
    ${!isWaiting &&
    html`<div class="entry"><${TurnMessage} parts=${parts} isLive=${true} /><${Activity} parts=${parts} seq=${view.seq} /></div>`}`;
}

/** How long there was nothing to see. */
function Activity({ parts, seq }) {
  const [silent, setSilent] = useState(0);
  useEffect(() => {
    const since = Date.now();
    setSilent(0);
    const timer = setInterval(() => setSilent(Math.round((Date.now() - since) / 1000)), 1000);
    return () => clearInterval(timer);
  }, [seq]);
  const last = parts.at(-1);
  if (last?.type === "approval" && !last.answer) return html`<p class="activity" role="status">${t("waits_for_you")}</p>`;
  const word = last?.type === "tool" && last.ok === undefined ? t("working") : t("waiting_for_model");
  return html`<p class="activity"><span class="pulse" aria-hidden="true"></span>${silent >= ACTIVITY_S ? `${word}, ${t("seconds", { n: silent })}` : ""}</p>`;
}

/** A message that the agent has not got yet. */
function Waiting({ entry }) {
  const isFailed = entry.state === "failed";
  const note = isFailed ? html`<span class="error">${entry.error || t("not_sent")}</span>` : t(`outbox_${entry.state}`);
  const actions = isFailed
    ? html`<button type="button" class="quiet" onClick=${() => retry(entry)}>${t("try_again")}</button>
        <button type="button" class="quiet" onClick=${() => discard(entry.id)}>${t("discard")}</button>`
    : null;
  return html`<div class="entry"><${UserMessage} entry=${entry} note=${note} actions=${actions} /></div>`;
}

/**
 * Keeps the newest message in sight, unless the reader has scrolled up. A change of the content scrolls too, so a scroll
 * just after one counts only if a hand was at work.
 */
function useStickToBottom(scroller) {
  const [isAtBottom, setAtBottom] = useState(true);
  const content = useRef(null);
  const state = useRef({ isWanted: true, changedAt: 0, touchedAt: 0 }).current;
  const toBottom = () => {
    if (!scroller.current) return;
    state.isWanted = true;
    scroller.current.scrollTop = scroller.current.scrollHeight;
  };
  useEffect(() => {
    const sizes = new ResizeObserver(() => state.isWanted && toBottom());
    sizes.observe(content.current);
    sizes.observe(scroller.current);
    const changes = new MutationObserver(() => (state.changedAt = performance.now()));
    changes.observe(content.current, { subtree: true, childList: true, characterData: true, attributes: true });
    const touch = () => (state.touchedAt = performance.now());
    for (const name of HANDS) scroller.current.addEventListener(name, touch, { passive: true });
    return () => (sizes.disconnect(), changes.disconnect());
  }, []);
  const onScroll = () => {
    if (!scroller.current) return; // a late event of a chat that was left
    const { scrollHeight, scrollTop, clientHeight } = scroller.current;
    const isNear = scrollHeight - scrollTop - clientHeight < BOTTOM_PX;
    const now = performance.now();
    if (isNear) state.isWanted = true;
    else if (now - state.touchedAt < TOUCH_MS || now - state.changedAt > CHANGE_MS) state.isWanted = false;
    setAtBottom(isNear || state.isWanted);
  };
  return { content, isAtBottom, onScroll, toBottom };
}

/** Escape twice stops. */
function useStopKey(isRunning, stop) {
  const [isArmed, setArmed] = useState(false);
  useEffect(() => {
    if (!isRunning) return setArmed(false);
    let timer = 0;
    const onKeyDown = (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (timer) stop();
      clearTimeout(timer);
      timer = setTimeout(() => ((timer = 0), setArmed(false)), STOP_AGAIN_MS);
      setArmed(true);
    };
    addEventListener("keydown", onKeyDown);
    return () => (removeEventListener("keydown", onKeyDown), clearTimeout(timer));
  }, [isRunning]);
  return isArmed;
}

/** Files dropped here become attachments. */
function DropTarget({ addFiles, className, children }) {
  const [isOver, setOver] = useState(false);
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) addFiles.current(event.dataTransfer.files);
  };
  const onDragOver = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    setOver(true);
  };
  return html`<div class=${className} onDrop=${onDrop} onDragOver=${onDragOver} onDragLeave=${() => setOver(false)}>
    ${children}${isOver && html`<div class="drop-hint">${t("drop_here")}</div>`}
  </div>`;
}
