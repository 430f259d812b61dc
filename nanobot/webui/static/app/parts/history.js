/** The stored messages of a session in chunks. Only chunks near the screen are drawn; others keep their height. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "../dom.js";
import { dayName } from "../format.js";

const CHUNK_ROWS = 30;
const NEAR = "1200px 0px";
const GUESSED_HEIGHT = 110;
const days = new WeakMap();

function dayOf(entry) {
  if (!days.has(entry)) {
    const at = entry.timestamp ?? entry.at;
    days.set(entry, at ? new Date(at).setHours(12, 0, 0, 0) : 0);
  }
  return days.get(entry);
}

/** Entries with the day that begins there, by chunk. A chunk without a change is the same object as before. */
function toChunks(entries, before) {
  const chunks = new Map();
  let day = 0;
  for (const entry of entries) {
    const id = Math.floor(entry.first / CHUNK_ROWS);
    if (!chunks.has(id)) chunks.set(id, []);
    chunks.get(id).push({ entry, day: dayOf(entry) && dayOf(entry) !== day ? dayOf(entry) : 0 });
    day = dayOf(entry) || day;
  }
  for (const [id, items] of chunks) {
    const old = before.get(id);
    const isSame = (item, at) => item.entry === old[at].entry && item.day === old[at].day;
    if (old?.length === items.length && items.every(isSame)) chunks.set(id, old);
  }
  return chunks;
}

/** `draw(entry)` returns a node; `mark` changes when all have to be drawn again. */
export function History({ entries, draw, mark, scroller }) {
  const kept = useRef(new Map());
  const chunks = (kept.current = toChunks(entries, kept.current));
  const newest = [...chunks.keys()].at(-1);
  return [...chunks].map(
    ([id, items]) => html`<${Chunk} key=${id} items=${items} draw=${draw} mark=${mark} scroller=${scroller} isNewest=${id === newest} />`,
  );
}

function Chunk({ items, draw, mark, scroller, isNewest }) {
  const box = useRef(null);
  const height = useRef(items.length * GUESSED_HEIGHT);
  const [isNear, setNear] = useState(isNewest);
  useEffect(() => {
    const observer = new IntersectionObserver(
      (changes) => {
        const { isIntersecting, boundingClientRect } = changes.at(-1);
        if (!isIntersecting && boundingClientRect.height) height.current = boundingClientRect.height;
        setNear(isIntersecting);
      },
      { root: scroller.current, rootMargin: NEAR },
    );
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    box.current.style.minHeight = isNear ? "" : `${height.current}px`;
  }, [isNear]);
  const drawn = useMemo(() => (isNear ? items.map((item) => drawItem(item, draw)) : null), [isNear, items, mark]);
  return html`<div class="chunk" ref=${box}>${drawn}</div>`;
}

function drawItem({ entry, day }, draw) {
  return [
    day > 0 && html`<div class="day" key=${`d${entry.id}`}><span>${dayName(new Date(day))}</span></div>`,
    html`<div class="entry" key=${entry.id}>${draw(entry)}</div>`,
  ];
}
