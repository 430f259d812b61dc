/** What the agent can use: skills, tools with their size in the prompt, and MCP servers. */
import { request } from "../api.js";
import { html } from "../dom.js";
import { tokens } from "../format.js";
import { Act, Empty, Page, Row, Section, SettingsTabs, useData } from "../parts/view.js";
import { t } from "../words.js";

export default function Abilities() {
  const skills = useData("/api/skills", ["config"]);
  const tools = useData("/api/tools", ["config"]);
  const servers = useData("/api/servers", ["config"]);
  const config = useData("/api/config", ["config"]);
  const all = [skills, tools, servers, config];
  const loaded = {
    problem: all.find((each) => each.problem)?.problem ?? "",
    data: all.every((each) => each.data),
    reload: () => all.forEach((each) => each.reload()),
  };
  return html`<${Page} loaded=${loaded} tabs=${html`<${SettingsTabs} />`}>
    ${() => {
      const total = tools.data.tools.reduce((sum, tool) => sum + tool.size, 0);
      const disabled = config.data.applied.agents.defaults.disabledSkills;
      const change = (names) => async () => {
        await request("PATCH", "/api/config", { key: "agents.defaults.disabledSkills", value: names.length ? names : null });
        loaded.reload();
      };
      const off = disabled.filter((name) => !skills.data.skills.some((skill) => skill.name === name));
      const isWaiting = config.data.waiting.includes("agents.defaults.disabledSkills");
      return html`<${Section} title=${t("skills")} note=${isWaiting && t("setting_waits", { keys: "agents.defaults.disabledSkills" })}>
          <ul class="rows">
            ${skills.data.skills.map((skill) => {
              const isOff = disabled.includes(skill.name);
              const names = isOff ? disabled.filter((name) => name !== skill.name) : [...disabled, skill.name];
              return html`<${Row} key=${skill.name} mark=${skill.available && !isOff ? "good" : "off"} title=${skill.name}
                notes=${[t(`skill_${skill.source}`), isOff && t("switched_off"), skill.missing.length > 0 && t("needs", { what: skill.missing.join(", ") })]}
                actions=${html`<${Act} label=${isOff ? t("switch_on") : t("switch_off")} name=${skill.name} onAct=${change(names)} />`}>
                <p class="note" dir="auto">${skill.description}</p><//>`;
            })}
            ${off.map((name) => html`<${Row} key=${name} mark="off" title=${name} notes=${[t("switched_off")]}
              actions=${html`<${Act} label=${t("switch_on")} name=${name} onAct=${change(disabled.filter((each) => each !== name))} />`} />`)}
          </ul>
        <//>
        <${Section} title=${t("servers")}>
          ${!servers.data.servers.length && html`<${Empty} title=${t("servers_empty")} hint=${t("servers_hint")} />`}
          <ul class="rows">
            ${servers.data.servers.map((server) => html`<${Row} key=${server.name} mark=${server.tools.length ? "good" : "bad"} title=${server.name}
              notes=${[server.transport, t("tools_sent", { n: server.tools.length }), server.tools.join(", ")]} />`)}
          </ul>
        <//>
        <${Section} title=${t("tools")} note=${t("in_each_request", { n: tokens(total) })}>
          <ul class="rows">
            ${tools.data.tools.map((tool) => html`<${Row} key=${tool.name} title=${tool.name} notes=${[t(`effect_${tool.effect}`), t("characters", { n: tokens(tool.size) })]}>
              <p class="note" dir="auto">${tool.description}</p><//>`)}
          </ul>
        <//>`;
    }}
  <//>`;
}
