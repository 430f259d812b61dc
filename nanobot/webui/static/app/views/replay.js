/** A past turn step by step: times, tokens, cost, and what the model was sent. `rest`: its id, a space, the session. */
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { html } from "../dom.js";
import { dollars, moment, seconds, tokens } from "../format.js";
import { Markdown } from "../markdown.js";
import { newKey, send } from "../outbox.js";
import { ToolStep } from "../parts/steps.js";
import { Act, Page, Section, useData } from "../parts/view.js";
import { go, href } from "../router.js";
import { t } from "../words.js";

export default function Replay({ rest }) {
  const at = rest.indexOf(" ");
  const [turnId, key] = [rest.slice(0, at), rest.slice(at + 1)];
  return html`<${OneTurn} key=${rest} turnId=${turnId} sessionKey=${key} />`;
}

function OneTurn({ turnId, sessionKey }) {
  const path = `/api/sessions/${encodeURIComponent(sessionKey)}/turns/${encodeURIComponent(turnId)}`;
  const loaded = useData(path, ["turn_ended"]);
  const back = html`<p class="note"><a href=${href("chat", sessionKey)}>${t("back_to_chat")}</a></p>`;
  return html`<${Page} loaded=${loaded} tabs=${back}>${(turn) => html`<${Turn} turn=${turn} path=${path} sessionKey=${sessionKey} />`}<//>`;
}

function Turn({ turn, path, sessionKey }) {
  const facts = [
    [t("began"), moment(new Date(turn.at))], [t("outcome"), turn.outcome ?? t("running")], [t("model"), turn.model],
    [t("took"), turn.seconds !== null && seconds(turn.seconds)],
    [t("tokens"), sumOf(turn.usage)], [t("cost"), turn.cost_usd !== null && dollars(turn.cost_usd)], [t("error"), turn.error],
  ];
  const longest = Math.max(...turn.steps.flatMap((step) => [step.seconds ?? 0, ...step.calls.map((call) => call.seconds ?? 0)]), 0.001);
  return html`<blockquote class="asked-text" dir="auto">${turn.message}</blockquote>
    <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${turn.can_undo && html`<${Undo} path=${path} />`}
    ${turn.asked && html`<${Again} asked=${turn.asked} sessionKey=${sessionKey} />`}
    <${Section} title=${t("steps", { n: turn.steps.length })}>
      <ol class="timeline">${turn.steps.map((step, at) => html`<${Step} key=${at} step=${step} number=${at + 1} longest=${longest} />`)}</ol>
    <//>
    ${turn.notices.length > 0 && html`<${Section} title=${t("notices")}>${turn.notices.map((notice, at) => html`<p class="note" key=${at}>${notice.text ?? notice}</p>`)}<//>`}
    <${Sent} path=${path} />`;
}

/** Takes the changes of files back. What it says stays after there is nothing more to undo. */
function Undo({ path }) {
  const [report, setReport] = useState("");
  const undo = async () => setReport((await post(`${path}/undo`)).report);
  if (report) return html`<p class="report" role="status" dir="auto">${report}</p>`;
  return html`<div class="bar"><p class="note">${t("undo_hint")}</p><span class="gap"></span>
    <${Act} label=${t("undo_turn")} confirm=${t("sure_undo")} onAct=${undo} /></div>`;
}

/** Asks the same of another model, in a branch. */
function Again({ asked, sessionKey }) {
  const [model, setModel] = useState("");
  const { data } = useData("/api/models");
  async function run(event) {
    event.preventDefault();
    const key = newKey();
    await send({ session: key, text: asked.text, files: asked.files, branch_from: { session: sessionKey, before: asked.n, model: model.trim() } });
    go("chat", key);
  }
  return html`<form class="add" onSubmit=${run}>
    <label>${t("again_with")}<input type="text" required list="models" value=${model} placeholder=${t("model")} onInput=${(event) => setModel(event.currentTarget.value)} /></label>
    <datalist id="models">${data?.models.map((name) => html`<option value=${name} key=${name} />`)}</datalist>
    <div class="row-actions"><button type="submit">${t("again_run")}</button></div>
  </form>`;
}

function sumOf(usage) {
  const { prompt_tokens: sent, completion_tokens: answered, cached_tokens: cached } = usage ?? {};
  if (!sent) return "";
  const text = t("tokens_of", { sent: tokens(sent), answered: tokens(answered ?? 0) });
  return cached ? `${text}, ${t("from_cache", { share: `${Math.round((100 * cached) / sent)} %` })}` : text;
}

function Step({ step, number, longest }) {
  const notes = [
    step.seconds !== null && seconds(step.seconds), step.first_s !== null && t("first_word", { time: seconds(step.first_s) }),
    sumOf(step.usage), step.cost_usd !== null && dollars(step.cost_usd), step.finish,
  ].filter(Boolean);
  return html`<li>
    <div class="step-head"><strong>${t("model_call", { n: number })}</strong>
      <svg class="bar-line" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * (step.seconds ?? 0)) / longest} height="8" /></svg>
      <span class="row-notes">${notes.map((note) => html`<span key=${note}>${note}</span>`)}</span></div>
    ${step.reasoning && html`<details class="members"><summary>${t("thought")}</summary><${Markdown} text=${step.reasoning} isDone=${true} /></details>`}
    ${step.text && html`<${Markdown} text=${step.text} isDone=${true} />`}
    ${step.calls.map((call) => html`<${ToolStep} key=${call.id} part=${{ ...call, call_id: call.id, content: call.content ?? "" }} />
      ${call.asked && html`<p class="note">${t("asked_instead", { what: JSON.stringify(call.asked) })}</p>`}`)}
    ${step.heard.map((text, at) => html`<p class="note" key=${at} dir="auto">${t("joined", { text })}</p>`)}
  </li>`;
}

/** What the model was sent first; loaded when it is opened. */
function Sent({ path }) {
  const [isOpen, setOpen] = useState(false);
  return html`<${Section} title=${t("what_was_sent")}>
    <details class="members" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${t("show")}</summary>
      ${isOpen && html`<${Prompt} path=${`${path}/prompt`} />`}
    </details>
  <//>`;
}

function Prompt({ path }) {
  const { data, problem } = useData(path);
  if (problem) return html`<p class="error" role="alert">${problem}</p>`;
  if (!data) return html`<p class="empty">${t("loading")}</p>`;
  const parts = [
    [t("system_prompt"), data.system],
    [t("tools_sent", { n: data.tools.length }), data.tools.map((tool) => JSON.stringify(tool, null, 1)).join("\n\n")],
    ...data.messages.map((message) => [message.role, message.content || JSON.stringify(message.tool_calls, null, 1)]),
  ];
  return html`${parts.map(([name, text], at) => html`<details class="members" key=${at}>
    <summary>${name} <span class="note">${t("characters", { n: tokens((text ?? "").length) })}</span></summary><pre tabindex="0" class="sent">${text}</pre></details>`)}`;
}
