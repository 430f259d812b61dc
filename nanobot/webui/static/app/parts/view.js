/** What the views share: data that stays current, buttons that act, rows, and their frame. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { Icon, classes, html } from "../dom.js";
import { onChange } from "../feed.js";
import { href, route } from "../router.js";
import { t } from "../words.js";

const SURE_MS = 4000;
const DEAD_MS = 400;

/** The answer of a path, loaded anew when one of the topics changes, and every so many milliseconds while it is seen. */
export function useData(path, topics = [], everyMs = 0) {
  const [state, setState] = useState({ data: null, problem: "" });
  const reload = useRef(null);
  useEffect(() => {
    let isCurrent = true;
    reload.current = async () => {
      try {
        const data = await get(path);
        if (isCurrent) setState({ data, problem: "" });
      } catch (error) {
        if (isCurrent) setState((before) => ({ ...before, problem: error.message || t("offline_short") }));
      }
    };
    reload.current();
    const off = onChange(topics, () => reload.current());
    const timer = everyMs && setInterval(() => document.hidden || reload.current(), everyMs);
    return () => ((isCurrent = false), off(), clearInterval(timer));
  }, [path]);
  return { ...state, reload: () => reload.current() };
}

/** What went wrong, as an alert, and a function that runs an action and catches it. */
export function useProblem() {
  const [problem, setProblem] = useState("");
  async function attempt(action) {
    setProblem("");
    await action().catch((error) => setProblem(error.message || t("offline_short")));
  }
  return [problem && html`<p class="error" role="alert">${problem}</p>`, attempt];
}

/** The frame of a view. `children` draws the data of `loaded`, once it is there. */
export function Page({ loaded, tabs, children }) {
  return html`<div class="scroll">
    <div class="column view">
      ${tabs}
      ${loaded.problem &&
      html`<p class="error" role="alert">${loaded.problem} <button type="button" onClick=${loaded.reload}>${t("try_again")}</button></p>`}
      ${loaded.data ? children(loaded.data) : !loaded.problem && html`<p class="empty">${t("loading")}</p>`}
    </div>
  </div>`;
}

/** Links to the parts of a subject: `[{view, rest, word}]`. */
export function Tabs({ places, label }) {
  const here = href(route.value.view, route.value.rest);
  return html`<nav class="tabs" aria-label=${label}>
    ${places.map(({ view, rest = "", word }) => {
      const address = href(view, rest);
      return html`<a key=${address} href=${address} aria-current=${address === here ? "page" : undefined}>${word}</a>`;
    })}
  </nav>`;
}

export function SettingsTabs() {
  const places = ["settings", "channels", "abilities", "people", "doctor"].map((view) => ({ view, word: t(`view_${view}`) }));
  return html`<${Tabs} label=${t("view_settings")} places=${places} />`;
}

export function Section({ title, note, actions, children }) {
  return html`<section class="section">
    <header class="section-head"><h2>${title}</h2>${note && html`<span class="note">${note}</span>`}<span class="gap"></span>${actions}</header>
    ${children}
  </section>`;
}

/** A line of a list: what it is, what else there is to say, and what can be done. */
export function Row({ title, mark, notes = [], children, actions }) {
  const shown = notes.filter(Boolean);
  return html`<li class="row">
    <div class="row-body">
      <div class="row-title" dir="auto">${mark && html`<span class="mark ${mark}" aria-hidden="true"></span>`}${title}</div>
      ${shown.length > 0 && html`<div class="row-notes">${shown.map((note, at) => html`<span key=${at}>${note}</span>`)}</div>`}
      ${children}
    </div>
    ${actions && html`<div class="row-actions">${actions}</div>`}
  </li>`;
}

export function Empty({ title, hint }) {
  return html`<div class="nothing"><p>${title}</p>${hint && html`<p class="note">${hint}</p>`}</div>`;
}

/**
 * A button that acts, and says why it could not. `confirm`: it asks once more, with these words. `isGuarded`: it is
 * dead for a moment after it appears, so that no click meant for something else reaches it. `isFocused`: it takes the
 * focus when it appears, as after the form that it opened.
 */
export function Act({ label, onAct, icon, name, confirm, isPrimary, isGuarded, isFocused }) {
  const [state, setState] = useState("");
  const [problem, setProblem] = useState("");
  const isReady = useRef(!isGuarded);
  const [, setReady] = useState(!isGuarded);
  const isMounted = useRef(true);
  const button = useRef(null);
  useEffect(() => {
    if (isFocused) button.current.focus();
    const timer = setTimeout(() => ((isReady.current = true), setReady(true)), DEAD_MS);
    return () => ((isMounted.current = false), clearTimeout(timer));
  }, []);
  useEffect(() => {
    if (state !== "sure") return undefined;
    const timer = setTimeout(() => setState(""), SURE_MS);
    return () => clearTimeout(timer);
  }, [state]);

  async function onClick() {
    if (!isReady.current || state === "busy") return;
    if (confirm && state !== "sure") return setState("sure");
    setState("busy");
    setProblem("");
    try {
      await onAct();
    } catch (error) {
      if (isMounted.current) setProblem(error.message || t("offline_short"));
    }
    if (isMounted.current) setState("");
  }

  const isOnlyIcon = icon && state !== "sure";
  return html`<button type="button" ref=${button} class=${classes(isPrimary && "primary", icon && "quiet", state === "sure" && "sure")} onClick=${onClick}
      aria-disabled=${!isReady.current} aria-busy=${state === "busy"} title=${isOnlyIcon ? label : undefined}
      aria-label=${name ? `${state === "sure" ? confirm : label}: ${name}` : isOnlyIcon ? label : undefined}>
      ${isOnlyIcon ? html`<${Icon} name=${icon} />` : state === "sure" ? confirm : label}</button>
    ${problem && html`<span class="error" role="alert">${problem}</span>`}`;
}

/** Save a text as a file. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
