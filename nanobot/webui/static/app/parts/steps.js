/** What a turn did on its way: tool calls, reasoning and notices, as quiet lines that open. */
import { useState } from "preact/hooks";
import { Icon, classes, html } from "../dom.js";
import { seconds } from "../format.js";
import { Markdown } from "../markdown.js";
import { t } from "../words.js";

const LONGEST = 20_000;

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

/** The arguments of a call; old and new text of an edit as a diff, unless there is a better one. */
export function Arguments({ values, hasDiff = false }) {
  const { old_text: before, new_text: after, ...others } = values ?? {};
  const isEdit = typeof before === "string" && typeof after === "string";
  const diff = isEdit && [...lines("-", before), ...lines("+", after)].join("\n");
  const shown = Object.entries(isEdit ? others : (values ?? {}));
  return html`${shown.length > 0 &&
    html`<dl class="arguments">
      ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${clip(display(value))}</dd></div>`)}
    </dl>`}
    ${isEdit && !hasDiff && html`<${Diff} text=${diff} />`}`;
}

function display(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function lines(mark, text) {
  return text ? text.replace(/\n$/, "").split("\n").map((line) => mark + line) : [];
}

function isDiff(text) {
  return typeof text === "string" && /^[+-]/m.test(text);
}

export function Diff({ text }) {
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  return html`<pre class="diff" tabindex="0">${clip(text)
    .split("\n")
    .map((line) => html`<span class=${kinds[line[0]] ?? ""}>${line}${"\n"}</span>`)}</pre>`;
}

function clip(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
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
