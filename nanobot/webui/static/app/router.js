/** The address: `#/VIEW/REST`. The part behind `#` is sent to nobody. */
import { signal } from "@preact/signals";

function read() {
  const [view, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { view: view || "chat", rest: decodeURIComponent(rest.join("/")) };
}

/** The open view and what it shows. */
export const route = signal(read());
addEventListener("hashchange", () => (route.value = read()));

export function href(view, rest = "") {
  return rest ? `#/${view}/${encodeURIComponent(rest)}` : `#/${view}`;
}

export function go(view, rest = "", { replace = false } = {}) {
  if (replace) history.replaceState(null, "", href(view, rest));
  else location.hash = href(view, rest);
  route.value = read();
}
