/** What the agent believes: facts with their sources, the changes, and the passes of Dream. */
import { useState } from "preact/hooks";
import { post, request } from "../api.js";
import { html } from "../dom.js";
import { dollars, moment } from "../format.js";
import { Diff } from "../parts/steps.js";
import { Act, Empty, Page, Row, Section, Tabs, useData } from "../parts/view.js";
import { href } from "../router.js";
import { t } from "../words.js";

const TOPICS = ["memory", "turn_ended"];

export default function Memory({ rest }) {
  const tabs = html`<${Tabs} label=${t("view_memory")}
    places=${["", "changes", "dreams"].map((part) => ({ view: "memory", rest: part, word: t(`memory_${part || "facts"}`) }))} />`;
  if (rest === "changes") return html`<${Changes} tabs=${tabs} />`;
  if (rest === "dreams") return html`<${Dreams} tabs=${tabs} />`;
  return html`<${Facts} tabs=${tabs} />`;
}

const factPath = (fact, action = "") => `/api/memory/facts/${encodeURIComponent(fact.id)}${action}`;

function Undo({ reload }) {
  return html`<${Act} label=${t("undo_last")} onAct=${async () => (await post("/api/memory/undo"), reload())} />`;
}

function Facts({ tabs }) {
  const loaded = useData("/api/memory", TOPICS);
  const [words, setWords] = useState("");
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ facts, state }) => {
      const found = facts.filter((fact) => `${fact.text} ${fact.heading}`.toLowerCase().includes(words.trim().toLowerCase()));
      const headings = [...new Set(found.map((fact) => fact.heading))];
      return html`<div class="bar">
          <input type="search" value=${words} placeholder=${t("search_facts")} aria-label=${t("search_facts")} onInput=${(event) => setWords(event.currentTarget.value)} />
          <${Undo} reload=${loaded.reload} />
        </div>
        <p class="note">${state}</p>
        ${!facts.length && html`<${Empty} title=${t("facts_empty")} hint=${t("facts_hint")} />`}
        ${headings.map(
          (heading) => html`<${Section} key=${heading} title=${heading || t("facts_other")}>
            <ul class="rows">
              ${found.filter((fact) => fact.heading === heading).map((fact) => html`<${Fact} key=${fact.file + fact.id} fact=${fact} reload=${loaded.reload} />`)}
            </ul>
          <//>`,
        )}
        ${words.trim() && html`<${Notes} query=${words.trim()} facts=${facts} />`}`;
    }}
  <//>`;
}

/** Lines of the other memory files that match. */
function Notes({ query, facts }) {
  const { data } = useData(`/api/memory/search?q=${encodeURIComponent(query)}`, TOPICS);
  const shown = data?.hits.filter((hit) => !facts.some((fact) => hit.text.includes(fact.text))) ?? [];
  if (!shown.length) return null;
  return html`<${Section} title=${t("in_notes")}>
    <ul class="rows">${shown.map((hit) => html`<${Row} key=${hit.file + hit.line} title=${hit.text} notes=${[`${hit.file}:${hit.line}`]} />`)}</ul>
  <//>`;
}

function Fact({ fact, reload }) {
  const [isEditing, setEditing] = useState(null);
  const act = (method, action, body) => async () => {
    await request(method, factPath(fact, action), body);
    setEditing(false);
    reload();
  };
  const { source } = fact;
  const notes = [
    fact.by && t(`by_${fact.by}`),
    fact.since && moment(new Date(fact.since)),
    source.session && html`<a href=${href("chat", source.session)}>${source.session}</a>`,
    source.provenance && t("came_from", { source: source.provenance }),
  ];
  if (isEditing) return html`<${EditFact} fact=${fact} onSave=${(text) => act("PUT", "", { text })()} onCancel=${() => setEditing(false)} />`;
  const actions = html`<${Act} icon="edit" label=${t("change")} name=${fact.text} isFocused=${isEditing === false} onAct=${() => setEditing(true)} />
    <${Act} icon="pin" label=${fact.pinned ? t("unpin") : t("pin")} name=${fact.text} onAct=${act("POST", fact.pinned ? "/unpin" : "/pin", {})} />
    ${!fact.pinned && html`<${Act} icon="close" label=${t("forget")} name=${fact.text} confirm=${t("sure_forget")} onAct=${act("DELETE", "")} />`}`;
  return html`<${Row} mark=${fact.pinned && "pinned"} title=${fact.text} notes=${notes} actions=${actions}>
    ${source.quote && html`<q class="quote" dir="auto">${source.quote}</q>`}<//>`;
}

