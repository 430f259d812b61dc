/** The checks of `nanobot doctor`, with what each found and what helps. */
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { html } from "../dom.js";
import { CopyButton } from "../parts/message.js";
import { Act, Page, Row, Section, SettingsTabs } from "../parts/view.js";
import { t } from "../words.js";

const MARKS = { ok: "good", warning: "warn", error: "bad" };
const WORST_FIRST = ["error", "warning", "ok"];

/** A command in an advice: in backquotes, or at its end. */
const COMMAND = /`((?:nanobot|sudo|chmod) [^`]*)`|(?:^|: )((?:nanobot|sudo|chmod) [^`]+)$/g;

export default function Doctor() {
  const [report, setReport] = useState(null);
  const run = async () => {
    setReport(null);
    setReport(await post("/api/doctor"));
  };
  const fix = (id) => async () => {
    const { checks, repaired } = await post("/api/doctor", { fix: id });
    const again = new Map(checks.map((check) => [check.id, { ...check, repaired: repaired.map(({ done }) => done) }]));
    const merged = report.checks.map((check) => again.get(check.id) ?? check);
    setReport({ ...report, checks: merged, ok: merged.every((check) => check.verdict === "ok") });
  };
  return html`<${Page} loaded=${{ data: true, problem: "" }} tabs=${html`<${SettingsTabs} />`}>
    ${() => html`<div class="bar"><p class="note">${t("doctor_hint")}</p><span class="gap"></span>
        <${Act} label=${report ? t("check_again") : t("check_now")} isPrimary onAct=${run} /></div>
      <div role="status">${report && html`<p class="health">${report.ok ? t("doctor_ok") : t("doctor_not_ok")}</p>`}</div>
      ${report && WORST_FIRST.map((verdict) => html`<${Checks} key=${verdict} verdict=${verdict} checks=${report.checks.filter((check) => check.verdict === verdict)} fix=${fix} />`)}`}
  <//>`;
}

function Checks({ verdict, checks, fix }) {
  if (!checks.length) return null;
  return html`<${Section} title=${t(`verdict_${verdict}`)} note=${String(checks.length)}>
    <ul class="rows">
      ${checks.map(
        (check) => html`<${Row} key=${check.id} mark=${MARKS[check.verdict]} title=${check.about} notes=${[check.id]}
          actions=${check.findings.some((finding) => finding.fixable) && html`<${Act} label=${t("repair")} name=${check.id} onAct=${fix(check.id)} />`}>
          ${check.repaired?.map((text) => html`<p class="note" role="status" key=${text}>${text}</p>`)}
          ${check.findings.map((finding) => html`<${Finding} key=${finding.text} finding=${finding} />`)}<//>`,
      )}
    </ul>
  <//>`;
}

function Finding({ finding: { severity, text, advice } }) {
  const commands = [...advice.matchAll(COMMAND)].map((match) => match[1] ?? match[2]);
  return html`<p class=${severity === "error" ? "error" : "note"}>${text} ${!commands.includes(advice) && html`<span class="advice">${advice}</span>`}</p>
    ${commands.map((command) => html`<p class="command" key=${command}><code>${command}</code><${CopyButton} text=${() => command} /></p>`)}`;
}
