/** The navigation: views, and the sessions of all channels. */
import { useState } from "preact/hooks";
import { Icon, classes, html } from "../dom.js";
import { shortTime } from "../format.js";
import { href, route } from "../router.js";
import { channelName, isSidebarOpen, me, questions, running, sessions } from "../store.js";
import { VIEWS } from "../views.js";
import { language, setLanguage, t } from "../words.js";

export function Sidebar() {
  const [filter, setFilter] = useState("");
  const words = filter.trim().toLowerCase();
  const matches = (session) => `${session.title} ${session.key}`.toLowerCase().includes(words);
  const shown = words ? sessions.value.filter(matches) : sessions.value;
  const { view, rest } = route.value;
  const close = () => (isSidebarOpen.value = false);
  return html`<nav class=${classes("sidebar", isSidebarOpen.value && "open")} aria-label=${t("navigation")} onClick=${(event) => event.target.closest("a") && close()}>
    <header class="sidebar-head">
      <strong class="brand">${me.value.name}</strong>
      <a class="button" href=${href("chat")} title=${t("new_chat")} aria-label=${t("new_chat")}><${Icon} name="plus" /></a>
    </header>
    ${VIEWS.length > 1 &&
    html`<ul class="views">
      ${VIEWS.map(
        ({ name, icon }) => html`<li key=${name}><a href=${href(name)} aria-current=${name === view ? "page" : undefined}>
          <${Icon} name=${icon} />${t(`view_${name}`)}</a></li>`,
      )}
    </ul>`}
    <label class="filter"><${Icon} name="search" />
      <input type="search" placeholder=${t("filter")} aria-label=${t("filter")} value=${filter}
        onInput=${(event) => setFilter(event.currentTarget.value)} /></label>
    <ul class="sessions">
      ${shown.map((session) => html`<${SessionLink} key=${session.key} session=${session} isOpen=${view === "chat" && rest === session.key} />`)}
      ${!shown.length && html`<li class="empty">${words ? t("no_match") : t("no_sessions")}</li>`}
    </ul>
    <footer class="sidebar-foot">
      <button type="button" class="quiet" lang=${language === "zh" ? "en" : "zh"}
        onClick=${() => setLanguage(language === "zh" ? "en" : "zh")}>${t("other_language")}</button>
      <kbd>?</kbd>
    </footer>
  </nav>`;
}

function SessionLink({ session, isOpen }) {
  const isRunning = running.value.has(session.key);
  const isAsking = [...questions.value.values()].some((question) => question.session === session.key);
  return html`<li><a href=${href("chat", session.key)} aria-current=${isOpen ? "page" : undefined}>
    <span class="session-title" dir="auto">${session.title || session.key}</span>
    <span class="session-note">
      ${isRunning && html`<span class=${classes("dot", isAsking && "asking")} role="img" aria-label=${isAsking ? t("waits_for_you") : t("running")}></span>`}
      ${session.channel !== "web" && html`<span class="channel">${channelName(session.channel)}</span>`}
      <time datetime=${session.updated_at}>${shortTime(new Date(session.updated_at))}</time>
    </span>
  </a></li>`;
}
