/**
 * What a running turn has shown so far: the reducer of turn events. nanobot/agent/feed.py has the same one in Python,
 * and tests/webui/turn_views.json holds both.
 */

/** A view as `{turn_id, session, channel, seq, started, parts}`. */
export function newTurnView(started, session, channel) {
  return { turn_id: started.turn_id, session, channel, seq: started.seq, started, parts: [] };
}

/** The newest part of this type with this value of a field; a new one if there is none. */
function lastPart(view, type, name, value) {
  const part = view.parts.findLast((each) => each.type === type && (name === undefined || each[name] === value));
  if (part) return part;
  view.parts.push(name === undefined ? { type, text: "" } : { type, [name]: value });
  return view.parts.at(-1);
}

/** Apply the next event. Events that the view has seen already change nothing. */
export function applyEvent(view, event) {
  if (event.seq <= view.seq) return;
  view.seq = event.seq;
  switch (event.type) {
    case "text_started":
      view.parts.push({ type: "text", text: "", ...(event.continues && { continues: true }) });
      break;
    case "reasoning_started":
      view.parts.push({ type: "reasoning", text: "" });
      break;
    case "text_delta":
    case "reasoning_delta":
      lastPart(view, event.type.replace("_delta", "")).text += event.text;
      break;
    case "text_ended":
    case "reasoning_ended":
      lastPart(view, event.type.replace("_ended", "")).text = event.text;
      break;
    case "tool_started":
      view.parts.push({ type: "tool", call_id: event.call_id, name: event.name, arguments: event.arguments });
      break;
    case "tool_delta":
      lastPart(view, "tool", "call_id", event.call_id).progress = event.text;
      break;
    case "tool_ended": {
      const { ok, content, seconds, display = null } = event;
      Object.assign(lastPart(view, "tool", "call_id", event.call_id), { ok, content, seconds, display });
      break;
    }
    case "notice":
      view.parts.push({ type: "notice", text: event.text, kind: event.kind });
      break;
    case "approval_asked":
      view.parts.push({ ...event, type: "approval" });
      break;
    case "approval_answered":
      lastPart(view, "approval", "question", event.question).answer = event.answer;
      break;
  }
}
