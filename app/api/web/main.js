/* Starts the page. The service's description is in the document as JSON; everything else is requested. */

import { AliasList } from "./alias_list.js";
import { BackwardForm } from "./backward_form.js";
import { serveCopyButtons } from "./copy_buttons.js";
import { ELEMENT_TYPES } from "./element_types.js";
import { byId } from "./elements.js";
import { ImportForm } from "./import_form.js";
import { LookupForm } from "./lookup_form.js";
import { Playground } from "./playground.js";
import { askForKeys, watchReadiness } from "./readiness.js";
import { TensorList } from "./tensor_list.js";
import { TensorUpload } from "./tensor_upload.js";
import { followAddress, goTo } from "./views.js";
import { showLastGather, showMetrics } from "./where_gathers_run.js";

const { operators, lookup, backward } = JSON.parse(byId("service").textContent);
const dtypes = [...ELEMENT_TYPES.keys()];

const playground = new Playground(operators, dtypes, showLastGather);
const forms = [playground, new LookupForm(lookup), new BackwardForm(backward)];
const aliases = new AliasList(() => tensors.refreshVersions());
const tensors = new TensorList({
  onList: (list) => forms.forEach((form) => form.setResidents(list)),
  onUse: async (reference, dtype, shape) => {
    await goTo("playground");
    if (dtype) playground.useVersion(reference, dtype, shape);
    else playground.useResident(reference);
  },
  onAliases: () => aliases.refresh(),
});
new TensorUpload(dtypes, () => tensors.refresh());
new ImportForm(() => tensors.refresh());

async function load() {
  await tensors.refresh();
  await aliases.refresh();
  await showMetrics();
}

serveCopyButtons();
byId("metrics-again").addEventListener("click", showMetrics);
followAddress({ routes: showMetrics });
askForKeys(() => {
  for (const form of forms) form.refreshIfChanged();
  load();
});
watchReadiness();
await load();
