/** The entries of a chat: what a person wrote, and what a turn did and answered. */
import { useState } from "preact/hooks";
import { Icon, classes, html } from "../dom.js";
import { dollars, time, tokens } from "../format.js";
import { Markdown } from "../markdown.js";
import { t } from "../words.js";
import { Approval } from "./approval.js";
import { Files } from "./files.js";
import { Notice, Reasoning, ToolStep } from "./steps.js";

export function UserMessage({ entry, note, actions }) {
  const at = entry.timestamp ?? entry.at;
  return html`<article class="message user">
    <h2 class="hidden">${t("you")}</h2>
    ${entry.origin && entry.origin !== "user" && entry.origin !== "cli" && html`<p class="origin">${entry.origin}</p>`}
    <div class="bubble">
      ${entry.text && html`<p class="own-text" dir="auto">${entry.text}</p>`}
      ${entry.files?.length > 0 && html`<${Files} files=${entry.files} />`}
      ${entry.transcripts?.map((text) => html`<p class="transcript" dir="auto">${text}</p>`)}
    </div>
    <div class="meta">
      ${actions}
      ${note || (at && html`<time datetime=${at}>${time(new Date(at))}</time>`)}
    </div>
  </article>`;
}

/** `isLive`: it still runs. `result`: its model and cost. */
export function TurnMessage({ parts, isLive = false, result, actions }) {
  const last = parts.length - 1;
  return html`<article class="message turn" aria-busy=${isLive}>
    <h2 class="hidden">${t("answer")}</h2>
    ${parts.map((part, index) => html`<${Part} key=${index} part=${part} isLive=${isLive} isLast=${index === last} />`)}
    ${!isLive && html`<div class="meta"><${Result} result=${result} />${actions}</div>`}
  </article>`;
}

function Part({ part, isLive, isLast }) {
  switch (part.type) {
    case "text":
      return part.text ? html`<${Markdown} text=${part.text} isDone=${!(isLive && isLast)} />` : null;
    case "reasoning":
      return html`<${Reasoning} part=${{ ...part }} isOpen=${isLive && isLast} />`;
    case "tool":
      return html`<${ToolStep} part=${{ ...part }} isLive=${isLive} />`;
    case "approval":
      return html`<${Approval} part=${{ ...part }} />`;
    case "notice":
      return part.kind === "receipt" ? null : html`<${Notice} part=${part} />`; // the message itself says that it waits
    case "files":
      return html`<${Files} files=${part.files} />`;
    case "error":
      return html`<p class="error" dir="auto">${part.text}</p>`;
    case "stopped":
      return html`<p class="notice">${t("stopped")}</p>`;
  }
  return null;
}

function Result({ result }) {
  if (!result?.model) return null;
  const sent = result.prompt_tokens ?? 0;
  const details = t("tokens_of", { sent: tokens(sent), answered: tokens(result.completion_tokens ?? 0) });
  return html`<span class="result" title=${details}>
    ${result.model}${typeof result.usd === "number" && result.usd > 0 ? ` · ${dollars(result.usd)}` : ""}
  </span>`;
}

/** The text of a turn's answer, for copying. */
export function answerOf(parts) {
  return parts.filter((part) => part.type === "text").map((part) => part.text).join("\n\n");
}

export function ActionButton({ icon, label, onClick, className }) {
  return html`<button type="button" class=${classes("quiet action", className)} title=${label} aria-label=${label} onClick=${onClick}>
    <${Icon} name=${icon} />
  </button>`;
}

export function CopyButton({ text }) {
  const [isCopied, setCopied] = useState(false);
  async function copy() {
    await navigator.clipboard.writeText(text());
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  }
  return html`<${ActionButton} icon=${isCopied ? "check" : "copy"} label=${isCopied ? t("copied") : t("copy")} onClick=${copy} />`;
}
