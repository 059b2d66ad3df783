/* What can be done with a resident tensor or one version of it: download and delete. `reference` is NAME or NAME@7. */

import { confirmed } from "./confirm_dialog.js";
import { byId, make, sayAt } from "./elements.js";
import { ask, blobOf, Problem } from "./service.js";

const SAID = "tensors-said";
const NPY = "application/x-npy";

const pathOf = (reference) => `tensors/${encodeURIComponent(reference)}`;

/** The buttons that download and delete; `what` words the question, `onDeleted` is called afterwards. */
export function actionButtons(reference, what, onDeleted) {
  const button = (label, act) => {
    const made = make("button", { type: "button", "aria-label": `${label} ${reference}` }, label);
    made.addEventListener("click", async () => {
      if (made.getAttribute("aria-busy")) return; // a second press
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

/** Save a content as an npy file; where npy lacks the type, as its raw items, described by the file's name. */
async function download(reference) {
  sayAt(SAID, `Downloading ${reference}…`);
  const response = await ask(`${pathOf(reference)}/content`, { headers: { Accept: `${NPY}, application/octet-stream;q=0.5` } });
  const [dtype, shape] = ["Dtype", "Shape"].map((field) => response.headers.get(`X-Gathernd-${field}`));
  const isNpy = response.headers.get("Content-Type") === NPY;
  const url = URL.createObjectURL(await blobOf(response)); // a plain link could send no key
  make("a", { href: url, download: `${reference}${isNpy ? ".npy" : `.${dtype}.${shape.replaceAll(",", "x")}.bin`}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  sayAt(SAID, `${reference} is downloaded.`);
}
