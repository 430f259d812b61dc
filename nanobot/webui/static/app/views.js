/**
 * The views of the page. A view is a module of views/ whose default export is a component; it gets `rest`, the part of
 * the address after its name. Others than the chat are loaded when they are opened. The navigation shows those with an
 * icon, and marks the one that `within` names. Its label is the word `view_NAME`.
 */
import * as chat from "./views/chat.js";

/** Loads a view with the style of views. */
function opener(name) {
  return async () => (await Promise.all([import(`./views/${name}.js`), loadStyle()]))[0];
}

let style = null;

function loadStyle() {
  style ??= new Promise((resolve, reject) => {
    const base = document.querySelector('meta[name="base"]').content;
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${base}/style/views.css` });
    link.onload = resolve;
    link.onerror = () => ((style = null), reject(new Error(link.href)));
    document.head.append(link);
  });
  return style;
}

export const VIEWS = [
  { name: "chat", icon: "chat", load: async () => chat },
  { name: "inbox", icon: "inbox", load: opener("inbox") },
  { name: "now", icon: "pulse", load: opener("now") },
  { name: "memory", icon: "book", load: opener("memory") },
  { name: "jobs", icon: "clock", load: opener("jobs") },
  { name: "goals", icon: "flag", load: opener("goals") },
  { name: "usage", icon: "bars", load: opener("usage") },
  { name: "settings", icon: "sliders", load: opener("settings") },
  { name: "channels", within: "settings", load: opener("channels") },
  { name: "abilities", within: "settings", load: opener("abilities") },
  { name: "people", within: "settings", load: opener("people") },
  { name: "doctor", within: "settings", load: opener("doctor") },
  { name: "chats", load: opener("chats") },
  { name: "replay", load: opener("replay") },
];
