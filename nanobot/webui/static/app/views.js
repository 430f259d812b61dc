/**
 * The views of the page. A view is a module of views/ whose default export is a component; it gets `rest`, the part of
 * the address after its name. Others than the chat are loaded when they are opened. The navigation shows those with an
 * icon, and marks the one that `within` names. Its label is the word `view_NAME`.
 */
import * as chat from "./views/chat.js";

export const VIEWS = [
  { name: "chat", icon: "chat", load: async () => chat },
  { name: "inbox", icon: "inbox", load: () => import("./views/inbox.js") },
  { name: "now", icon: "pulse", load: () => import("./views/now.js") },
  { name: "memory", icon: "book", load: () => import("./views/memory.js") },
  { name: "jobs", icon: "clock", load: () => import("./views/jobs.js") },
  { name: "goals", icon: "flag", load: () => import("./views/goals.js") },
  { name: "usage", icon: "bars", load: () => import("./views/usage.js") },
  { name: "settings", icon: "sliders", load: () => import("./views/settings.js") },
  { name: "channels", within: "settings", load: () => import("./views/channels.js") },
  { name: "abilities", within: "settings", load: () => import("./views/abilities.js") },
  { name: "people", within: "settings", load: () => import("./views/people.js") },
  { name: "doctor", within: "settings", load: () => import("./views/doctor.js") },
  { name: "chats", load: () => import("./views/chats.js") },
  { name: "replay", load: () => import("./views/replay.js") },
];
