/** The navigation: views, and the sessions of all channels. */
import { useState } from "preact/hooks";
import { Icon, classes, html } from "../dom.js";
import { shortTime } from "../format.js";
import { href, route } from "../router.js";
import { channelName, chosen, deleting, dialog, isSidebarOpen, me, questions, running, sessions, waiting } from "../store.js";
import { VIEWS } from "../views.js";
import { language, setLanguage, t } from "../words.js";

export function Sidebar() {
  const [filter, setFilter] = useState("");
  const words = filter.trim().toLowerCase();
  const matches = (session) => `${session.title} ${session.key}`.toLowerCase().includes(words);
  const kept = sessions.value.filter((session) => !deleting.value.has(session.name) && (!words || matches(session)));
  const shown = [...kept.filter((session) => session.pinned), ...kept.filter((session) => !session.pinned)];
  const { view, rest } = route.value;
  const place = VIEWS.find((each) => each.name === view)?.within ?? view;
  const close = () => (isSidebarOpen.value = false);
  return html`<nav class=${classes("sidebar", isSidebarOpen.value && "open")} aria-label=${t("navigation")} onClick=${(event) => event.target.closest("a") && close()}>
    <header class="sidebar-head">
      <strong class="brand">${me.value.name}</strong>
      <a class="button" href=${href("chat")} title=${t("new_chat")} aria-label=${t("new_chat")}><${Icon} name="plus" /></a>
    </header>
    ${VIEWS.length > 1 &&
    html`<ul class="views">
      ${VIEWS.filter(({ icon }) => icon).map(
        ({ name, icon }) => html`<li key=${name}><a href=${href(name)} aria-current=${name === place ? "page" : undefined}>
          <${Icon} name=${icon} />${t(`view_${name}`)}${name === "inbox" && waiting.value > 0 && html` <span class="count">${waiting.value}</span>`}</a></li>`,
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
      <a href=${href("chats")} aria-current=${view === "chats" ? "page" : undefined}>${t("view_chats")}</a>
      <button type="button" class="quiet" lang=${language === "zh" ? "en" : "zh"}
        onClick=${() => setLanguage(language === "zh" ? "en" : "zh")}>${t("other_language")}</button>
      <kbd>?</kbd>
    </footer>
  </nav>`;
}

function SessionLink({ session, isOpen }) {
  const isRunning = running.value.has(session.key);
  const isAsking = [...questions.value.values()].some((question) => question.session === session.key);
  const onMenu = (event) => {
    if (!session.name) return; // not stored yet
    event.preventDefault();
    chosen.value = session;
    dialog.value = "session";
  };
  return html`<li class="session" onContextMenu=${onMenu}><a href=${href("chat", session.key)} aria-current=${isOpen ? "page" : undefined}>
    <span class="session-title" dir="auto">${session.title || session.key}</span>
    <span class="session-note">
      ${isRunning && html`<span class=${classes("dot", isAsking && "asking")} role="img" aria-label=${isAsking ? t("waits_for_you") : t("running")}></span>`}
      ${session.pinned && html`<span class="pinned"><${Icon} name="pin" /><span class="hidden">${t("pinned")}</span></span>`}
      ${session.channel !== "web" && html`<span class="channel">${channelName(session.channel)}</span>`}
      <time datetime=${session.updated_at}>${shortTime(new Date(session.updated_at))}</time>
    </span>
  </a>
  ${session.name && html`<button type="button" class="quiet more" aria-haspopup="dialog" aria-label=${t("session_menu_of", { title: session.title || session.key })} onClick=${onMenu}>
    <${Icon} name="more" /></button>`}</li>`;
}
