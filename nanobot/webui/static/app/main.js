/** The page: signs in, starts the feed, and shows the view that the address names. */
import { effect } from "@preact/signals";
import { render } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { get, isSignedIn, keyOf, signIn } from "./api.js";
import { Icon, html } from "./dom.js";
import { isOnline, startFeed } from "./feed.js";
import { listenToKeys } from "./keys.js";
import { startOutbox } from "./outbox.js";
import { Sidebar } from "./parts/sidebar.js";
import { go, route } from "./router.js";
import { deleting, dialog, isSidebarOpen, loadSessions, me, running, sessions, watchInbox, watchSessions } from "./store.js";
import { VIEWS } from "./views.js";
import { loadWords, t } from "./words.js";

let linkProblem = "";

function App() {
  if (isSignedIn.value === false) return html`<${Later} load=${() => import("./parts/sign_in.js")} problem=${linkProblem} />`;
  if (me.value === null) return isOnline.value ? null : html`<p class="banner" role="status">${t("offline")}</p>`;
  const { rest } = route.value;
  const { name: view, load } = VIEWS.find((each) => each.name === route.value.view) ?? VIEWS[0];
  const title = view === "chat" ? titleOf(rest) : t(`view_${view}`);
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>${t("skip")}</a>
    <div class="page">
      <${Sidebar} />
      <button type="button" class="backdrop" tabindex="-1" aria-label=${t("close")} onClick=${() => (isSidebarOpen.value = false)}></button>
      <main id="main" tabindex="-1">
        <div class="progress" hidden=${!(view === "chat" && running.value.has(rest))}></div>
        <header class="top">
          <button type="button" class="quiet menu-button" aria-label=${t("navigation")} aria-expanded=${isSidebarOpen.value}
            onClick=${() => (isSidebarOpen.value = !isSidebarOpen.value)}><${Icon} name="menu" /></button>
          <h1 dir="auto">${title}</h1>
        </header>
        ${!isOnline.value && html`<p class="banner" role="status">${t("offline")}</p>`}
        <${Later} key=${view} load=${load} rest=${rest} />
      </main>
    </div>
    ${dialog.value && html`<${Later} load=${() => import("./parts/dialogs.js")} />`}
    ${deleting.value.size > 0 && html`<${Later} load=${() => import("./parts/deleting.js")} />`}`;
}

function titleOf(key) {
  return (key && sessions.value.find((session) => session.key === key)?.title) || t("new_chat");
}

/** The component of a module that is loaded when it is first shown. */
function Later({ load, ...properties }) {
  const [component, setComponent] = useState(null);
  const [problem, setProblem] = useState(false);
  const [crash] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    load().then((loaded) => setComponent(() => loaded.default), () => setProblem(true));
  }, []);
  if (crash || problem) {
    return html`<p class="empty">${t("view_failed")} <button type="button" onClick=${() => location.reload()}>${t("reload")}</button></p>`;
  }
  return component && html`<${component} ...${properties} />`;
}

async function start() {
  await loadWords();
  const key = keyOf(location.hash);
  if (key) {
    go("chat", "", { replace: true });
    linkProblem = await signIn(key);
  }
  listenToKeys();
  render(html`<${App} />`, document.getElementById("app"));
  await connect();
  effect(() => {
    if (isSignedIn.value && me.peek() === null) connect();
  });
}

const RETRY_MS = 2000;

/** Load what every view needs, and follow the feed from there. */
async function connect() {
  try {
    const answer = await get("/api/me");
    const position = await loadSessions();
    me.value = answer;
    isOnline.value = true;
    isSignedIn.value = true;
    startFeed(position);
    watchSessions(position);
    watchInbox();
    await startOutbox();
  } catch (error) {
    if (error.status === 401) return;
    isOnline.value = false;
    setTimeout(connect, RETRY_MS);
  }
}

start();
