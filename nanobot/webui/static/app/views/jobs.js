/** Jobs and reminders: what there is, the month, what ran, and adding in words. */
import { useEffect, useRef, useState } from "preact/hooks";
import { post, request } from "../api.js";
import { classes, html } from "../dom.js";
import { dayName, dollars, duration, moment, monthName, time, weekdayNames } from "../format.js";
import { Act, Empty, Page, Row, Section, Tabs, useData, useProblem } from "../parts/view.js";
import { parseWhen } from "../when.js";
import { t } from "../words.js";

const TOPICS = ["jobs", "turn_ended"];

export default function Jobs({ rest }) {
  const tabs = html`<${Tabs} label=${t("view_jobs")}
    places=${["", "calendar", "history"].map((part) => ({ view: "jobs", rest: part, word: t(`jobs_${part || "list"}`) }))} />`;
  if (rest === "calendar") return html`<${Calendar} tabs=${tabs} />`;
  if (rest === "history") return html`<${Past} tabs=${tabs} />`;
  return html`<${List} tabs=${tabs} />`;
}

function List({ tabs }) {
  const loaded = useData("/api/jobs", TOPICS);
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ jobs }) => html`<${JobForm} onDone=${loaded.reload} />
      ${!jobs.length && html`<${Empty} title=${t("jobs_empty")} hint=${t("jobs_hint")} />`}
      <ul class="rows">${jobs.map((job) => html`<${Job} key=${job.id} job=${job} reload=${loaded.reload} />`)}</ul>`}
  <//>`;
}

/** Adds a job, or changes one: what is left empty stays. */
function JobForm({ job, onDone }) {
  const [message, setMessage] = useState(job?.payload.message ?? "");
  const [when, setWhen] = useState("");
  const [model, setModel] = useState(job?.model ?? "");
  const [problem, attempt] = useProblem();
  const first = useRef(null);
  useEffect(() => job && first.current.focus(), []);
  function save(event) {
    event.preventDefault();
    attempt(async () => {
      if (job) await request("PATCH", `/api/jobs/${job.id}`, { message: message.trim(), model: model.trim(), ...(when && parseWhen(when)) });
      else await post("/api/jobs", { message: message.trim(), ...parseWhen(when) });
      setMessage("");
      setWhen("");
      onDone();
    });
  }
  const field = (word, value, set, more = {}) => html`<label>${word}<input type="text" value=${value} onInput=${(event) => set(event.currentTarget.value)} ...${more} /></label>`;
  return html`<form class=${classes("add", job && "job")} onSubmit=${save}>
    ${field(t("job_what"), message, setMessage, { ref: first, required: true, placeholder: t("job_what_hint") })}
    ${field(t("job_when"), when, setWhen, { required: !job, placeholder: job?.schedule_text ?? t("job_when_hint") })}
    ${job && field(t("model"), model, setModel, { placeholder: t("model_default") })}
    <div class="row-actions"><button type="submit" class="primary">${job ? t("save") : t("add")}</button>
      ${job && html`<button type="button" onClick=${onDone}>${t("cancel")}</button>`}</div>
    ${problem}
  </form>`;
}

function Job({ job, reload }) {
  const [isEditing, setEditing] = useState(null);
  if (isEditing) return html`<li class="row editing"><${JobForm} job=${job} onDone=${() => (setEditing(false), reload())} /></li>`;
  const path = `/api/jobs/${job.id}`;
  const act = (method, action, body) => async () => (await request(method, path + action, body), reload());
  const [next] = job.next_runs_ms;
  const notes = [
    job.schedule_text,
    job.running ? t("running") : job.enabled ? next && t("next_at", { time: moment(new Date(next)) }) : t("paused"),
    job.payload.deliver && job.payload.channel && t("goes_to", { channel: job.payload.channel }),
    job.model,
    job.month.runs > 0 && costOf(job.month),
    job.state.lastError,
  ];
  const actions = html`<${Act} icon="edit" label=${t("change")} name=${job.name} isFocused=${isEditing === false} onAct=${() => setEditing(true)} />
    <${Act} label=${t("run_now")} name=${job.name} onAct=${act("POST", "/run", {})} />
    <${Act} label=${job.enabled ? t("pause") : t("resume")} name=${job.name} onAct=${act("PATCH", "", { enabled: !job.enabled })} />
    <${Act} icon="close" label=${t("remove")} name=${job.name} confirm=${t("sure_remove")} onAct=${act("DELETE", "")} />`;
  const mark = job.running ? "busy" : job.state.lastError ? "bad" : job.enabled ? "good" : "off";
  return html`<${Row} mark=${mark} title=${job.name} notes=${notes} actions=${actions}>
    ${job.payload.message !== job.name && html`<p class="note clipped" dir="auto">${job.payload.message}</p>`}<//>`;
}

