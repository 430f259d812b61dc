/** Settings: those that people change as a form, all others as JSON with completion. Secrets are only written. */
import { useMemo, useState } from "preact/hooks";
import { request } from "../api.js";
import { html } from "../dom.js";
import { Act, Page, Section, SettingsTabs, useData, useProblem } from "../parts/view.js";
import { t } from "../words.js";

/** The keys of the form, by section. A secret's value never comes to the page. */
const FORM = {
  model: ["agents.defaults.model", "agents.defaults.provider", "agents.defaults.fallbackModels", "agents.defaults.backgroundModel",
    "agents.defaults.reasoningEffort", "agents.defaults.temperature", "agents.defaults.maxTokens"],
  agent: ["agents.defaults.botName", "agents.defaults.timezone", "agents.defaults.steering", "agents.defaults.maxToolIterations",
    "agents.defaults.dream.enabled", "gateway.heartbeat.enabled"],
  money: ["limits.dailyUsd", "limits.monthlyUsd", "limits.turnTokens"],
  tools: ["tools.approval", "tools.restrictToWorkspace", "tools.exec.enable", "tools.exec.network", "tools.web.enable", "tools.web.search.provider"],
  channels: ["channels.sendProgress", "channels.sendToolHints"],
};

export default function Settings() {
  const loaded = useData("/api/config", ["config"], 5000);
  const schema = useData("/api/config/schema");
  const both = { ...loaded, problem: loaded.problem || schema.problem, data: loaded.data && schema.data && { ...loaded.data, schema: schema.data } };
  return html`<${Page} loaded=${both} tabs=${html`<${SettingsTabs} />`}>
    ${({ applied, set, schema: root, file, waiting }) => html`
      ${waiting.length > 0 && html`<p class="note" role="status">${t("setting_waits", { keys: waiting.join(", ") })}</p>`}
      ${Object.entries(FORM).map(
        ([section, keys]) => html`<${Section} key=${section} title=${t(`settings_${section}`)}>
          <ul class="rows">
            ${keys.map((key) => html`<${Setting} key=${key} path=${key} value=${valueAt(applied, key)} isSet=${valueAt(set, key) !== undefined}
              type=${typeAt(root, key)} reload=${loaded.reload} />`)}
            ${section === "model" && html`<${Secret} applied=${applied} reload=${loaded.reload} />`}
          </ul>
        <//>`,
      )}
      <${AnyKey} applied=${applied} root=${root} reload=${loaded.reload} />
      <p class="note">${t("config_file", { file })}</p>`}
  <//>`;
}

function valueAt(object, path) {
  return path.split(".").reduce((value, name) => value?.[name], object);
}

function resolve(root, schema) {
  const own = schema?.$ref ? root.$defs[schema.$ref.split("/").at(-1)] : schema;
  const [only] = own?.anyOf?.filter((each) => each.type !== "null") ?? [];
  return only ? { ...resolve(root, only), isOptional: true } : (own ?? {});
}

/** The schema of a key: its own, or that of any name in a table. */
function typeAt(root, path) {
  return path.split(".").reduce((schema, name) => resolve(root, schema.properties?.[name] ?? schema.additionalProperties), root);
}

async function save(key, value) {
  await request("PATCH", "/api/config", { key, value });
}

function Setting({ path, value, isSet, type, reload }) {
  const [draft, setDraft] = useState(null);
  const [problem, attempt] = useProblem();
  const id = `setting-${path.replaceAll(".", "-")}`;
  const label = t(`setting_${path.replaceAll(".", "_")}`);
  const isList = type.type === "array";
  const shown = draft ?? (isList ? value.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", ") : (value ?? ""));

  const store = (given) =>
    attempt(async () => {
      await save(path, given);
      setDraft(null);
      await reload();
    });
  function commit(text) {
    if (text === "") return store(null);
    if (isList) return store(text.split(",").map((each) => each.trim()).filter(Boolean));
    const isNumber = (type.type === "integer" || type.type === "number") && !Number.isNaN(Number(text));
    return store(isNumber ? Number(text) : text);
  }
  const onChange = (event) => commit(event.currentTarget.value);
  let input;
  if (type.type === "boolean") {
    input = html`<input type="checkbox" role="switch" id=${id} checked=${value} onChange=${(event) => store(event.currentTarget.checked)} />`;
  } else if (type.enum) {
    input = html`<select id=${id} value=${value ?? ""} onChange=${onChange}>
      ${type.isOptional && html`<option value="">${t("default")}</option>`}
      ${type.enum.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>`;
  } else {
    const isNumber = type.type === "integer" || type.type === "number";
    input = html`<input type="text" id=${id} inputmode=${isNumber ? "decimal" : undefined} value=${shown} placeholder=${t("not_set")}
      onInput=${(event) => setDraft(event.currentTarget.value)} onChange=${onChange} />`;
  }
  return html`<li class="row setting">
    <div class="row-body"><label class="row-title" for=${id}>${label}</label><code class="note">${path}</code>${problem}</div>
    <div class="row-actions">${input}
      ${isSet && html`<${Act} icon="again" label=${t("to_default")} name=${label} onAct=${() => store(null)} />`}</div>
  </li>`;
}

