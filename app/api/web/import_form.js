/* The form of imports: the service reads a tensor from a URL, and the form shows the progress. */

import { byId, sayAt } from "./elements.js";
import { ask, jsonOf, postJson, Problem } from "./service.js";
import { shapeText, sizeText } from "./tensor_values.js";

/** Milliseconds between two requests for an import's progress. */
const PAUSE = 300;
/** Consecutive failed requests before the form gives up. The import continues in the meantime. */
const MOST_FAILURES = 10;

export class ImportForm {
  /** `onMade` is called when a tensor has been imported. */
  constructor(onMade) {
    this.onMade = onMade;
    byId("import-url").addEventListener("change", () => this.#name());
    byId("import-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#import();
    });
    byId("import-cancel").addEventListener("click", () => this.cancel?.());
  }

  /** Name the tensor after the file unless the user has entered a name. */
  #name() {
    const name = byId("import-name");
    const [, stem] = /([^/]*?)(?:\.[^./]*)?$/.exec(byId("import-url").value.trim().replace(/[?#].*$/, ""));
    if (name.value && name.value !== this.given) return;
    name.value = this.given = stem.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[._-]+/, "").slice(0, 128);
  }

  async #import() {
    const form = byId("import-form");
    const entered = () => String(Array.from(form.querySelectorAll("input"), ({ value }) => value));
    const sent = entered();
    const name = byId("import-name").value.trim();
    const tensor = byId("import-tensor").value;
    const body = JSON.stringify({ url: byId("import-url").value.trim(), ...(tensor && { tensor }) });
    sayAt("import-result");
    byId("import-send").disabled = true;
    try {
      const begun = await jsonOf(await postJson(`tensors/${encodeURIComponent(name)}/import`, body));
      const path = `imports/${begun.id}`;
      this.cancel = () => ask(path, { method: "DELETE" }).catch((problem) => sayAt("import-result", problem));
      byId("import-running").hidden = false;
      const found = await this.#wait(begun, path);
      if (found.state === "cancelled") sayAt("import-result", "The import was cancelled.");
      else if (found.error) throw new Problem(found.error.status, found.error);
      else {
        const made = found.metadata;
        sayAt("import-result", `${made.name} is here: ${made.dtype} ${shapeText(made.shape)}, version ${made.version}.`);
        if (entered() === sent) form.reset();
        await this.onMade();
      }
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      sayAt("import-result", problem);
    } finally {
      byId("import-running").hidden = true;
      byId("import-send").disabled = false;
    }
  }

  /** Show an import's progress until it ends. Resolves to the import. */
  async #wait(begun, path) {
    const bar = byId("import-progress");
    let found = begun;
    let failures = 0;
    while (found.state === "running") {
      bar.max = Math.max(found.bytes_total, 1);
      bar.value = found.bytes_done;
      byId("import-progress-text").textContent = `${sizeText(found.bytes_done)} of ${sizeText(found.bytes_total)}`;
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
      try {
        found = await jsonOf(await ask(path));
        failures = 0;
      } catch (problem) {
        const mayPass = problem instanceof Problem && (problem.status === 0 || problem.status >= 500);
        if (!mayPass || ++failures > MOST_FAILURES) throw problem;
      }
    }
    return found;
  }
}
