/** Stored messages as entries of a chat: what a person wrote, and what a turn did, in the parts that running turns have. */

/** Entries of rows, oldest first: `{id, kind: "user" | "turn", first, last, at, turn_id, ...}`. */
export function toEntries(rows) {
  const entries = [];
  let turn = null;
  for (const row of rows) {
    if (row.role === "user" && row.continues) {
      if (turn) turn.continues = true;
    } else if (row.role === "user") {
      turn = null;
      if (row.text || row.files) entries.push({ ...row, id: `u${row.n}`, kind: "user", first: row.n, last: row.n });
    } else if (row.role === "assistant" || row.role === "tool") {
      if (turn === null || turn.turn_id !== row.turn_id) {
        turn = { id: `t${row.n}`, kind: "turn", turn_id: row.turn_id, first: row.n, parts: [] };
        entries.push(turn);
      }
      addRow(turn, row);
    }
  }
  for (const entry of entries) if (entry.kind === "turn") entry.parts = joinTexts(entry.parts);
  return entries.filter((entry) => entry.kind === "user" || entry.parts.length);
}

function addRow(turn, row) {
  turn.last = row.n;
  turn.at = row.timestamp ?? turn.at;
  if (row.role === "tool") {
    const call = turn.parts.findLast((part) => part.type === "tool" && part.call_id === row.tool_call_id);
    const result = { ok: row.failure === undefined, content: row.text };
    if (call) Object.assign(call, result);
    else turn.parts.push({ type: "tool", call_id: row.tool_call_id, name: row.name ?? "", arguments: {}, ...result });
    return;
  }
  if (row.reasoning) turn.parts.push({ type: "reasoning", text: row.reasoning });
  if (row.text) turn.parts.push({ type: "text", text: row.text, ...(turn.continues && { continues: true }) });
  turn.continues = false;
  if (row.error === "stopped") turn.parts.push({ type: "stopped" });
  else if (row.error && row.reply) turn.parts.push({ type: "error", text: row.reply });
  for (const { posted, ...call } of row.calls ?? []) {
    turn.parts.push({ type: "tool", ...call });
    if (posted?.text) turn.parts.push({ type: "text", text: posted.text });
    if (posted?.files) turn.parts.push({ type: "files", files: posted.files });
  }
}

/** Put a text that was cut off and the text that continues it together, where the latter stands. */
export function joinTexts(parts) {
  const joined = [];
  for (const part of parts) {
    const cut = part.continues ? joined.findLastIndex((each) => each.type === "text") : -1;
    joined.push(cut < 0 ? part : { ...joined[cut], text: joined.splice(cut, 1)[0].text + part.text });
  }
  return joined;
}

/** Keep the entries that have not changed as they are, so that they are not drawn again. */
export function keepSame(before, after) {
  const known = new Map(before.map((entry) => [entry.id, entry]));
  return after.map((entry) => {
    const old = known.get(entry.id);
    const isSame = old && old.first === entry.first && old.last === entry.last && old.view === entry.view;
    return isSame ? old : entry;
  });
}

/**
 * The parts of a turn from its stored messages and from its view. A view has more (notices, durations, answers), but
 * begins late if the gateway was started anew during the turn.
 */
export function mergeParts(stored, viewed) {
  const calls = new Set(viewed.map((part) => part.call_id).filter(Boolean));
  const texts = new Set([...viewed, ...joinTexts(viewed)].map((part) => part.text?.trim()).filter(Boolean));
  const isNew = (part) => {
    if (part.type === "tool") return !calls.has(part.call_id);
    if (part.type === "text" || part.type === "reasoning" || part.type === "error") return !texts.has(part.text.trim());
    return !viewed.some((other) => other.type === part.type);
  };
  return joinTexts([...stored.filter(isNew), ...viewed]);
}
