/** The checks of `nanobot doctor`, with what each found and what helps. */
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { html } from "../dom.js";
import { Act, Page, Row, Section, SettingsTabs } from "../parts/view.js";
import { t } from "../words.js";

const MARKS = { ok: "good", warning: "warn", error: "bad" };
const WORST_FIRST = ["error", "warning", "ok"];

export default function Doctor() {
  const [report, setReport] = useState(null);
  const run = async () => {
    setReport(null);
    setReport(await post("/api/doctor"));
  };
  return html`<${Page} loaded=${{ data: true, problem: "" }} tabs=${html`<${SettingsTabs} />`}>
    ${() => html`<div class="bar"><p class="note">${t("doctor_hint")}</p><span class="gap"></span>
        <${Act} label=${report ? t("check_again") : t("check_now")} isPrimary onAct=${run} /></div>
      <div role="status">${report && html`<p class="health">${report.ok ? t("doctor_ok") : t("doctor_not_ok")}</p>`}</div>
      ${report && WORST_FIRST.map((verdict) => html`<${Checks} key=${verdict} verdict=${verdict} checks=${report.checks.filter((check) => check.verdict === verdict)} />`)}`}
  <//>`;
}

function Checks({ verdict, checks }) {
  if (!checks.length) return null;
  return html`<${Section} title=${t(`verdict_${verdict}`)} note=${String(checks.length)}>
    <ul class="rows">
      ${checks.map(
        (check) => html`<${Row} key=${check.id} mark=${MARKS[check.verdict]} title=${check.about} notes=${[check.id]}>
          ${check.findings.map((finding) => html`<p class=${finding.severity === "error" ? "error" : "note"} key=${finding.text}>${finding.text} ${finding.advice && html`<span class="advice">${finding.advice}</span>`}</p>`)}<//>`,
      )}
    </ul>
  <//>`;
}
