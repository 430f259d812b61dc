/** What can be done with a chat: rename, pin, archive, export, delete. */
import { useState } from "preact/hooks";
import { post, request } from "../api.js";
import { Icon, html } from "../dom.js";
import { chosen, dialog, loadSessions } from "../store.js";
import { t } from "../words.js";
import { deleteSoon, pathOf } from "./deleting.js";
import { Modal } from "./dialogs.js";
import { useProblem } from "./view.js";

export function SessionMenu() {
  const session = chosen.value;
  const [title, setTitle] = useState(session.title);
  const [problem, attempt] = useProblem();
  const close = () => (dialog.value = "");

  const act = (action) =>
    attempt(async () => {
      await action();
      await loadSessions();
      close();
    });
  const change = (changes) => act(() => request("PATCH", pathOf(session), changes));
  const rename = (event) => (event.preventDefault(), change({ title: title.trim() }));
  const remove = () => (deleteSoon(session), close());

  return html`<${Modal} label=${t("session_menu")}>
    <h2 dir="auto">${session.title || session.key}</h2>
    <form class="inline" onSubmit=${rename}>
      <input type="text" value=${title} maxlength="200" aria-label=${t("title")} onInput=${(event) => setTitle(event.currentTarget.value)} />
      <button type="submit">${t("rename")}</button>
    </form>
    <ul class="choices">
      <li><button type="button" onClick=${() => change({ pinned: !session.pinned })}><${Icon} name="pin" />${session.pinned ? t("unpin") : t("pin")}</button></li>
      <li><a class="button" href=${pathOf(session, "/export?format=markdown")} download onClick=${close}><${Icon} name="file" />${t("export_markdown")}</a></li>
      <li><a class="button" href=${pathOf(session, "/export?format=jsonl")} download onClick=${close}><${Icon} name="file" />${t("export_json")}</a></li>
      <li><button type="button" onClick=${() => act(() => post(pathOf(session, "/archive")))}><${Icon} name="box" />${t("archive")}</button></li>
      <li><button type="button" class="bad" onClick=${remove}><${Icon} name="close" />${t("delete")}</button></li>
    </ul>
    ${problem}
    <form method="dialog"><button type="submit">${t("close")}</button></form>
  <//>`;
}