function costOf({ runs, usd }) {
  if (usd === null) return t("runs_unpriced", { n: runs });
  return t("runs_cost", { n: runs, each: dollars(usd / runs), total: dollars(usd) });
}

const dayOf = (date) => date.toDateString();

function Calendar({ tabs }) {
  const [ahead, setAhead] = useState(0);
  const loaded = useData(`/api/jobs/calendar?days=${(ahead + 1) * 31 + 7}`, TOPICS);
  const now = new Date();
  const first = new Date(now.getFullYear(), now.getMonth() + ahead, 1);
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ runs }) => {
      const byDay = Map.groupBy(runs, (run) => dayOf(new Date(run.atMs)));
      const last = new Date(first.getFullYear(), first.getMonth() + 1, 1);
      const days = [...byDay.values()].filter(([run]) => run.atMs >= first && run.atMs < last);
      return html`<div class="bar">
          <button type="button" disabled=${ahead === 0} onClick=${() => setAhead(ahead - 1)} aria-label=${t("month_before")}>‹</button>
          <h2 aria-live="polite">${monthName(first)}</h2>
          <button type="button" disabled=${ahead === 11} onClick=${() => setAhead(ahead + 1)} aria-label=${t("month_after")}>›</button>
        </div>
        <${Month} first=${first} byDay=${byDay} />
        ${!days.length && html`<${Empty} title=${t("calendar_empty")} />`}
        ${days.map(
          (runsOfDay) => html`<${Section} key=${runsOfDay[0].atMs} title=${dayName(new Date(runsOfDay[0].atMs))}>
            <ul class="rows">
              ${runsOfDay.map((run) => {
                const notes = [run.remark, run.collidesWith?.length && t("collides", { names: run.collidesWith.join(", ") })];
                return html`<${Row} key=${run.atMs + (run.jobId ?? "")} title=${html`<time>${time(new Date(run.atMs))}</time> ${run.name ?? run.remark}`} notes=${run.name ? notes : []} />`;
              })}
            </ul>
          <//>`,
        )}`;
    }}
  <//>`;
}

function Month({ first, byDay }) {
  const start = new Date(first);
  start.setDate(1 - ((first.getDay() + 6) % 7)); // weeks begin on Monday
  const weeks = Array.from({ length: 6 }, (_, week) =>
    Array.from({ length: 7 }, (__, day) => new Date(start.getFullYear(), start.getMonth(), start.getDate() + week * 7 + day)),
  ).filter((week) => week.some((day) => day.getMonth() === first.getMonth()));
  return html`<table class="month">
    <thead><tr>${weekdayNames().map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>
      ${weeks.map(
        (week) => html`<tr key=${week[0]}>
          ${week.map((day) => {
            const isOther = day.getMonth() !== first.getMonth();
            const runs = isOther ? [] : (byDay.get(dayOf(day)) ?? []).filter((run) => run.name);
            const label = runs.length ? t("runs_on_day", { n: runs.length }) : undefined;
            return html`<td key=${day} class=${isOther ? "other" : dayOf(day) === dayOf(new Date()) ? "today" : ""}>
              <span class="day-number">${day.getDate()}</span>
              ${runs.length > 0 && html`<span class="hidden">${label}</span><span class="dots" aria-hidden="true">${runs.slice(0, 3).map((run, at) => html`<span key=${at}>${run.name}</span>`)}${runs.length > 3 && html`<span>+${runs.length - 3}</span>`}</span>`}
            </td>`;
          })}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

const MARKS = { ran: "good", failed: "bad", skipped: "off" };

function Past({ tabs }) {
  const loaded = useData("/api/jobs/history", TOPICS);
  return html`<${Page} loaded=${loaded} tabs=${tabs}>
    ${({ runs }) => html`${!runs.length && html`<${Empty} title=${t("history_empty")} />`}
      <ul class="rows">
        ${runs.map((run, at) => {
          const notes = [
            t(`run_${run.outcome}`), moment(new Date(run.runAtMs ?? run.dueAtMs)),
            run.durationMs && duration(run.durationMs / 1000),
            run.lateMs > 60_000 && t("late", { time: duration(run.lateMs / 1000) }),
            run.count > 1 && t("times", { n: run.count }), run.trigger !== "schedule" && t(`trigger_${run.trigger}`), run.reason,
          ];
          return html`<${Row} key=${at} mark=${MARKS[run.outcome]} title=${run.name} notes=${notes} />`;
        })}
      </ul>`}
  <//>`;
}
