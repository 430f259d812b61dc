/** The dialog that sets a chat app up: a form, then the login while it happens, then how the chat app connects. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, stream } from "../api.js";
import { QrCode, html } from "../dom.js";
import { href } from "../router.js";
import { t } from "../words.js";
import { Modal } from "./dialogs.js";

/** How the states of a channel are marked; all others are bad. */
export const MARKS = { up: "good", connecting: "busy", off: "off" };

const LOOK_MS = 1000;
const NOTHING = { notes: [], shown: null, question: "", problem: "" };

export function ChannelLogin({ channel: { name, title, status }, reload, close }) {
  const path = `/api/channels/${name}`;
  const [form, setForm] = useState(null);
  const [given, setGiven] = useState({});
  const [phase, setPhase] = useState("form");
  const [login, setLogin] = useState(NOTHING);
  const abort = useRef(null);
  const load = () => get(`${path}/form`).then(setForm, (error) => setLogin({ ...NOTHING, problem: error.message || t("offline_short") }));
  useEffect(() => (load(), () => abort.current?.abort()), []); // closing ends the login
  useEffect(() => {
    if (phase !== "done" || status?.state === "up") return undefined;
    const timer = setInterval(reload, LOOK_MS);
    return () => clearInterval(timer);
  }, [phase, status?.state]);

  async function start(filled) {
    setPhase("busy");
    setLogin(NOTHING);
    abort.current = new AbortController();
    let end = { type: "error", text: t("offline_short") };
    try {
      for await (const event of stream(`${path}/login`, filled, abort.current.signal)) {
        if (event.type === "done" || event.type === "error") end = event;
        else setLogin((before) => after(before, event));
      }
    } catch (error) {
      if (abort.current.signal.aborted) return;
      end = { type: "error", text: error.message || t("offline_short") };
    }
    if (end.type === "error") {
      setLogin({ ...NOTHING, problem: end.text });
      setPhase("form");
    } else {
      await load();
      setPhase("done");
      reload();
    }
  }
  const answer = async (text) => {
    setLogin((before) => ({ ...before, question: "" }));
    await post(`${path}/answer`, { text });
  };

  return html`<${Modal} label=${t("connect_to", { title })} close=${close}>
    <div class="setup">
      <h2>${t("connect_to", { title })}</h2>
      ${!form && !login.problem && html`<p class="empty">${t("loading")}</p>`}
      ${form && phase === "form" && html`<${Form} form=${form} given=${given} setGiven=${setGiven} start=${start} problem=${login.problem} close=${close} />`}
      ${phase === "busy" && html`<${Progress} login=${login} answer=${answer} />`}
      ${phase === "done" && html`<${Done} form=${form} notes=${login.notes} status=${status} />`}
      ${(!form || phase !== "form") && html`<${Problem} text=${login.problem} />
        <p class="row-actions"><button type="button" onClick=${close}>${phase === "done" ? t("close") : t("cancel")}</button></p>`}
    </div>
  <//>`;
}

/** What is shown after an event: a code until the next one comes, or a note says that it was used. */
function after(before, event) {
  if (event.type === "question") return { ...before, question: event.text, shown: null };
  const isCode = event.qr.length > 0 || event.code;
  return { ...before, question: "", shown: isCode ? event : null, notes: isCode ? [] : [...before.notes, event] };
}

function Problem({ text }) {
  return text && html`<p class="error" role="alert" dir="auto">${text}</p>`;
}

