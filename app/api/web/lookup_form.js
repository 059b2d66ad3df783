/* The form of lookups. A feature reads rows of a resident tensor: single rows, or bags of rows that are pooled. */

import { byId, make } from "./elements.js";
import { offer, OperatorForm, tensorOptions, tensorText, typed, withChosen } from "./operator_form.js";
import { shapeText } from "./tensor_values.js";

const PARTS = ["tensor", "indices", "offsets", "weights", "pooling"];
const LAST = "include_last_offset";

export class LookupForm extends OperatorForm {
  constructor({ index_dtypes: indexTypes, poolings }) {
    super("lookup");
    this.indexTypes = indexTypes;
    this.poolings = poolings;
    this.residents = new Map();
    this.features = [];
    this.count = 0;
    byId("lookup-add").addEventListener("click", () => {
      this.#add();
      this.refresh();
    });
    this.#add();
    this.refresh();
  }

  /** Offer these resident tensors as tables. */
  setResidents(tensors) {
    this.residents = withChosen(tensors, this.residents, this.features.map(({ tensor }) => tensor.value));
    byId("lookup-note").hidden = tensors.length > 0;
    for (const feature of this.features) this.#offerTables(feature);
    this.refreshIfChanged();
  }

  arrange() {
    byId("lookup-fill-value-field").hidden = byId("lookup-out-of-bounds").value !== "fill";
    this.features.forEach(({ box, legend, tensor, pooling, fields, remove }, number) => {
      legend.textContent = `Feature ${number}`;
      remove.hidden = this.features.length === 1;
      remove.setAttribute("aria-label", `Remove feature ${number}`);
      fields.offsets.hidden = fields.last.hidden = pooling.value === "none";
      fields.weights.hidden = pooling.value !== "sum";
      const table = this.residents.get(tensor.value);
      box.dataset.table = table ? `${table.dtype} ${shapeText(table.shape)}` : "";
    });
  }

  path() {
    return "lookup";
  }

  body() {
    const features = this.features.map(({ tensor, dtype, indices, offsets, last, weights, pooling }) => {
      const members = [`"tensor": ${JSON.stringify(tensor.value)}`, `"indices": ${tensorText(dtype.value, indices)}`];
      if (pooling.value !== "none") {
        members.push(`"pooling": "${pooling.value}"`, `"offsets": ${tensorText(dtype.value, offsets)}`);
        if (last.checked) members.push('"include_last_offset": true');
        if (pooling.value === "sum" && typed(weights)) {
          members.push(`"weights": ${tensorText(this.residents.get(tensor.value)?.dtype ?? "float32", weights)}`);
        }
      }
      return `    {${members.join(", ")}}`;
    });
    const lines = [`"features": [\n${features.join(",\n")}]`];
    if (!byId("lookup-concat").checked) lines.push('"concat": false');
    const outOfBounds = byId("lookup-out-of-bounds").value;
    if (outOfBounds !== "error") lines.push(`"out_of_bounds": "${outOfBounds}"`);
    const fill = typed(byId("lookup-fill-value"));
    if (outOfBounds === "fill" && fill) lines.push(`"fill_value": ${fill}`);
    const outputDtype = byId("lookup-output-dtype").value;
    if (outputDtype) lines.push(`"output_dtype": "${outputDtype}"`);
    return `{\n  ${lines.join(",\n  ")}}`;
  }

  outputsOf({ output, outputs }) {
    return output ? [["output", output]] : outputs.map((each, number) => [`outputs[${number}]`, each]);
  }

  controlOf(pointer) {
    const match = /^\/features\/(\d+)(?:\/(\w+))?/.exec(pointer);
    if (match) {
      const feature = this.features[Number(match[1])];
      if (match[2] === LAST) return feature?.last ?? null;
      return feature?.[PARTS.includes(match[2]) ? match[2] : "tensor"] ?? null;
    }
    const id = {
      "/out_of_bounds": "lookup-out-of-bounds", "/fill_value": "lookup-fill-value", "/output_dtype": "lookup-output-dtype",
    }[pointer];
    return id ? byId(id) : null;
  }

  #add() {
    const id = `lookup-${this.count++}`;
    const control = (tag, part, properties = {}) => make(tag, { id: `${id}-${part}`, ...properties });
    const area = (part, value) => control("textarea", part, { value, rows: 2, spellcheck: false, autocapitalize: "off" });
    const feature = {
      tensor: control("select", "tensor"),
      dtype: control("select", "dtype"),
      indices: area("indices", "[0, 1, 0]"),
      pooling: control("select", "pooling"),
      offsets: area("offsets", "[0, 2]"),
      last: control("input", "last", { type: "checkbox" }),
      weights: area("weights", ""),
      legend: make("legend"),
      remove: make("button", { type: "button" }, "Remove"),
    };
    feature.weights.dataset.optional = "";
    offer(feature.dtype, this.indexTypes);
    offer(feature.pooling, this.poolings);
    this.#offerTables(feature);
    const field = (part, label) => make("div", {}, make("label", { htmlFor: `${id}-${part}` }, label), feature[part]);
    feature.fields = {
      offsets: field("offsets", "Offsets: the first index of each bag"),
      last: make("label", { className: "check" }, feature.last, ` ${LAST}: the end of the last bag too`),
      weights: field("weights", "Weights, one for each index; none if empty"),
    };
    feature.box = make("fieldset", { className: "feature" }, feature.legend,
      make("div", { className: "pair" }, field("tensor", "Table"), field("pooling", "pooling")),
      make("div", { className: "typed" },
        make("label", { htmlFor: `${id}-indices` }, "Indices"),
        make("label", { htmlFor: `${id}-dtype`, className: "beside" }, "of type"),
        feature.dtype, feature.indices),
      feature.fields.offsets, feature.fields.last, feature.fields.weights, feature.remove);
    feature.remove.addEventListener("click", () => {
      this.features = this.features.filter((each) => each !== feature);
      feature.box.remove();
      this.refresh();
      byId("lookup-add").focus();
    });
    this.features.push(feature);
    byId("lookup-features").append(feature.box);
  }

  #offerTables({ tensor }) {
    const chosen = tensor.value;
    tensor.replaceChildren(...tensorOptions(this.residents));
    if (this.residents.has(chosen)) tensor.value = chosen;
  }
}
