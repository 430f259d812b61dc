/** An approval question. All of it comes from the event's fields; what a model writes cannot look like it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../api.js";
import { Icon, html } from "../dom.js";
import { t } from "../words.js";
import { Arguments } from "./steps.js";

const DEAD_MS = 400;
const KEYS = { y: "once", n: "no", a: "always" };

export function Approval({ part }) {
  const [isReady, setReady] = useState(false);
  const [sent, setSent] = useState("");
  const [error, setError] = useState("");
  const card = useRef(null);
  const answer = part.answer ?? sent;
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), DEAD_MS); // no click by accident while the page moves
    return () => clearTimeout(timer);
  }, []);

  async function reply(value) {
    if (!isReady || answer) return;
    setError("");
    try {
      setSent((await post(`/api/approvals/${part.question}`, { answer: value })).answer);
    } catch (problem) {
      if (problem.status === 409) setSent(problem.body.answer ?? "expired");
      else setError(problem.message || t("offline"));
    }
  }

  function onKeyDown(event) {
    const value = KEYS[event.key];
    if (!value || event.ctrlKey || event.metaKey || event.altKey || (value === "always" && !part.may_always)) return;
    event.preventDefault();
    reply(value);
  }

  if (answer) {
    return html`<p class="answered ${answer}">
      <${Icon} name=${answer === "once" || answer === "always" ? "check" : "close"} />
      <span><strong>${part.name}</strong> ${t(`answer_${answer}`)}</span>
    </p>`;
  }
  const choices = ["once", ...(part.may_always ? ["always"] : []), "no"];
  return html`<section class="approval" aria-label=${t("approval")} tabindex="0" ref=${card} onKeyDown=${onKeyDown}>
    <h3><${Icon} name="alert" />${t("approval_title", { name: part.name })}</h3>
    <${Arguments} values=${part.arguments} isWhole=${true} />
    ${part.reaches?.length > 0 &&
    html`<p class="approval-note">${t("approval_reaches", { what: part.reaches.join(", ") })}</p>`}
    ${part.source && html`<p class="approval-note">${t("approval_source", { source: part.source })}</p>`}
    <div class="approval-buttons">
      ${choices.map(
        (choice) => html`<button type="button" class=${choice === "once" ? "primary" : ""} key=${choice}
          aria-disabled=${!isReady} onClick=${() => reply(choice)}>${t(`choice_${choice}`)}</button>`,
      )}
    </div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </section>`;
}
