/** All chats: search over their messages, what is archived, and import. */
import { useRef, useState } from "preact/hooks";
import { request } from "../api.js";
import { html } from "../dom.js";
import { shortTime } from "../format.js";
import { newKey } from "../outbox.js";
import { deleteSoon, pathOf } from "../parts/deleting.js";
import { Act, Empty, Page, Row, Section, useData, useProblem } from "../parts/view.js";
import { go, href } from "../router.js";
import { channelName, deleting } from "../store.js";
import { t } from "../words.js";

const WAIT_MS = 250;

export default function Chats() {
  const loaded = useData("/api/sessions", ["sessions"]);
  const [words, setWords] = useState("");
  const [query, setQuery] = useState("");
  const timer = useRef(0);
  const onInput = (event) => {
    const text = event.currentTarget.value;
    setWords(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery(text.trim()), WAIT_MS);
  };
  return html`<${Page} loaded=${loaded}>
    ${({ sessions }) => html`
      <input type="search" class="wide" value=${words} placeholder=${t("search_messages")} aria-label=${t("search_messages")} onInput=${onInput} />
      ${query ? html`<${Hits} query=${query} sessions=${sessions} />` : html`<${Archived} sessions=${sessions} />`}`}
  <//>`;
}

function Hits({ query, sessions }) {
  const { data, problem } = useData(`/api/search?q=${encodeURIComponent(query)}`);
  if (problem) return html`<p class="error" role="alert">${problem}</p>`;
  if (!data) return html`<p class="empty">${t("loading")}</p>`;
  const find = (name) => sessions.find((session) => session.name === name);
  return html`<p class="note" role="status">${data.hits.length ? t("hits", { n: data.hits.length }) : t("no_hits")} ${data.is_loose && t("hits_loose")}</p>
    <ul class="rows">
      ${data.hits.map((hit, at) => {
        const session = find(hit.session);
        const title = session?.title || hit.session;
        const place = session && !session.archived ? html`<a href=${href("chat", session.key)} dir="auto">${title}</a>` : title;
        return html`<${Row} key=${at} title=${html`<span class="clipped">${around(hit.text, query)}</span>`} notes=${[place, hit.time]} />`;
      })}
    </ul>`;
}

/** The part of a text around the first of the words. */
function around(text, query) {
  const at = Math.max(0, ...query.split(/\s+/).map((word) => text.toLowerCase().indexOf(word.toLowerCase())));
  const start = at > 80 ? at - 60 : 0;
  return `${start ? "…" : ""}${text.slice(start, start + 260)}${text.length > start + 260 ? "…" : ""}`;
}

function Archived({ sessions }) {
  const archived = sessions.filter((session) => session.archived && !deleting.value.has(session.name));
  return html`<${Section} title=${t("archived")} actions=${html`<${Import} />`}>
    ${!archived.length && html`<${Empty} title=${t("archived_empty")} hint=${t("archived_hint")} />`}
    <ul class="rows">
      ${archived.map((session) => {
        const name = session.title || session.key;
        const notes = [channelName(session.channel), shortTime(new Date(session.updated_at)), t("messages", { n: session.messages })];
        const actions = html`<${Act} label=${t("bring_back")} name=${name} onAct=${() => bringBack(session)} />
          <a class="button" href=${pathOf(session, "/export?format=markdown")} download aria-label=${`${t("export_markdown")}: ${name}`}>${t("export")}</a>
          <${Act} icon="close" label=${t("delete")} name=${name} onAct=${() => deleteSoon(session)} />`;
        return html`<${Row} key=${session.name} title=${name} notes=${notes} actions=${actions} />`;
      })}
    </ul>
  <//>`;
}

/** Archived messages come back as a new chat of the page: their old key may have a session again. */
async function bringBack(session) {
  const stored = await fetch(pathOf(session, "/export?format=jsonl"));
  await load(await stored.blob(), session.title);
}

async function load(file, title) {
  const key = newKey();
  await request("POST", `/api/import?as=${encodeURIComponent(key)}`, file);
  if (title) await request("PATCH", pathOf({ name: key }), { title });
  go("chat", key);
}

function Import() {
  const picker = useRef(null);
  const [problem, attempt] = useProblem();
  function onChange(event) {
    const [file] = event.currentTarget.files;
    event.currentTarget.value = "";
    if (file) attempt(() => load(file, ""));
  }
  return html`<input ref=${picker} type="file" accept=".jsonl,.json" hidden aria-label=${t("import")} onChange=${onChange} />
    <button type="button" onClick=${() => picker.current.click()}>${t("import")}</button>
    ${problem}`;
}
