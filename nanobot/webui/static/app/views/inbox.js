/** What waits for the owner, made for a phone: questions, people who ask to be let in, goals, limits, problems. */
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../api.js";
import { html } from "../dom.js";
import { follow } from "../feed.js";
import { time } from "../format.js";
import { Approval } from "../parts/approval.js";
import { Act, Empty, Page, Row, Section } from "../parts/view.js";
import { href } from "../router.js";
import { channelName, inbox, loadInbox, me, sessions, waiting } from "../store.js";
import { t } from "../words.js";

export default function Inbox() {
  useEffect(() => void loadInbox(), []);
  return html`<${Page} loaded=${{ data: inbox.value, problem: "", reload: loadInbox }}>${(data) => html`<${Waiting} data=${data} />`}<//>`;
}

function Waiting({ data }) {
  const asked = useAsked(data.approvals);
  const { pairing, goals, limits, problems, dead_letters: lost } = data;
  return html`
    ${waiting.value === 0 && html`<${Empty} title=${t("inbox_empty")} hint=${t("inbox_hint")} />`}
    ${asked.length > 0 &&
    html`<${Section} title=${t("inbox_approvals")}>
      ${asked.map(
        (part) => html`<div class="asked" key=${part.question}>
          <p class="note">${channelName(part.channel)} · <a href=${href("chat", part.session)} dir="auto">${titleOf(part.session)}</a></p>
          <${Approval} part=${part} />
        </div>`,
      )}
    <//>`}
    ${pairing.length > 0 &&
    html`<${Section} title=${t("inbox_pairing")}>
      <ul class="rows">${pairing.map((person) => html`<${Person} key=${person.code} person=${person} />`)}</ul>
    <//>`}
    ${goals.length > 0 &&
    html`<${Section} title=${t("inbox_goals")}>
      <ul class="rows">
        ${goals.map(
          (goal) => html`<${Row} key=${goal.id} title=${goal.text} notes=${[t(`goal_${goal.state}`), goal.why]}
            actions=${html`<a class="button" href=${href("chat", goal.session_key)}>${t("open_chat")}</a>`} />`,
        )}
      </ul>
    <//>`}
    ${limits.length > 0 &&
    html`<${Section} title=${t("inbox_limits")}>
      <ul class="rows">
        ${limits.map((name) => html`<${Row} key=${name} title=${t(`limit_${name}`)} actions=${html`<a class="button" href=${href("usage")}>${t("view_usage")}</a>`} />`)}
      </ul>
    <//>`}
    ${(problems.length > 0 || lost > 0) &&
    html`<${Section} title=${t("inbox_problems")}>
      <ul class="rows">
        ${problems.map((problem) => html`<${Row} key=${problem} mark="bad" title=${problem} />`)}
        ${lost > 0 && html`<${Row} mark="bad" title=${t("dead_letters", { n: lost })} notes=${[t("dead_letters_hint")]} />`}
      </ul>
      <p class="note"><a href=${href("doctor")}>${t("run_doctor")}</a></p>
    <//>`}`;
}

/** The open questions, and those that were answered since the view was opened: nothing moves under a finger. */
function useAsked(approvals) {
  const known = useRef(new Map());
  const [, redraw] = useState(0);
  for (const part of approvals) if (!known.current.has(part.question)) known.current.set(part.question, part);
  useEffect(
    () =>
      follow("", ({ event }) => {
        const part = known.current.get(event.question);
        if (event.type !== "approval_answered" || !part) return;
        known.current.set(event.question, { ...part, answer: event.answer });
        redraw(Math.random());
      }),
    [],
  );
  return [...known.current.values()];
}

function Person({ person }) {
  const decide = (action, body) => async () => {
    await post(`/api/pairing/${person.code}/${action}`, body);
    await loadInbox();
  };
  const name = person.name || person.sender_id;
  const notes = [channelName(person.channel), person.name && person.sender_id, t("until", { time: time(new Date(person.expires_at * 1000)) })];
  const actions = html`<${Act} label=${t("let_in")} name=${name} isPrimary isGuarded onAct=${decide("approve", { owner: false })} />
    <${Act} label=${t("let_in_owner")} name=${name} confirm=${t("sure_owner", { name: me.value.name })} isGuarded onAct=${decide("approve", { owner: true })} />
    <${Act} label=${t("refuse")} name=${name} isGuarded onAct=${decide("deny", {})} />`;
  return html`<${Row} title=${name} notes=${notes} actions=${actions} />`;
}

function titleOf(key) {
  return sessions.value.find((session) => session.key === key)?.title || key;
}
