/* The badge at the top of the page that shows whether the service is ready, and the form for a key. */

import { byId } from "./elements.js";
import { ask, hasKey, useKey, whenKeyIsNeeded } from "./service.js";

const WAITING = 1500;
const SETTLED = 15000;

/** Update the badge regularly while the page is visible. */
export async function watchReadiness() {
  const badge = byId("readiness");
  let isReady = false;
  const look = async () => {
    let text = "ready";
    isReady = true;
    try {
      await ask("readyz");
    } catch (problem) {
      isReady = false;
      text = problem.status ? problem.message : "no answer";
    }
    badge.className = `badge ${isReady ? "is-ready" : "is-not-ready"}`;
    if (badge.textContent !== text) badge.textContent = text;
  };
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, isReady ? SETTLED : WAITING));
  }
}

/** Show the form once a key is needed. `onKey` is called when a key has been entered. */
export function askForKeys(onKey) {
  const form = byId("key-form");
  const input = byId("key");
  whenKeyIsNeeded(() => {
    byId("key-note").textContent = hasKey()
      ? "The service does not know this key."
      : "This service requires an API key. It stays in this page's memory and is forgotten when you leave.";
    form.hidden = false;
    if (hasKey() && document.activeElement === document.body) input.focus(); // the focus was in the form before it was hidden
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(input.value.trim());
    input.value = "";
    form.hidden = true;
    onKey();
  });
}
