/* Asks for confirmation before an action that cannot be undone. */

import { byId } from "./elements.js";

/** Ask `question`; the confirming button is labeled `action`. Resolves to true if confirmed; Escape means no. */
export function confirmed(question, action) {
  const dialog = byId("confirm");
  byId("confirm-question").textContent = question;
  byId("confirm-yes").textContent = action;
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close("no");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no";
    dialog.showModal();
  });
}
