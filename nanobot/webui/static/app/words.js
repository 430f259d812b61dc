/** The words of the page in the reader's language. Keys are flat. In a text `{name}` is replaced, and `{name|s}` is `s` unless it is one. */
import en from "./words/en.js";

let words = en;
export let language = "en";

/** Load the language: the one chosen here, else the browser's. */
export async function loadWords() {
  const wanted = localStorage.getItem("language") ?? navigator.language;
  if (wanted.toLowerCase().startsWith("zh")) {
    words = (await import("./words/zh.js")).default;
    language = "zh";
  }
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

/** Change the language, and load the page again. */
export function setLanguage(name) {
  localStorage.setItem("language", name);
  location.reload();
}

export function t(key, values = {}) {
  return words[key].replace(/\{(\w+)(?:\|(\w+))?\}/g, (whole, name, plural) =>
    plural ? (values[name] === 1 ? "" : plural) : (values[name] ?? whole));
}
