/* Actions on a resident tensor or a version of it: download and delete. `reference` is NAME or NAME@7. */

import { confirmed } from "./confirm_dialog.js";
import { byId, make, sayAt } from "./elements.js";
import { ask, blobOf, Problem } from "./service.js";

const SAID = "tensors-said";
const NPY = "application/x-npy";

const pathOf = (reference) => `tensors/${encodeURIComponent(reference)}`;

/** Create the buttons. `what` names the tensor in the confirmation; `onDeleted` is called after a deletion. */
export function actionButtons(reference, what, onDeleted) {
  const button = (label, act) => {
    const made = make("button", { type: "button", "aria-label": `${label} ${reference}` }, label);
    made.addEventListener("click", async () => {
      if (made.getAttribute("aria-busy")) return; // ignore a second click
      made.setAttribute("aria-busy", "true");
      try {
        await act();
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        sayAt(SAID, problem);
        byId(SAID).scrollIntoView({ block: "nearest" });
      } finally {
        made.removeAttribute("aria-busy");
      }
    });
    return made;
  };
  return [
    button("Download", () => download(reference)),
    button("Delete", async () => {
      if (!(await confirmed(`Delete ${what}? This cannot be undone.`, "Delete"))) return;
      await ask(pathOf(reference), { method: "DELETE" });
      sayAt(SAID, `${reference} is deleted.`);
      await onDeleted();
    }),
  ];
}

/** Save a tensor as an npy file or, if npy lacks the type, as raw items with type and shape in the file's name. */
async function download(reference) {
  sayAt(SAID, `Downloading ${reference}…`);
  const response = await ask(`${pathOf(reference)}/content`, { headers: { Accept: `${NPY}, application/octet-stream;q=0.5` } });
  const [dtype, shape] = ["Dtype", "Shape"].map((field) => response.headers.get(`X-Gathernd-${field}`));
  const isNpy = response.headers.get("Content-Type") === NPY;
  const url = URL.createObjectURL(await blobOf(response)); // a link could not send the key
  make("a", { href: url, download: `${reference}${isNpy ? ".npy" : `.${dtype}.${shape.replaceAll(",", "x")}.bin`}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  sayAt(SAID, `${reference} is downloaded.`);
}
