/**
 * Markdown as DOM nodes, the same for streams and for stored messages. The parser only names tokens; every element and
 * attribute is made here: no HTML, links to http, https and mailto only, and no picture from another site, since
 * fetching one tells that site what the address holds.
 */
import * as smd from "streaming-markdown";
import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "./dom.js";
import { t } from "./words.js";

const ELEMENTS = {
  [smd.PARAGRAPH]: "p",
  [smd.HEADING_1]: "h3", // the page has an h1, each message an h2
  [smd.HEADING_2]: "h3",
  [smd.HEADING_3]: "h4",
  [smd.HEADING_4]: "h5",
  [smd.HEADING_5]: "h6",
  [smd.HEADING_6]: "h6",
  [smd.BLOCKQUOTE]: "blockquote",
  [smd.CODE_INLINE]: "code",
  [smd.ITALIC_AST]: "em",
  [smd.ITALIC_UND]: "em",
  [smd.STRONG_AST]: "strong",
  [smd.STRONG_UND]: "strong",
  [smd.STRIKE]: "s",
  [smd.LINE_BREAK]: "br",
  [smd.RULE]: "hr",
  [smd.LIST_UNORDERED]: "ul",
  [smd.LIST_ORDERED]: "ol",
  [smd.LIST_ITEM]: "li",
  [smd.EQUATION_BLOCK]: "div",
  [smd.EQUATION_INLINE]: "span",
};
const UNDERSCORES = { [smd.ITALIC_UND]: "_", [smd.STRONG_UND]: "__" };
const LINKS = new Set([smd.LINK, smd.RAW_URL, smd.IMAGE]);
const CODE_BLOCKS = new Set([smd.CODE_BLOCK, smd.CODE_FENCE]);

