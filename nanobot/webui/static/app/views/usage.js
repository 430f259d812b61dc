/** What was used and what it cost: by day, model, session or cause, with the limits. */
import { useState } from "preact/hooks";
import { html } from "../dom.js";
import { dollars, shortDay, tokens } from "../format.js";
import { Empty, Page, download, useData } from "../parts/view.js";
import { href } from "../router.js";
import { sessions } from "../store.js";
import { t } from "../words.js";

const GROUPS = ["day", "model", "session", "cause"];
const PERIODS = [7, 30, 90, 365];

export default function Usage({ rest }) {
  const [days, setDays] = useState(30);
  const by = GROUPS.includes(rest) ? rest : "day";
  const loaded = useData(`/api/usage?by=${by}&days=${days}`, ["turn_ended", "config"]);
  return html`<${Page} loaded=${loaded}>
    ${(report) => html`<div class="tiles">
        <${Tile} word=${t("today")} sum=${report.today} left=${report.limits.leftTodayUsd} limit=${report.limits.dailyUsd} />
        <${Tile} word=${t("this_month")} sum=${report.month} left=${report.limits.leftThisMonthUsd} limit=${report.limits.monthlyUsd} />
      </div>
      ${report.limits.dailyUsd === null && report.limits.monthlyUsd === null &&
      html`<p class="note">${t("no_limit")} <a href=${href("settings")}>${t("set_limit")}</a></p>`}
      <div class="bar">
        <nav class="tabs" aria-label=${t("group_by")}>
          ${GROUPS.map((each) => html`<a key=${each} href=${href("usage", each)} aria-current=${each === by ? "page" : undefined}>${t(`by_group_${each}`)}</a>`)}
        </nav>
        <span class="gap"></span>
        <select aria-label=${t("period")} value=${days} onChange=${(event) => setDays(Number(event.currentTarget.value))}>
          ${PERIODS.map((count) => html`<option key=${count} value=${count}>${t("last_days", { n: count })}</option>`)}
        </select>
        <button type="button" disabled=${!report.rows.length} onClick=${() => saveCsv(report)}>${t("csv")}</button>
      </div>
      ${report.rows.length ? html`<${Bars} report=${report} />` : html`<${Empty} title=${t("usage_empty")} hint=${t("usage_hint")} />`}`}
  <//>`;
}

function Tile({ word, sum, left, limit }) {
  return html`<section class="tile">
    <h2>${word}</h2>
    <p class="amount">${sum.usd === null ? t("price_unknown") : dollars(sum.usd)}</p>
    <p class="note">${t("tokens_and_calls", { sent: tokens(sum.prompt_tokens), answered: tokens(sum.completion_tokens), calls: sum.calls })}</p>
    <p class="note">${t("from_cache", { share: percent(sum.cached_share) })}</p>
    ${sum.unpriced > 0 && html`<p class="note">${t("unpriced", { n: sum.unpriced })}</p>`}
    ${limit > 0 && html`<meter min="0" max=${limit} high=${limit * 0.8} value=${limit - left} aria-label=${word}></meter>
      <p class="note">${t("left_of", { left: dollars(left), limit: dollars(limit) })}</p>`}
  </section>`;
}

const percent = (share) => `${Math.round(share * 100)} %`;

/** Bars by cost; by tokens where no price is known. */
function Bars({ report: { rows, by } }) {
  const isPriced = rows.some((row) => row.usd > 0);
  const valueOf = (row) => (isPriced ? (row.usd ?? 0) : row.prompt_tokens + row.completion_tokens);
  const most = Math.max(...rows.map(valueOf)) || 1;
  const shown = by === "day" ? rows.toReversed() : rows;
  return html`<table class="bars">
    <caption class="hidden">${t("view_usage")}</caption>
    <thead><tr><th scope="col">${t(`by_group_${by}`)}</th><td></td><th scope="col">${t("cost")}</th><th scope="col">${t("tokens")}</th><th scope="col">${t("cached")}</th></tr></thead>
    <tbody>
      ${shown.map((row) => html`<tr key=${row[by]}>
        <th scope="row" dir="auto">${nameOf(row[by], by)}</th>
        <td class="bar-cell"><svg class="bar-line" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * valueOf(row)) / most} height="8" /></svg></td>
        <td>${row.usd === null ? "–" : dollars(row.usd)}</td>
        <td>${tokens(row.prompt_tokens + row.completion_tokens)}</td>
        <td>${percent(row.cached_share)}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

function nameOf(name, by) {
  if (by === "day") return shortDay(new Date(`${name}T12:00`));
  const session = by === "session" && sessions.value.find((each) => each.key === name);
  return session ? html`<a href=${href("chat", name)}>${session.title || name}</a>` : name || "–";
}

function saveCsv({ rows, by }) {
  const names = Object.keys(rows[0]);
  const cell = (value) => {
    const text = String(value ?? "");
    const safe = /^[=+@-]/.test(text) ? `'${text}` : text; // a spreadsheet would run it
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = [names, ...rows.map((row) => names.map((name) => row[name]))].map((values) => values.map(cell).join(","));
  download(`usage-by-${by}.csv`, `${lines.join("\r\n")}\r\n`, "text/csv");
}
