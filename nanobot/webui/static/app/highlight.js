/** Colours code: comments, strings, numbers and keywords of the common languages. Made of text and spans only. */
const LONGEST = 100_000;

const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*\b`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?`;
const BACKQUOTED = "`(?:[^`\\\\]|\\\\[^])*`?";
const C_COMMENT = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`(?<![^\s;({\[])#[^\n]*`;

/** What a comment and a string look like, by family of languages. */
const SYNTAX = {
  c: [C_COMMENT, `${QUOTED}|${BACKQUOTED}`],
  css: [String.raw`\/\*[^]*?(?:\*\/|$)`, QUOTED],
  hash: [HASH, String.raw`[rbfu]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$))|${QUOTED}`],
  dashes: [String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, String.raw`'(?:[^']|'')*'?|"[^"\n]*"?`],
  markup: [String.raw`<!--[^]*?(?:-->|$)`, String.raw`(?<==\s*)(?:"[^"]*"?|'[^']*'?)`],
};

const words = (text) => new Set(text.split(" "));
const LITERALS = "true false null";
const TYPES = "int long short float double bool boolean char void byte string";
const C_LIKE = `${LITERALS} if else for while do switch case default break continue return`;
const OBJECTS = `${C_LIKE} try catch finally throw new this super class interface enum extends implements public private protected static abstract final import package`;

const SCRIPT = words(`${OBJECTS} undefined const let var function async await yield of in typeof instanceof delete void export from as type readonly declare namespace`);
const PYTHON = words("False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield self");
const SHELL = words("if then else elif fi for while until do done case esac in function return export local readonly set unset exit echo cd source sudo alias");
const C = words(`${C_LIKE} ${TYPES} auto const constexpr enum extern inline namespace nullptr operator private public protected class template this throw try catch typename typedef struct union unsigned signed sizeof static using virtual volatile goto #include #define #ifdef #ifndef #endif #if #else`);
const SQL = words("select from where and or not null is in as on join left right inner outer full cross group by order having limit offset insert into values update set delete create table index view drop alter add primary key foreign references unique default distinct union all case when then else end with exists between like asc desc begin commit rollback");

/** By name of the language: its syntax, and its keywords. */
const LANGUAGES = new Map(Object.entries({
  js: ["c", SCRIPT], ts: ["c", SCRIPT], java: ["c", words(`${OBJECTS} ${TYPES} throws instanceof synchronized record var`)],
  c: ["c", C], csharp: ["c", words(`${OBJECTS} ${TYPES} using namespace var async await in out ref is as foreach get set sealed override virtual readonly const`)],
  go: ["c", words(`${C_LIKE} ${TYPES} nil func package import type struct interface map chan go defer select range var const fallthrough error`)],
  rust: ["c", words("as async await break const continue crate else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while dyn Some None Ok Err")],
  swift: ["c", words(`${C_LIKE} nil let var func class struct enum protocol extension import guard in is as self init throws try catch throw async await static private public`)],
  kotlin: ["c", words(`${OBJECTS} fun val var when is in as object data sealed companion override open internal suspend`)],
  php: ["c", words(`${OBJECTS} function echo foreach as use namespace array isset unset fn`)],
  css: ["css", words("important media supports keyframes import layer from to")], json: ["c", words(LITERALS)],
  python: ["hash", PYTHON], sh: ["hash", SHELL], yaml: ["hash", words("true false null yes no on off")], toml: ["hash", words("true false")],
  ruby: ["hash", words("def end class module if elsif else unless case when while until do begin rescue ensure raise return yield self nil true false and or not in then require attr_accessor puts")],
  dockerfile: ["hash", words("FROM RUN CMD LABEL EXPOSE ENV ADD COPY ENTRYPOINT VOLUME USER WORKDIR ARG ONBUILD HEALTHCHECK SHELL AS")],
  sql: ["dashes", SQL], lua: ["dashes", words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while")],
  html: ["markup", words("")],
}));
const OTHER_NAMES = new Map(Object.entries({
  javascript: "js", jsx: "js", mjs: "js", node: "js", typescript: "ts", tsx: "ts", cpp: "c", "c++": "c", h: "c", cs: "csharp", golang: "go", rs: "rust",
  kt: "kotlin", scss: "css", less: "css", jsonc: "json", json5: "json", py: "python", python3: "python", bash: "sh", shell: "sh", zsh: "sh", console: "sh",
  yml: "yaml", ini: "toml", conf: "toml", rb: "ruby", docker: "dockerfile", makefile: "sh", postgresql: "sql", mysql: "sql", sqlite: "sql", xml: "html", svg: "html", vue: "html",
}));
const patterns = new Map();

function patternOf(syntax) {
  const [comment, string] = SYNTAX[syntax];
  const [number, word] = syntax === "markup" ? ["(?!)", String.raw`(?<=<\/?)[\w:\-]+`] : [NUMBER, String.raw`#?[\p{L}_$][\p{L}\p{N}_$]*`];
  return new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<number>${number})|(?<keyword>${word})`, "gu");
}

/** Colour an element that holds code and nothing else. A language that is not known is left as it is. */
export function highlight(element, language) {
  const name = language.toLowerCase();
  const known = LANGUAGES.get(OTHER_NAMES.get(name) ?? name);
  const code = element.textContent;
  if (!known || code.length > LONGEST) return;
  const [syntax, keywords] = known;
  if (!patterns.has(syntax)) patterns.set(syntax, patternOf(syntax));
  const nodes = [];
  let end = 0;
  for (const match of code.matchAll(patterns.get(syntax))) {
    const [kind, text] = Object.entries(match.groups).find(([, part]) => part !== undefined);
    const isKnown = syntax === "markup" || keywords.has(text) || (syntax === "dashes" && keywords.has(text.toLowerCase()));
    if (kind === "keyword" && !isKnown) continue;
    nodes.push(code.slice(end, match.index), Object.assign(document.createElement("span"), { className: kind, textContent: text }));
    end = match.index + text.length;
  }
  element.replaceChildren(...nodes, code.slice(end));
}
