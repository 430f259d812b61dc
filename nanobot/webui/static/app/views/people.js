/** Who may talk to the agent, and which browsers are signed in. */
import { useState } from "preact/hooks";
import { post, request } from "../api.js";
import { QrCode, html } from "../dom.js";
import { moment } from "../format.js";
import { CopyButton } from "../parts/message.js";
import { Act, Empty, Page, Row, Section, SettingsTabs, useData } from "../parts/view.js";
import { channelName } from "../store.js";
import { t } from "../words.js";

export default function People() {
  const people = useData("/api/people", ["inbox"]);
  const devices = useData("/api/devices", ["inbox"]);
  const [link, setLink] = useState(null);
  const loaded = {
    problem: people.problem || devices.problem,
    data: people.data && devices.data && { ...people.data, ...devices.data },
    reload: () => (people.reload(), devices.reload()),
  };
  const add = async () => setLink(await post("/api/devices"));
  return html`<${Page} loaded=${loaded} tabs=${html`<${SettingsTabs} />`}>
    ${(data) => html`<${Section} title=${t("people")}>
        ${!data.people.length && html`<${Empty} title=${t("people_empty")} hint=${t("people_hint")} />`}
        <ul class="rows">${data.people.map((person) => html`<${Person} key=${person.channel + person.sender} person=${person} reload=${people.reload} />`)}</ul>
      <//>
      <${Section} title=${t("devices")} actions=${html`<${Act} label=${t("add_device")} isPrimary onAct=${add} />`}>
        ${link && html`<${Link} link=${link} />`}
        <ul class="rows">${data.devices.map((device) => html`<${Device} key=${device.name} device=${device} reload=${devices.reload} />`)}</ul>
      <//>`}
  <//>`;
}

function Person({ person, reload }) {
  const revoke = async () => (await post("/api/people/revoke", { channel: person.channel, sender: person.sender }), reload());
  const name = person.name || person.sender;
  return html`<${Row} title=${name} notes=${[channelName(person.channel), person.owner ? t("is_owner") : t("is_guest"), person.name && person.sender]}
    actions=${html`<${Act} label=${t("revoke")} name=${name} confirm=${t("sure_revoke")} onAct=${revoke} />`} />`;
}

function Device({ device, reload }) {
  const signOut = async () => (await request("DELETE", `/api/devices/${encodeURIComponent(device.name)}`), reload());
  const notes = [device.current ? t("this_browser") : t("last_used", { time: moment(new Date(device.used_at * 1000)) }), t(`role_${device.role}`)];
  return html`<${Row} title=${html`<span title=${device.name}>${browserName(device.name)}</span>`} notes=${notes}
    actions=${html`<${Act} label=${t("sign_out")} name=${device.name} confirm=${t("sure_sign_out")} onAct=${signOut} />`} />`;
}

/** The browser and the system that a user agent names, with the number of a second one alike. */
function browserName(agent) {
  const browser = /(Edg|OPR|Firefox|Chrome|Safari)[/]/.exec(agent.replace(/Headless/, ""))?.[1];
  const system = /(iPhone|iPad|Android|Windows|Mac OS X|Linux)/.exec(agent)?.[1];
  if (!browser || !system) return agent;
  const names = { Edg: "Edge", OPR: "Opera" };
  const number = / (\d+)$/.exec(agent)?.[0] ?? "";
  return `${names[browser] ?? browser}, ${system}${number}`;
}

/** A one-time link, with its code for a phone's camera. */
function Link({ link: { url, qr } }) {
  const isLocal = /^https?:\/\/(127\.|localhost|\[::1\])/.test(url);
  return html`<div class="link" role="status">
    <${QrCode} rows=${qr} label=${t("qr_code")} />
    <div>
      <p>${t("link_hint")}</p>
      <p><code>${url}</code> <${CopyButton} text=${() => url} /></p>
      ${isLocal && html`<p class="note">${t("link_local")}</p>`}
    </div>
  </div>`;
}
