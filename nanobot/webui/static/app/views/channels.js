/** The chat apps: which are on, how each is, what to do, and setting them up. */
import { useState } from "preact/hooks";
import { request } from "../api.js";
import { html } from "../dom.js";
import { duration, moment } from "../format.js";
import { ChannelLogin, MARKS } from "../parts/channel_login.js";
import { Act, Page, Row, Section, SettingsTabs, useData } from "../parts/view.js";
import { t } from "../words.js";

export default function Channels() {
  const loaded = useData("/api/channels", ["config"], 10_000);
  const [open, setOpen] = useState("");
  const chosen = loaded.data?.channels.find((channel) => channel.name === open);
  const row = (channel) => html`<${Channel} key=${channel.name} channel=${channel} reload=${loaded.reload} setUp=${() => setOpen(channel.name)} />`;
  return html`<${Page} loaded=${loaded} tabs=${html`<${SettingsTabs} />`}>
    ${({ channels }) => {
      const on = channels.filter((channel) => channel.enabled || channel.status);
      const off = channels.filter((channel) => !channel.enabled && !channel.status);
      return html`<${Section} title=${t("channels_on")}>
          ${!on.length && html`<p class="note">${t("channels_none")}</p>`}
          <ul class="rows">${on.map(row)}</ul>
        <//>
        <${Section} title=${t("channels_off")}>
          <ul class="rows">${off.map(row)}</ul>
        <//>
        ${chosen && html`<${ChannelLogin} channel=${chosen} reload=${loaded.reload} close=${() => setOpen("")} />`}`;
    }}
  <//>`;
}

function Channel({ channel: { name, title, requires, enabled, complete, status }, reload, setUp }) {
  const isOn = enabled || status;
  const state = status?.state ?? "off";
  const switchTo = (value) => async () => {
    await request("PATCH", "/api/config", { key: `channels.${name}.enabled`, value });
    reload();
  };
  const notes = isOn ? [
    t(`channel_${state}`),
    status?.silentS !== undefined && t("heard_ago", { time: duration(status.silentS) }),
    status?.lastReceived && t("last_message", { time: moment(new Date(status.lastReceived)) }),
    status?.received !== undefined && t("received_sent", { received: status.received, sent: status.sent }),
  ] : [!complete && t("needs", { what: requires })];
  const advice = state === "failed" || state === "down" ? t(`advice_${state}`) : "";
  const actions = html`${requires && html`<${Act} label=${isOn ? t("set_up_again") : t("set_up")} name=${title} onAct=${setUp} />`}
    ${enabled ? html`<${Act} label=${t("switch_off")} name=${title} confirm=${t("sure_off")} onAct=${switchTo(false)} />` : complete && html`<${Act} label=${t("switch_on")} name=${title} onAct=${switchTo(true)} />`}`;
  return html`<${Row} mark=${isOn ? MARKS[state] ?? "bad" : "off"} title=${title} notes=${notes} actions=${actions}>
    ${status?.lastError && html`<p class="error" dir="auto">${status.lastError}</p>`}
    ${advice && html`<p class="note">${advice}</p>`}<//>`;
}