function EditFact({ fact, onSave, onCancel }) {
  const [text, setText] = useState(fact.text);
  return html`<li class="row editing">
    <textarea rows="3" value=${text} maxlength="2000" aria-label=${t("fact")} onInput=${(event) => setText(event.currentTarget.value)}
      ref=${(box) => box && box !== document.activeElement && !box.dataset.seen && ((box.dataset.seen = "1"), box.focus())}></textarea>
    <div class="row-actions"><${Act} label=${t("save")} isPrimary onAct=${() => onSave(text.trim())} />
      <button type="button" onClick=${onCancel}>${t("cancel")}</button></div>
  </li>`;
}

function Changes({ tabs }) {
  const loaded = useData("/api/memory/changes", TOPICS);
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ changes }) => html`<div class="bar"><span class="gap"></span><${Undo} reload=${loaded.reload} /></div>
      ${!changes.length && html`<${Empty} title=${t("changes_empty")} />`}
      <ul class="rows">
        ${changes.map(
          (change) => html`<${Row} key=${change.number} title=${t(`by_${change.by}`)}
            notes=${[moment(new Date(change.at)), change.file, change.who, change.undoes !== null && t("undoes", { n: change.undoes }), `#${change.number}`]}>
            <${Lines} before=${change.removed} after=${change.added.map((fact) => fact.text)} /><//>`,
        )}
      </ul>`}
  <//>`;
}

function Lines({ before, after }) {
  const lines = [...before.map((text) => `- ${text}`), ...after.map((text) => `+ ${text}`)];
  return lines.length ? html`<div class="step-body"><${Diff} text=${lines.join("\n")} /></div>` : null;
}

function Dreams({ tabs }) {
  const loaded = useData("/api/memory/dreams", ["memory"]);
  const [report, setReport] = useState("");
  const dream = async () => {
    setReport((await post("/api/memory/dream")).report);
    loaded.reload();
  };
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ passes, active }) => html`<div class="bar"><p class="note">${t("dream_hint")}</p><span class="gap"></span>
        <${Act} label=${t("dream_now")} isPrimary onAct=${dream} /></div>
      ${report && html`<p class="report" role="status" dir="auto">${report}</p>`}
      ${!passes.length && html`<${Empty} title=${t("dreams_empty")} />`}
      <ul class="rows">
        ${passes.map((pass) => html`<${Pass} key=${pass.number} pass=${pass} isActive=${active.includes(pass.number)} reload=${loaded.reload} />`)}
      </ul>`}
  <//>`;
}

function Pass({ pass, isActive, reload }) {
  const notes = [
    moment(new Date(pass.at)), pass.reason, pass.model, pass.usd !== null && dollars(pass.usd),
    pass.bytes_before !== pass.bytes_after && t("bytes_change", { before: pass.bytes_before, after: pass.bytes_after }),
  ];
  const title = `${t("pass", { n: pass.number })}: ${t(`pass_${pass.outcome.replace(" ", "_")}`)}`;
  const takeBack = async () => (await post(`/api/memory/dreams/${pass.number}/restore`), reload());
  return html`<${Row} title=${title} notes=${notes}
    actions=${isActive && html`<${Act} label=${t("take_back")} name=${title} confirm=${t("sure_take_back")} onAct=${takeBack} />`}>
    ${pass.edits.map(
      (edit, at) => html`<div key=${at}>${edit.why && html`<p class="note" dir="auto">${edit.why}</p>`}
        <${Lines} before=${edit.before} after=${edit.after ? [edit.after] : []} /></div>`,
    )}
    ${pass.refused.map((text) => html`<p class="note" key=${text}>${text}</p>`)}<//>`;
}
