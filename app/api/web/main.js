/* Starts the page: what the service is stands in the document as JSON, the rest is asked for. */

import { BackwardForm } from "./backward_form.js";
import { byId } from "./elements.js";
import { LookupForm } from "./lookup_form.js";
import { Playground } from "./playground.js";
import { askForKeys, watchReadiness } from "./readiness.js";
import { ImportForm } from "./import_form.js";
import { ResidentTensors } from "./resident_tensors.js";
import { showExplanation, showMetrics } from "./where_gathers_run.js";

const { operators, dtypes, lookup, backward } = JSON.parse(byId("service").textContent);

const playground = new Playground(operators, dtypes, (explanation, kernel) => {
  showExplanation(explanation, kernel);
  showMetrics();
});
const forms = [playground, new LookupForm(lookup, showMetrics), new BackwardForm(backward, showMetrics)];
const tensors = new ResidentTensors(
  dtypes,
  (list) => forms.forEach((form) => form.setResidents(list)),
  (name) => playground.useResident(name),
  (reference, dtype, shape) => playground.useVersion(reference, dtype, shape),
);
new ImportForm(() => tensors.refresh());

async function load() {
  await tensors.refresh();
  await showMetrics();
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    const code = byId(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // the clipboard is for pages over HTTPS and on this machine
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

askForKeys(() => {
  for (const form of forms) form.refreshIfChanged();
  load();
});
watchReadiness();
await load();
