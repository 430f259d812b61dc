/** The chat apps: which are on, how each is, and what to do. */
import { request } from "../api.js";
import { html } from "../dom.js";
import { duration, moment } from "../format.js";
import { Act, Page, Row, Section, SettingsTabs, useData } from "../parts/view.js";
import { t } from "../words.js";

const MARKS = { up: "good", connecting: "busy", off: "off" };

export default function Channels() {
  const loaded = useData("/api/channels", ["config"], 10_000);
  return html`<${Page} loaded=${loaded} tabs=${html`<${SettingsTabs} />`}>
    ${({ channels }) => {
      const on = channels.filter((channel) => channel.enabled || channel.status);
      const off = channels.filter((channel) => !channel.enabled && !channel.status);
      return html`<${Section} title=${t("channels_on")}>
          ${!on.length && html`<p class="note">${t("channels_none")}</p>`}
          <ul class="rows">${on.map((channel) => html`<${Channel} key=${channel.name} channel=${channel} reload=${loaded.reload} />`)}</ul>
        <//>
        <${Section} title=${t("channels_off")} note=${t("channels_off_hint")}>
          <ul class="rows">
            ${off.map((channel) => html`<${Row} key=${channel.name} mark="off" title=${channel.title} notes=${[html`<code>nanobot channels login ${channel.name}</code>`]} />`)}
          </ul>
        <//>`;
    }}
  <//>`;
}

function Channel({ channel: { name, title, enabled, status }, reload }) {
  const state = status?.state ?? "off";
  const switchTo = (value) => async () => {
    await request("PATCH", "/api/config", { key: `channels.${name}.enabled`, value });
    reload();
  };
  const notes = [
    t(`channel_${state}`),
    status?.silentS !== undefined && t("heard_ago", { time: duration(status.silentS) }),
    status?.lastReceived && t("last_message", { time: moment(new Date(status.lastReceived)) }),
    status?.received !== undefined && t("received_sent", { received: status.received, sent: status.sent }),
  ];
  const advice = state === "failed" || state === "down" ? t(`advice_${state}`) : "";
  return html`<${Row} mark=${MARKS[state] ?? "bad"} title=${title} notes=${notes}
    actions=${enabled ? html`<${Act} label=${t("switch_off")} name=${title} confirm=${t("sure_off")} onAct=${switchTo(false)} />` : html`<${Act} label=${t("switch_on")} name=${title} onAct=${switchTo(true)} />`}>
    ${status?.lastError && html`<p class="error" dir="auto">${status.lastError}</p>`}
    ${advice && html`<p class="note">${advice}</p>`}<//>`;
}
