/** What a turn did on its way: tool calls, reasoning and notices, as quiet lines that open. */
import { useState } from "preact/hooks";
import { Icon, classes, html } from "../dom.js";
import { seconds } from "../format.js";
import { Markdown } from "../markdown.js";
import { t } from "../words.js";

const LONGEST = 20_000;
const DEEPEST = 8;
const LITERAL = /^$|^(true|false|null|-?\d[\d.eE+-]*|\[.*\]|\{.*\}|".*")$/s;

/** The first argument that says what a call is about. */
function objectOf(args) {
  const first = Object.values(args ?? {}).find((value) => typeof value === "string" || typeof value === "number");
  return String(first ?? "").trim().split("\n")[0].slice(0, 120);
}

/** A line that opens. Its content is made when it is opened. */
function Opening({ className, summary, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class=${className} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>${summary}<${Icon} name="chevron" /></summary>
    ${isOpen && html`<div class="step-body">${children()}</div>`}
  </details>`;
}

export function ToolStep({ part, isLive }) {
  const isRunning = part.ok === undefined && isLive;
  const state = isRunning ? "running" : part.ok === false ? "failed" : "done";
  const summary = html`<span class="step-mark" aria-hidden="true"></span>
    <span class="step-name">${part.name.replaceAll("_", " ")}</span>
    <span class="step-object">${objectOf(part.arguments)}</span>
    ${isRunning && html`<span class="step-note">${part.progress || t("running")}</span>`}
    ${part.ok === false && html`<span class="step-note">${t("failed")}</span>`}
    ${part.seconds >= 0.1 && html`<span class="step-time">${seconds(part.seconds)}</span>`}`;
  return html`<${Opening} className=${classes("step", state)} summary=${summary}>
    ${() => html`<${Arguments} values=${part.arguments} hasDiff=${isDiff(part.display)} />
      ${isDiff(part.display) && html`<${Diff} text=${part.display} />`}
      ${part.content && html`<p class="label">${t("output")}</p><pre tabindex="0">${clip(part.content)}</pre>`}`}
  <//>`;
}

/**
 * The arguments of a call; old and new text of an edit as a diff, unless there is a better one. `isWhole`: however long.
 */
export function Arguments({ values, hasDiff = false, isWhole = false }) {
  const { old_text: before, new_text: after, ...others } = values ?? {};
  const isEdit = typeof before === "string" && typeof after === "string";
  const diff = isEdit && [...lines("-", before), ...lines("+", after)].join("\n");
  const shown = Object.entries(isEdit ? others : (values ?? {}));
  const longest = isWhole ? Infinity : LONGEST;
  return html`${shown.length > 0 && html`<${Values} entries=${shown} longest=${longest} />`}
    ${isEdit && !hasDiff && html`<${Diff} text=${diff} longest=${longest} />`}`;
}

function Values({ entries, longest, depth = 0 }) {
  return html`<dl class="arguments">
    ${entries.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd><${Value} value=${value} longest=${longest} depth=${depth} /></dd></div>`)}
  </dl>`;
}

/** A value, readable and exact: a list as a list, an object by its keys, a text in quotes only where it could be something else. */
function Value({ value, longest, depth }) {
  const isNested = value !== null && typeof value === "object" && Object.keys(value).length > 0 && depth < DEEPEST;
  if (isNested && Array.isArray(value)) {
    return html`<ol class="values" start="1">${value.map((each, at) => html`<li key=${at}><${Value} value=${each} longest=${longest} depth=${depth + 1} /></li>`)}</ol>`;
  }
  if (isNested) return html`<${Values} entries=${Object.entries(value)} longest=${longest} depth=${depth + 1} />`;
  const isPlain = typeof value === "string" && value.trim() === value && !LITERAL.test(value);
  return clip(isPlain ? value : JSON.stringify(value), longest);
}

function lines(mark, text) {
  return text ? text.replace(/\n$/, "").split("\n").map((line) => mark + line) : [];
}

function isDiff(text) {
  return typeof text === "string" && /^[+-]/m.test(text);
}

export function Diff({ text, longest = LONGEST }) {
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  return html`<pre class="diff" tabindex="0">${clip(text, longest)
    .split("\n")
    .map((line) => html`<span class=${kinds[line[0]] ?? ""}>${line}${"\n"}</span>`)}</pre>`;
}

function clip(text, longest = LONGEST) {
  return text.length > longest ? `${text.slice(0, longest)}…` : text;
}

export function Reasoning({ part, isOpen }) {
  const summary = html`<span class="step-mark" aria-hidden="true"></span>
    <span class="step-name">${isOpen ? t("thinking") : t("thought")}</span>`;
  return html`<${Opening} className=${classes("step reasoning", isOpen ? "running" : "done")} summary=${summary}>
    ${() => html`<${Markdown} text=${part.text} isDone=${!isOpen} />`}
  <//>`;
}

export function Notice({ part }) {
  return html`<p class="notice" dir="auto">${part.text}</p>`;
}
