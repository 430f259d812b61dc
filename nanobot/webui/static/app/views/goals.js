/** Goals: how far each is, what it used, and what holds it up. */
import { html } from "../dom.js";
import { dollars, moment } from "../format.js";
import { Empty, Page, Row, Section, useData } from "../parts/view.js";
import { href } from "../router.js";
import { t } from "../words.js";

const OPEN = ["active", "asking", "waiting"];
const MARKS = { active: "busy", asking: "warn", waiting: "warn", done: "good", limit: "bad", dropped: "bad", stopped: "off" };

export default function Goals() {
  const loaded = useData("/api/goals", ["turn_ended", "turn_started", "inbox"]);
  return html`<${Page} loaded=${loaded}>
    ${({ goals }) => {
      const newest = goals.toSorted((one, other) => other.created_at - one.created_at);
      const open = newest.filter((goal) => OPEN.includes(goal.state));
      const over = newest.filter((goal) => !OPEN.includes(goal.state));
      return html`${!goals.length && html`<${Empty} title=${t("goals_empty")} hint=${t("goals_hint")} />`}
        ${open.length > 0 && html`<${Section} title=${t("goals_open")}><ul class="rows">${open.map((goal) => html`<${Goal} key=${goal.id} goal=${goal} />`)}</ul><//>`}
        ${over.length > 0 && html`<${Section} title=${t("goals_over")}><ul class="rows">${over.map((goal) => html`<${Goal} key=${goal.id} goal=${goal} />`)}</ul><//>`}`;
    }}
  <//>`;
}

function Goal({ goal }) {
  const { limits, note } = goal;
  const notes = [
    t(`goal_${goal.state}`), goal.why, t("steps_of", { n: goal.steps, limit: limits.steps }),
    t("cost_of", { cost: dollars(goal.cost_usd ?? 0), limit: dollars(limits.usd) }), moment(new Date(goal.created_at * 1000)),
  ];
  const progress = [[t("goal_done_part"), note.done], [t("goal_doing"), note.doing], [t("goal_following"), note.following]].filter(([, text]) => text);
  return html`<${Row} mark=${MARKS[goal.state]} title=${goal.text} notes=${notes}
    actions=${html`<a class="button" href=${href("chat", goal.session_key)} aria-label=${`${t("open_chat")}: ${goal.text}`}>${t("open_chat")}</a>`}>
    <meter min="0" max=${limits.steps} high=${limits.steps * 0.8} value=${goal.steps} aria-label=${t("steps_of", { n: goal.steps, limit: limits.steps })}></meter>
    ${progress.length > 0 && html`<dl class="facts">${progress.map(([name, text]) => html`<div key=${name}><dt>${name}</dt><dd dir="auto">${text}</dd></div>`)}</dl>`}
    ${goal.objections && html`<p class="note" dir="auto">${t("objections")} ${goal.objections}</p>`}<//>`;
}
