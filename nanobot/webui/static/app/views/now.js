/** What runs now: turns, channels, the next jobs, money, and the gateway itself. */
import { post, sessionPath } from "../api.js";
import { html } from "../dom.js";
import { dollars, duration, moment, size } from "../format.js";
import { Act, Page, Row, Section, useData } from "../parts/view.js";
import { href } from "../router.js";
import { channelName } from "../store.js";
import { t } from "../words.js";

const TOPICS = ["turn_started", "turn_ended", "jobs", "config"];
const EVERY_MS = 10_000;

export default function Now() {
  const loaded = useData("/api/now", TOPICS, EVERY_MS);
  return html`<${Page} loaded=${loaded}>${(data) => html`<${Overview} data=${data} />`}<//>`;
}

function Overview({ data: { report, turns, jobs, usage } }) {
  const { problems, channels, messages } = report;
  return html`
    <p class="health ${report.status}"><span class="mark ${problems.length ? "bad" : "good"}" aria-hidden="true"></span>
      ${problems.length ? t("problems", { n: problems.length }) : t("all_well")}</p>
    ${problems.length > 0 && html`<ul class="rows">${problems.map((text) => html`<${Row} key=${text} title=${text} />`)}</ul>`}
    <${Section} title=${t("running_turns")}>
      ${!turns.length && html`<p class="note">${t("nothing_runs")}</p>`}
      <ul class="rows">${turns.map((view) => html`<${Turn} key=${view.turn_id} view=${view} />`)}</ul>
    <//>
    <${Section} title=${t("view_channels")}>
      <ul class="rows">${Object.entries(channels).map(([name, status]) => html`<${Channel} key=${name} name=${name} status=${status} />`)}</ul>
    <//>
    <${Section} title=${t("next_jobs")}>
      ${!jobs.length && html`<p class="note">${t("no_jobs")} <a href=${href("jobs")}>${t("add_job")}</a></p>`}
      <ul class="rows">${jobs.map((job) => html`<${Row} key=${job.id} title=${job.name} notes=${[moment(new Date(job.next_ms))]} />`)}</ul>
    <//>
    <${Section} title=${t("spent")}>
      <ul class="rows">
        <${Spent} word=${t("today")} sum=${usage.today} left=${usage.limits.leftTodayUsd} limit=${usage.limits.dailyUsd} />
        <${Spent} word=${t("this_month")} sum=${usage.month} left=${usage.limits.leftThisMonthUsd} limit=${usage.limits.monthlyUsd} />
      </ul>
    <//>
    <${Section} title=${t("gateway")}>
      <dl class="facts">
        <div><dt>${t("version")}</dt><dd>${report.version}</dd></div>
        <div><dt>${t("uptime")}</dt><dd>${duration(report.uptimeS)}</dd></div>
        <div><dt>${t("messages_answered")}</dt><dd>${messages.answered} / ${messages.received}</dd></div>
        <div><dt>${t("undelivered")}</dt><dd>${report.deadLetters}</dd></div>
        ${report.diskFreeBytes !== null && html`<div><dt>${t("disk_free")}</dt><dd>${size(report.diskFreeBytes)}</dd></div>`}
        ${report.lastError && html`<div><dt>${t("last_error")}</dt><dd>${report.lastError}</dd></div>`}
      </dl>
      <details class="members"><summary>${t("members")}</summary>
        <ul class="rows">${Object.entries(report.members).map(([name, member]) => html`<${Member} key=${name} name=${name} member=${member} />`)}</ul>
      </details>
    <//>`;
}

function Turn({ view }) {
  const last = view.parts.at(-1);
  const doing = last?.type === "approval" && !last.answer ? t("waits_for_you") : last?.type === "tool" && last.ok === undefined ? last.name : t("waiting_for_model");
  return html`<${Row} mark="busy" title=${html`<a href=${href("chat", view.session)}>${view.started.text || view.session}</a>`}
    notes=${[channelName(view.channel), doing]}
    actions=${html`<${Act} label=${t("stop")} name=${view.started.text} onAct=${() => post(sessionPath(view.session, "stop"))} />`} />`;
}

const MARKS = { up: "good", connecting: "busy", off: "" };

function Channel({ name, status }) {
  const notes = [
    t(`channel_${status.state}`),
    status.silentS !== undefined && t("heard_ago", { time: duration(status.silentS) }),
    status.lastReceived && t("last_message", { time: moment(new Date(status.lastReceived)) }),
    status.lastError,
  ];
  return html`<${Row} mark=${MARKS[status.state] ?? "bad"} title=${channelName(name)} notes=${notes} />`;
}

function Spent({ word, sum, left, limit }) {
  const amount = sum.usd === null ? t("price_unknown") : dollars(sum.usd);
  const notes = [t("calls", { n: sum.calls }), limit !== null && t("left_of", { left: dollars(left), limit: dollars(limit) })];
  return html`<${Row} title=${`${word}: ${amount}`} notes=${notes}>
    ${limit > 0 && html`<meter min="0" max=${limit} high=${limit * 0.8} value=${limit - left} aria-label=${word}></meter>`}<//>`;
}

function Member({ name, member }) {
  const notes = [
    member.lastTickS !== null && t("ticked_ago", { time: duration(member.lastTickS) }),
    member.restarts > 0 && t("restarts", { n: member.restarts }),
    member.lastError,
  ];
  return html`<${Row} mark=${member.alive ? "good" : "bad"} title=${name} notes=${notes} />`;
}
