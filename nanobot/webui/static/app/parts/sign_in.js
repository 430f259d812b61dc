/** Signing in with a link of `nanobot web`. */
import { useState } from "preact/hooks";
import { isSignedIn, post } from "../api.js";
import { html } from "../dom.js";
import { t } from "../words.js";

/** Exchange the secret of a link for this browser's cookie. Return what went wrong, empty if nothing did. */
export async function signIn(key) {
  try {
    await post("/api/pair", { key });
    return "";
  } catch (error) {
    return error.message || t("offline");
  }
}

/** `problem`: why the link of the address did not work. */
export function SignIn({ problem: first }) {
  const [link, setLink] = useState("");
  const [problem, setProblem] = useState(first);
  async function onSubmit(event) {
    event.preventDefault();
    const wrong = await signIn(link.split("#k=").at(-1).trim());
    setProblem(wrong);
    if (!wrong) isSignedIn.value = true;
  }
  return html`<main class="sign-in">
    <h1>${t("sign_in")}</h1>
    <p>${t("sign_in_hint")}</p>
    <pre><code>nanobot web</code></pre>
    <form onSubmit=${onSubmit}>
      <label>${t("sign_in_link")}<input type="text" value=${link} autocomplete="off" spellcheck=${false} required
        onInput=${(event) => setLink(event.currentTarget.value)} /></label>
      <button type="submit" class="primary">${t("sign_in")}</button>
    </form>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
  </main>`;
}
