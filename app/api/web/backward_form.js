/* The form of gradients: adds slices of grad_output to zeros of the data's shape, at their indices. */

import { byId, make } from "./elements.js";
import { offer, OperatorForm, tensorOptions, tensorText, typed, withChosen } from "./operator_form.js";

const TYPED = "";
const CONTROLS = {
  "/dialect": "dialect", "/data_shape": "data-shape", "/tensor": "tensor", "/lda_coeff": "lda-coeff",
  "/sparse": "sparse", "/indices/dtype": "indices-dtype", "/grad_output/dtype": "grad-output-dtype",
};

export class BackwardForm extends OperatorForm {
  /** `operators` are the gathers that have a gradient; `dtypes` are the types of grad_output. */
  constructor({ operators, dtypes }) {
    super("backward");
    this.operators = operators;
    this.residents = new Map();
    offer(byId("backward-operator"), operators.map(({ name }) => name));
    offer(byId("backward-grad-output-dtype"), dtypes);
    byId("backward-grad-output-dtype").value = "float32";
    byId("backward-tensor").append(make("option", { value: TYPED }, "a shape typed here"));
    this.refresh();
  }

  /** Offer the shapes of these resident tensors. */
  setResidents(tensors) {
    const select = byId("backward-tensor");
    const chosen = select.value;
    this.residents = withChosen(tensors, this.residents, [chosen]);
    select.replaceChildren(make("option", { value: TYPED }, "a shape typed here"), ...tensorOptions(this.residents));
    select.value = chosen;
    this.refreshIfChanged();
  }

  arrange() {
    const { parameter, dialects } = this.#operator();
    offer(byId("backward-dialect"), dialects.map(({ name }) => name));
    offer(byId("backward-indices-dtype"), this.#dialect().index_dtypes);
    if (this.arranged !== this.#dialect()) byId("backward-indices-dtype").value = "int64";
    this.arranged = this.#dialect();
    byId("backward-parameter-name").textContent = parameter;
    byId("backward-batch-dims-field").hidden = !this.#dialect().batch_dims;
    byId("backward-data-shape-field").hidden = byId("backward-tensor").value !== TYPED;
  }

  path() {
    return `${this.#operator().name}/backward`;
  }

  body() {
    const { parameter, dialects } = this.#operator();
    const dialect = this.#dialect();
    const tensor = byId("backward-tensor").value;
    const control = (part) => byId(`backward-${part}`);
    const lines = [
      `"indices": ${tensorText(control("indices-dtype").value, control("indices"))}`,
      `"grad_output": ${tensorText(control("grad-output-dtype").value, control("grad-output"))}`,
      tensor === TYPED ? `"data_shape": ${typed(control("data-shape"))}` : `"tensor": ${JSON.stringify(tensor)}`,
    ];
    const number = control("parameter").value;
    if (number !== "" && (Number(number) !== 0 || dialect.needs_parameter)) lines.push(`"${parameter}": ${number}`);
    const batchDims = control("batch-dims").value;
    if (dialect.batch_dims && Number(batchDims) !== 0) lines.push(`"batch_dims": ${batchDims}`);
    if (dialect !== dialects[0]) lines.push(`"dialect": "${dialect.name}"`);
    const coefficient = typed(control("lda-coeff"));
    if (coefficient !== "" && coefficient !== "1") lines.push(`"lda_coeff": ${coefficient}`);
    if (control("sparse").checked) lines.push('"sparse": true');
    return `{\n  ${lines.join(",\n  ")}}`;
  }

  outputsOf(answer) {
    return ["grad_data", "grad_indices", "grad_values"].filter((name) => answer[name]).map((name) => [name, answer[name]]);
  }

  controlOf(pointer) {
    const parameter = `/${this.#operator().parameter}`;
    const part = pointer === parameter
      ? "parameter"
      : pointer === "/batch_dims" ? "batch-dims" : CONTROLS[pointer] ?? this.#arrayOf(pointer);
    return part ? byId(`backward-${part}`) : null;
  }

  #arrayOf(pointer) {
    const array = /^\/(indices|grad_output|data_shape)(\/|$)/.exec(pointer)?.[1];
    return array?.replace("_", "-");
  }

  #operator() {
    return this.operators.find(({ name }) => name === byId("backward-operator").value);
  }

  #dialect() {
    const { dialects } = this.#operator();
    return dialects.find(({ name }) => name === byId("backward-dialect").value) ?? dialects[0];
  }
}
