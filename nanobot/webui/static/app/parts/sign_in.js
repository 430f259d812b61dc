/** Signing in with a link of `nanobot web`. */
import { useState } from "preact/hooks";
import { isSignedIn, keyOf, signIn } from "../api.js";
import { html } from "../dom.js";
import { t } from "../words.js";

/** `problem`: why the link of the address did not work. */
export default function SignIn({ problem: first }) {
  const [link, setLink] = useState("");
  const [problem, setProblem] = useState(first);
  async function onSubmit(event) {
    event.preventDefault();
    const wrong = await signIn(keyOf(link) || link.trim());
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
