/** Keys that work everywhere. */
import { go, route } from "./router.js";
import { dialog, sessions } from "./store.js";

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null;
}

export function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") dialog.value = "jump";
    else if (event.altKey && (event.key === "ArrowDown" || event.key === "ArrowUp")) step(event.key === "ArrowDown" ? 1 : -1);
    else if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    else if (event.key === "?") dialog.value = "keys";
    else if (event.key === "/") startCommand();
    else return;
    event.preventDefault();
  });
}

function step(by) {
  const keys = sessions.value.map((session) => session.key);
  const at = keys.indexOf(route.value.rest);
  const next = keys[Math.min(Math.max(at + by, 0), keys.length - 1)];
  if (next) go("chat", next);
}

function startCommand() {
  const box = document.querySelector(".composer textarea");
  if (!box) return;
  box.focus();
  if (!box.value) {
    box.value = "/";
    box.dispatchEvent(new Event("input", { bubbles: true }));
  }
}
