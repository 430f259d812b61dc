/** Files of a message: pictures and recordings to look at and listen to, others to save. */
import { useEffect, useMemo } from "preact/hooks";
import { Icon, html } from "../dom.js";
import { size } from "../format.js";
import { t } from "../words.js";

export function Files({ files }) {
  return html`<ul class="files">
    ${files.map((file, index) => html`<li key=${file.id ?? index}><${File} file=${file} /></li>`)}
  </ul>`;
}

function File({ file }) {
  const local = useMemo(() => file.blob && URL.createObjectURL(file.blob), [file.blob]);
  useEffect(() => () => local && URL.revokeObjectURL(local), [local]);
  const address = local ?? (file.id ? `/api/files/${file.id}` : null);
  const kind = file.kind ?? file.type?.split("/")[0];
  if (address && kind === "image" && !/\.(svg|heic)$/i.test(file.name)) {
    return html`<a href=${address} target="_blank" rel="noopener"><img src=${address} alt=${file.name} loading="lazy" /></a>`;
  }
  if (address && (kind === "audio" || kind === "voice")) return html`<audio controls src=${address} preload="none"></audio>`;
  if (address && kind === "video") return html`<video controls src=${address} preload="metadata"></video>`;
  const note = file.is_gone ? t("file_gone") : file.size === undefined ? "" : size(file.size);
  const inside = html`<${Icon} name="file" /><span class="file-name">${file.name}</span><span class="file-note">${note}</span>`;
  if (file.url) return html`<a class="file" href=${file.url} target="_blank" rel="noopener noreferrer">${inside}</a>`;
  return file.id
    ? html`<a class="file" href=${address} download=${file.name}>${inside}</a>`
    : html`<span class="file">${inside}</span>`;
}
