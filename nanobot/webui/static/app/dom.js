/** `html` makes Preact nodes from a template. */
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);

/** Whether the main pointer is a finger: Enter is then a new line, and a camera is likely. */
export const isTouch = matchMedia("(pointer: coarse)").matches;

export function classes(...names) {
  return names.filter(Boolean).join(" ");
}

/** An icon of 20 by 20, drawn with strokes. */
const ICONS = {
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4M4.5 9.5 10 4l5.5 5.5",
  stop: "M6 6h8v8H6z",
  clip: "m14.5 9.5-5 5a3.2 3.2 0 0 1-4.6-4.6l6-6a2.1 2.1 0 0 1 3 3l-6 6a1 1 0 0 1-1.5-1.5l5-5",
  camera: "M3 6.5h3l1.5-2h5l1.5 2h3v9H3zM10 13.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5",
  close: "m5 5 10 10M15 5 5 15",
  copy: "M7 7h9v9H7zM13 7V4H4v9h3",
  check: "m4 10.5 4 4 8-9",
  edit: "m4 16 .8-3.2L13 4.6a1.4 1.4 0 0 1 2 0l.4.4a1.4 1.4 0 0 1 0 2L7.2 15.2z",
  again: "M15.5 8A6 6 0 1 0 16 11M16 4v4h-4",
  down: "M10 4v11M5 10.5l5 5 5-5",
  file: "M5 3h6l4 4v10H5zM11 3v4h4",
  search: "M9 14.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11M13 13l4 4",
  branch: "M6 7v6M6 7a2 2 0 1 0 0-4 2 2 0 0 0 0 4M6 17a2 2 0 1 0 0-4 2 2 0 0 0 0 4M14 9a2 2 0 1 0 0-4 2 2 0 0 0 0 4M14 9c0 3-4 2.500-8 4.500",
  chat: "M3.500 4.500h13v9H9l-3.500 3v-3h-2z",
  alert: "M10 3 2.500 16.500h15zM10 8v4M10 14.200v.3",
  chevron: "m8 5 5 5-5 5",
  inbox: "M3.500 11 6 4.500h8l2.500 6.500v4.500h-13zM3.500 11H7l1.500 2h3L13 11h3.500",
  pulse: "M2.500 10.500h4l2-6 3.500 11 2-5h3.500",
  book: "M4 4.500c2-1 4.500-1 6 .5 1.500-1.500 4-1.500 6-.5v11c-2-1-4.500-1-6 .5-1.500-1.500-4-1.500-6-.5zM10 5v11",
  clock: "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14M10 6v4.200l3 1.800",
  flag: "M5 17V3.500h10l-2 3.500 2 3.500H5",
  bars: "M4 16.500v-5M10 16.500v-13M16 16.500v-8",
  sliders: "M3 6h7M14 6h3M12 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4M3 14h3M10 14h7M8 16a2 2 0 1 0 0-4 2 2 0 0 0 0 4",
  pin: "M7 3.500h6M8 3.500v5L5.500 12h9L12 8.500v-5M10 12v5",
  box: "M3 4h14v3.500H3zM4.500 7.500V16h11V7.500M8 10.500h4",
  more: "M5 10h.01M10 10h.01M15 10h.01",
};

/** A QR code, from its rows. */
export function QrCode({ rows, label }) {
  const path = rows.flatMap((row, y) => [...row].map((square, x) => (square === "1" ? `M${x + 2} ${y + 2}h1v1h-1z` : ""))).join("");
  return html`<svg class="qr" viewBox=${`0 0 ${rows.length + 4} ${rows.length + 4}`} role="img" aria-label=${label}><path d=${path} /></svg>`;
}

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
}
