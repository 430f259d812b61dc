/** Requests to the gateway. */
import { signal } from "@preact/signals";
import { t } from "./words.js";

/** Whether this browser is signed in; null until that is known. */
export const isSignedIn = signal(null);

/** A request that failed. `status` is 0 if there was no answer. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error ?? "");
    this.status = status;
    this.body = body ?? {};
  }
}

/** Send a request with a JSON body, or with a Blob and these headers. Return the answer's JSON. */
export async function request(method, path, body, headers = {}) {
  const isBlob = body instanceof Blob;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined || isBlob ? headers : { "content-type": "application/json" },
      body: body === undefined || isBlob ? body : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0);
  }
  const answer = await response.json().catch(() => null);
  if (response.status === 401) isSignedIn.value = false;
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

/** Send a request, and yield the events of its answer as they come. It ends when `signal` aborts it. */
export async function* stream(path, body, signal) {
  const response = await fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (response.status === 401) isSignedIn.value = false;
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
  }
}

export const get = (path) => request("GET", path);
export const post = (path, body = {}) => request("POST", path, body);

export function sessionPath(key, rest) {
  return `/api/sessions/${encodeURIComponent(key)}/${rest}`;
}

/** The secret of a link of `nanobot web`; undefined if the text is none. */
export function keyOf(link) {
  return /#k=([\w-]+)/.exec(link)?.[1];
}

/** Exchange the secret of a link for this browser's cookie. Return what went wrong, empty if nothing did. */
export async function signIn(key) {
  try {
    await post("/api/pair", { key });
    return "";
  } catch (error) {
    return error.message || t("offline");
  }
}