/** The API key of a provider. */
function Secret({ applied, reload }) {
  const names = Object.keys(applied.providers);
  const [name, setName] = useState(names.find((each) => each === applied.agents.defaults.provider) ?? names[0]);
  const [key, setKey] = useState("");
  const isSet = Boolean(applied.providers[name]?.apiKey);
  const store = (value) => async () => (await save(`providers.${name}.apiKey`, value), setKey(""), reload());
  return html`<li class="row setting">
    <div class="row-body"><span class="row-title">${t("api_key")}</span><span class="note">${isSet ? t("secret_set") : t("secret_not_set")}</span></div>
    <div class="row-actions">
      <select aria-label=${t("provider")} value=${name} onChange=${(event) => setName(event.currentTarget.value)}>
        ${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
      <input type="password" autocomplete="off" aria-label=${t("api_key")} value=${key} placeholder=${isSet ? t("replace_secret") : t("api_key")} onInput=${(event) => setKey(event.currentTarget.value)} />
      <${Act} label=${t("save")} onAct=${store(key)} />
      ${isSet && html`<${Act} icon="close" label=${t("remove")} name=${name} confirm=${t("sure_remove")} onAct=${store(null)} />`}
    </div>
  </li>`;
}

/** Every key of the config, by its dotted name. */
function keysOf(root, applied) {
  const found = [];
  (function add(value, type, path) {
    const isTable = value && typeof value === "object" && !Array.isArray(value);
    if (path) found.push(path);
    for (const name of new Set([...Object.keys(isTable ? value : {}), ...Object.keys(type.properties ?? {})])) {
      const own = type.properties?.[name] ?? type.additionalProperties;
      add(isTable ? value[name] : undefined, resolve(root, own), path ? `${path}.${name}` : name);
    }
  })(applied, root, "");
  return found;
}

const HIDDEN = "••••"; // how the gateway shows secrets

function AnyKey({ applied, root, reload }) {
  const [key, setKey] = useState("");
  const [text, setText] = useState("");
  const [saved, setSaved] = useState("");
  const keys = useMemo(() => keysOf(root, applied), [root, applied]);
  const choose = (event) => {
    const path = event.currentTarget.value;
    const value = valueAt(applied, path);
    setKey(path);
    setSaved("");
    setText(value === undefined || String(value).startsWith(HIDDEN) ? "" : JSON.stringify(value, null, 2));
  };
  const store = (value) => async () => {
    await save(key, value());
    setSaved(key);
    await reload();
  };
  const parsed = () => {
    if (text.includes(HIDDEN)) throw new Error(t("has_secret"));
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(t("not_json"));
    }
  };
  return html`<${Section} title=${t("all_settings")} note=${t("all_settings_hint")}>
    <div class="add any-key">
      <label>${t("key")}<input type="text" list="keys" value=${key} autocomplete="off" spellcheck="false" onInput=${choose} /></label>
      <datalist id="keys">${keys.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
      <label>${t("value_json")}<textarea rows="4" spellcheck="false" value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea></label>
      <p class="note">${key && describe(typeAt(root, key))}</p>
      <div class="row-actions"><${Act} label=${t("save")} isPrimary onAct=${store(parsed)} />
        <${Act} label=${t("to_default")} onAct=${store(() => null)} /></div>
      <p class="note" role="status">${saved && t("saved", { key: saved })}</p>
    </div>
  <//>`;
}

/** What a key takes. */
function describe(type) {
  const kind = type.enum ? type.enum.map((each) => JSON.stringify(each)).join(" | ") : (type.type ?? "");
  return [kind, type.default !== undefined && t("default_is", { value: JSON.stringify(type.default) }), type.description].filter(Boolean).join(" · ");
}