/** The address of a link, null if it may not be followed. */
export function safeUrl(text) {
  try {
    const url = new URL(text.trim());
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

class Renderer {
  constructor(root) {
    this.nodes = [{ node: root, type: 0 }];
  }

  get top() {
    return this.nodes.at(-1);
  }

  open(type) {
    if (type === smd.RULE || type === smd.LINE_BREAK) {
      this.nodes.push({ node: this.top.node.appendChild(element(ELEMENTS[type])), type });
      return;
    }
    const parent = this.top.node;
    if (type in UNDERSCORES && /[\p{L}\p{N}]$/u.test(parent.textContent)) {
      parent.append(UNDERSCORES[type]); // inside a word, as in OPENAI_API_KEY, it is no emphasis
      this.nodes.push({ node: parent, type, isLiteral: true });
      return;
    }
    let node;
    if (CODE_BLOCKS.has(type)) node = this.openCode(parent);
    else if (LINKS.has(type)) node = parent.appendChild(element("span"));
    else if (type === smd.CHECKBOX) node = parent.appendChild(element("span", "checkbox", "☐ "));
    else if (type === smd.TABLE) node = parent.appendChild(element("div", "table")).appendChild(element("table"));
    else if (type === smd.TABLE_ROW) node = this.openRow(parent);
    else if (type === smd.TABLE_CELL) node = this.openCell(parent);
    else node = parent.appendChild(element(ELEMENTS[type] ?? "span"));
    if (!CODE_BLOCKS.has(type)) node.dir = "auto";
    this.nodes.push({ node, type });
  }

  openCode(parent) {
    const block = parent.appendChild(element("div", "code"));
    const head = block.appendChild(element("div", "code-head"));
    head.append(element("span", "code-language"));
    const copy = head.appendChild(element("button", "quiet", t("copy")));
    copy.type = "button";
    copy.onclick = async () => {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = t("copied");
      setTimeout(() => (copy.textContent = t("copy")), 1500);
    };
    const pre = block.appendChild(element("pre"));
    pre.tabIndex = 0; // scrolls sideways by keyboard
    const code = pre.appendChild(element("code"));
    return code;
  }

  openRow(table) {
    const name = table.children.length ? "tbody" : "thead";
    const group = name === "tbody" && table.children[1] ? table.children[1] : table.appendChild(element(name));
    return group.appendChild(element("tr"));
  }

  openCell(row) {
    const name = row.parentNode.tagName === "THEAD" ? "th" : "td";
    const alignment = this.nodes.findLast(({ type }) => type === smd.TABLE).columns?.[row.children.length];
    return row.appendChild(element(name, alignment));
  }

  /** Align the columns of the open table as the line below its head says: `|:--|:-:|--:|`. */
  align(line) {
    const cells = line.replace(/^[\s>]*\|?|\|?\s*$/g, "").split("|").map((cell) => cell.trim());
    this.top.columns = cells.map((cell) => (!cell.endsWith(":") ? "" : cell.startsWith(":") ? "center" : "right"));
    for (const [at, cell] of [...this.top.node.querySelectorAll("th")].entries()) cell.className = this.top.columns[at] ?? "";
  }

  close() {
    const { node, type, url, language, isLiteral } = this.nodes.pop();
    if (CODE_BLOCKS.has(type)) highlightLater(node, language);
    if (isLiteral && this.parser.pending.startsWith("_")) node.append(UNDERSCORES[type]);
    if (!LINKS.has(type)) return;
    const address = safeUrl(url ?? node.textContent);
    if (type === smd.IMAGE) {
      const name = node.textContent || t("picture");
      node.textContent = address ? t("picture_on", { name, host: address.host }) : name;
    }
    if (address) replaceByLink(node, address);
    else if (url && type === smd.LINK) node.append(` (${url})`);
  }

  text(text) {
    this.top.node.append(text);
  }

  attribute(name, value) {
    const { node, type } = this.top;
    if (name === smd.HREF || name === smd.SRC) this.top.url = value;
    else if (name === smd.CHECKED) node.textContent = "☑ ";
    else if (name === smd.START && /^\d{1,9}$/.test(value)) node.start = Number(value);
    else if (name === smd.LANG && CODE_BLOCKS.has(type)) {
      this.top.language = value.trim();
      node.parentNode.previousSibling.firstChild.textContent = value.slice(0, 30);
    }
  }
}

async function highlightLater(node, language) {
  if (!language) return;
  const { highlight } = await import("./highlight.js").catch(() => ({})); // without a line it stays plain
  highlight?.(node, language);
}

/** A link; where its text looks like another address, the host that it leads to stands behind it. */
function replaceByLink(node, address) {
  const link = element("a");
  link.href = address.href;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  link.dir = "auto";
  link.append(...node.childNodes);
  node.replaceWith(link);
  const named = safeUrl(link.textContent) ?? safeUrl(`https://${link.textContent}`);
  const looksLikeAddress = /^\S+\.\S+$/.test(link.textContent.trim());
  if (looksLikeAddress && address.host && named?.host !== address.host) {
    link.after(element("span", "host", ` (${address.host})`));
  }
}

/** Writes Markdown into an element, piece by piece. */
export class MarkdownWriter {
  constructor(root) {
    this.renderer = new Renderer(root);
    this.tail = new Text();
    this.line = "";
    this.tableState = 0;
    this.parser = smd.parser({
      data: null,
      add_token: (_, type) => this.renderer.open(type),
      end_token: () => this.renderer.close(),
      add_text: (_, text) => this.renderer.text(text),
      set_attr: (_, name, value) => this.renderer.attribute(name, value),
    });
    this.renderer.parser = this.parser;
  }

  write(text) {
    this.tail.remove();
    for (const piece of text.split(/(?<=\n)/)) this.writePiece(piece);
    const { pending } = this.parser; // the parser waits for the next character; a letter is shown at once
    if (/^[\p{L}\p{N}]$/u.test(pending) && this.renderer.nodes.length > 1) {
      this.tail.data = pending;
      this.renderer.top.node.append(this.tail);
    }
  }

  /** Write a line or a part of one. The parser drops the line below a table's head. */
  writePiece(piece) {
    this.line += piece;
    smd.parser_write(this.parser, piece);
    if (!piece.endsWith("\n")) return;
    const state = this.parser.table_state;
    if (state === 2 && this.tableState !== 2 && this.renderer.top.type === smd.TABLE) this.renderer.align(this.line);
    this.tableState = state;
    this.line = "";
  }

  end() {
    this.tail.remove();
    smd.parser_end(this.parser);
  }
}

/** Markdown that may grow: only what was added is parsed. `isDone` closes what is still open. */
export function Markdown({ text, isDone = true }) {
  const root = useRef(null);
  const state = useRef({ writer: null, text: "", isDone: false });
  useLayoutEffect(() => {
    let { writer, text: before, isDone: wasDone } = state.current;
    if (writer === null || wasDone || !text.startsWith(before)) {
      root.current.replaceChildren();
      writer = new MarkdownWriter(root.current);
      before = "";
    }
    writer.write(text.slice(before.length));
    if (isDone) writer.end();
    state.current = { writer, text, isDone };
  }, [text, isDone]);
  return html`<div class="markdown" dir="auto" ref=${root}></div>`;
}