function Form({ form, given, setGiven, start, problem, close }) {
  const read = (key) => (event) => setGiven({ ...given, [key]: event.currentTarget.value });
  const fill = (more) => {
    const { owner = "", phone = "", agrees = form.agreed, ...answers } = given;
    start({ answers, owner, phone, agrees, ...more });
  };
  const submit = (event) => {
    event.preventDefault();
    fill({});
  };
  const canType = form.fields.length > 0;
  const canStart = !form.missing_package && (canType || !form.signs_in);
  return html`<${Linked} text=${form.instructions} />
    ${form.signs_in && !form.missing_package && html`<p><button type="button" class="primary" onClick=${() => fill({ signs_in: true })}>${t("show_qr")}</button></p>`}
    <form onSubmit=${submit}>
      ${form.signs_in && canType && html`<p class="note">${t("or_type")}</p>`}
      ${form.fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${given[field.name]} onInput=${read(field.name)} />`)}
      ${form.links_account && html`<${Field} field=${{ name: "phone", label: t("link_by_phone"), hint: t("link_by_phone_hint"), optional: true }} value=${given.phone} onInput=${read("phone")} />`}
      ${form.owner && (canType || !form.signs_in) &&
      html`<${Field} field=${{ ...form.owner, name: "owner", optional: true }} value=${given.owner} onInput=${read("owner")} />`}
      ${form.consent && html`<label class="check"><input type="checkbox" checked=${given.agrees ?? form.agreed} onChange=${(event) => setGiven({ ...given, agrees: event.currentTarget.checked })} /><span>${form.consent}</span></label>`}
      <${Problem} text=${form.missing_package || problem} />
      <p class="row-actions">
        <button type="button" onClick=${close}>${t("cancel")}</button>
        ${canStart && problem && canType && html`<button type="button" onClick=${() => fill({ untested: true })}>${t("save_untested")}</button>`}
        ${canStart && html`<button type="submit" class=${form.signs_in ? "" : "primary"}>${form.links_account ? t("show_qr") : t("connect")}</button>`}
      </p>
    </form>`;
}

/** A field with where to get its value. What is set already need not be typed again; a secret never comes here. */
function Field({ field: { name, label, hint, secret, optional, is_set, value: current = "" }, value = current, onInput }) {
  const id = `field-${name}`;
  return html`<div class="field">
    <label for=${id}>${optional ? t("optional", { label }) : label}</label>
    <input id=${id} type=${secret ? "password" : "text"} autocomplete="off" spellcheck="false" value=${value} aria-describedby=${`${id}-hint`}
      placeholder=${secret && is_set ? t("secret_set") : undefined} onInput=${onInput} />
    <span class="note" id=${`${id}-hint`} dir="auto">${hint}</span>
  </div>`;
}

function Progress({ login: { notes, shown, question }, answer }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    answer(text);
    setText("");
  };
  return html`<div role="status">
      <${Notes} notes=${notes} />
      ${shown && html`<${Linked} text=${shown.text} />
        ${shown.qr.length > 0 && html`<${QrCode} rows=${shown.qr} label=${t("login_qr")} />`}
        ${shown.code && html`<p class="code">${shown.code}</p>`}
        <${Linked} text=${shown.link} />`}
      ${!question && html`<p class="note" aria-busy="true">${shown ? t("login_waits") : t("login_tries")}</p>`}
    </div>
    ${question && html`<form onSubmit=${send}>
      <${Field} field=${{ name: "answer", label: question }} value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <p class="row-actions"><button type="submit" class="primary">${t("send")}</button></p>
    </form>`}`;
}

function Done({ form, notes, status }) {
  const state = status?.state ?? "connecting";
  return html`<div role="status">
    <${Notes} notes=${notes} />
    <p><span class="mark ${MARKS[state] ?? "bad"}" aria-hidden="true"></span>${t(`channel_${state}`)}</p>
    ${status?.lastError && html`<p class="error" dir="auto">${status.lastError}</p>`}
    <p>${form.owner ? t("login_pairs", { step: form.first_step }) : t("login_knows_owner", { step: form.first_step })}</p>
    ${form.owner && html`<p><a href=${href("inbox")}>${t("view_inbox")}</a></p>`}
  </div>`;
}

function Notes({ notes }) {
  return notes.map((note, at) => html`<div key=${at}><${Linked} text=${note.text} />${note.code && html`<p class="code">${note.code}</p>`}<${Linked} text=${note.link} /></div>`);
}

/** A text of the gateway, whose addresses can be opened. */
function Linked({ text }) {
  if (!text) return null;
  const parts = text.split(/(https?:[/][/][^\s'"),;]*[^\s'"),;:.])/);
  return html`<p class="lines" dir="auto">
    ${parts.map((part, at) => (at % 2 ? html`<a key=${at} href=${part} target="_blank" rel="noopener noreferrer">${part}</a>` : part))}
  </p>`;
}
