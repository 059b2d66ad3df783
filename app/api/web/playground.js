/* The playground: a form for a gather or a scatter, the service's response, and a drawing of both. */

import { Snippets } from "./snippets.js";
import { byId, make, problemParagraphs } from "./elements.js";
import { EXAMPLES } from "./examples.js";
import { GatherDrawing } from "./gather_drawing.js";
import { MOST_JSON, offer, tensorOptions, withChosen } from "./operator_form.js";
import { jsonOf, parsed, postJson, Problem, sizeAbove, textOf } from "./service.js";
import { elementsOf, flatten, parseExactly, shapeText, sizeText } from "./tensor_values.js";
import { selectPlace, typingProblem } from "./typed_json.js";

/** Maximum bytes of an output that is requested and drawn. */
const MOST_BYTES = 1 << 20;
const INLINE = "";

export class Playground {
  /** `operators` are the service's; `onRun` is called with a gather's explanation and its response's Server-Timing. */
  constructor(operators, dtypes, onRun) {
    this.operators = operators;
    this.onRun = onRun;
    this.snippets = new Snippets(byId("snippets"));
    this.residents = new Map();
    this.drawing = new GatherDrawing();
    this.form = byId("gather-form");
    this.problem = byId("problem");
    this.outcome = byId("outcome");
    this.#fill(dtypes);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run();
    });
    this.form.addEventListener("input", (event) => {
      if (event.target.type === "radio") this.#chooseOperator(event.target.value);
      if (event.target.id === "dialect") this.#chooseDialect();
      this.preview();
    });
    addEventListener("resize", () => this.drawing.lightFocused());
    this.show(EXAMPLES[0]);
  }

  /** Offer these resident tensors as data. */
  setResidents(tensors) {
    const source = byId("data-source");
    const chosen = source.value;
    const before = this.residents.get(chosen);
    this.residents = withChosen(tensors, this.residents, [chosen]);
    source.replaceChildren(make("option", { value: INLINE }, "values typed here"), ...tensorOptions(this.residents));
    source.value = chosen;
    const now = this.residents.get(chosen);
    if (before?.dtype !== now?.dtype || String(before?.shape) !== String(now?.shape)) this.preview();
    else this.#writeCode();
  }

  /** Update the code after a key has been entered; the code then shows where to put the key. */
  refreshIfChanged() {
    this.#writeCode();
  }

  /** Put a version of a resident tensor into the form; `name` is like items@7. */
  useVersion(name, dtype, shape) {
    if (!this.residents.has(name)) {
      const added = new Map([[name, { dtype, shape }]]);
      this.residents.set(name, added.get(name));
      byId("data-source").append(...tensorOptions(added));
    }
    this.useResident(name);
  }

  /** Put a resident tensor into the form, with matching indices. */
  useResident(name) {
    const { shape } = this.residents.get(name);
    const last = (shape[0] ?? 1) - 1;
    const rows = last < 0 ? [] : [0, Math.min(1, last), last];
    this.#chooseOperator("gather");
    byId("parameter").value = 0;
    byId("batch-dims").value = 0;
    byId("data-source").value = name;
    byId("indices-dtype").value = "int64";
    byId("indices-values").value = JSON.stringify(rows);
    this.preview();
    byId("indices-values").focus({ preventScroll: true });
  }

  /** Put an example into the form. */
  show({
    operator, dialect, parameter = 0, batchDims = 0, outOfBounds, fillValue = "", reduction = "none", data, indices,
    updates = "",
  }) {
    this.#chooseOperator(operator);
    byId("reduction").value = reduction;
    byId("updates-values").value = updates;
    byId("fill-value").value = fillValue;
    byId("output-dtype").value = "";
    byId("dialect").value = dialect ?? this.defaultDialect;
    this.#chooseDialect();
    byId("out-of-bounds").value = outOfBounds ?? this.outOfBoundsDefault;
    byId("parameter").value = parameter;
    byId("batch-dims").value = batchDims;
    byId("data-source").value = INLINE;
    [byId("data-dtype").value, byId("data-values").value] = data;
    [byId("indices-dtype").value, byId("indices-values").value] = indices;
    this.preview();
  }

  /** Draw the form's inputs. The output is not known yet. */
  preview() {
    this.asked = null;
    byId("typed-data").hidden = byId("data-source").value !== INLINE;
    byId("fill-value-field").hidden = byId("out-of-bounds").value !== "fill";
    const { parameter, kind } = this.#operator();
    byId("parameter-field").hidden = parameter === null;
    byId("out-of-bounds-fields").hidden = kind !== "gather";
    byId("typed-updates").hidden = byId("reduction-field").hidden = kind !== "scatter";
    byId("run").textContent = kind === "scatter" ? "Scatter" : "Gather";
    this.#clearProblem();
    this.outcome.textContent = "";
    this.#draw(null);
    this.#writeCode();
    byId("answer-code").textContent = "Run it to see its answer.";
  }

  /** Send the form's request, and draw the response or the error. */
  async run() {
    const asked = (this.asked = {});
    const isCurrent = () => this.asked === asked;
    const body = this.#body();
    const operator = this.#operator().name;
    const button = byId("run");
    button.setAttribute("aria-busy", "true");
    this.#clearProblem();
    try {
      const typing = typingProblem(this.form);
      if (typing) throw typing;
      const { explanation, output: expected } = await jsonOf(await postJson(`${operator}?explain=true`, body));
      if (explanation.output_bytes > MOST_BYTES) {
        if (isCurrent()) {
          this.outcome.textContent =
            `The output, ${expected.dtype} ${shapeText(expected.shape)}, has ${sizeText(explanation.output_bytes)}: ` +
            "too much to draw here. Take the request as code.";
        }
        return;
      }
      const began = performance.now();
      const response = await postJson(operator, body);
      const size = sizeAbove(response, MOST_JSON);
      if (size !== null) {
        if (isCurrent()) this.outcome.textContent = `The answer has ${sizeText(size)}: too much to draw here.`;
        return;
      }
      const text = await textOf(response);
      const milliseconds = performance.now() - began;
      if (!isCurrent()) return;
      const answer = parsed(text, parseExactly);
      const shape = answer.output.shape.map(Number);
      const { dtype } = answer.output;
      this.#draw({ shape, dtype, elements: elementsOf(answer.output, dtype.startsWith("complex")) });
      const times = response.headers.get("Server-Timing") ?? "";
      const kernel = kernelMicroseconds(times);
      this.outcome.textContent =
        `${dtype} ${shapeText(shape)}, by ${answer.dialect} on the ${answer.device.toUpperCase()}: ` +
        `${kernel === null ? "" : `${kernel} µs in the kernel, `}${milliseconds.toFixed(1)} ms there and back.` +
        (answer.replaced === undefined ? "" : ` Replaced components: ${answer.replaced}.`);
      for (const id of ["outcome", "output-panel"]) byId(id).scrollIntoView({ block: "nearest" });
      byId("answer-code").textContent = text;
      this.onRun(explanation, times);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (isCurrent()) this.#showProblem(error);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  #fill(dtypes) {
    byId("operator-choice").append(
      ...this.operators.map(({ name, title }) =>
        make("label", {}, make("input", { type: "radio", name: "operator", value: name }), make("span", { title }, name))),
    );
    byId("data-dtype").append(...dtypes.map((name) => make("option", {}, name)));
    byId("example-choice").append(
      ...EXAMPLES.filter(({ operator }) => this.operators.some(({ name }) => name === operator)).map((example) =>
        make("button", { type: "button", onclick: () => { this.show(example); this.run(); } }, example.title)),
    );
    byId("data-source").append(make("option", { value: INLINE }, "values typed here"));
  }

  #operator() {
    return this.operators.find(({ name }) => this.form.querySelector(`[value="${name}"]`).checked);
  }

  #chooseOperator(name) {
    this.form.querySelector(`[value="${name}"]`).checked = true;
    const { parameter, dialects } = this.#operator();
    byId("parameter-name").textContent = parameter ?? "";
    const dialect = byId("dialect");
    const isDefault = dialect.value === this.defaultDialect;
    offer(dialect, dialects.map((each) => each.name));
    this.defaultDialect = dialects[0].name;
    if (isDefault) dialect.value = this.defaultDialect;
    offer(byId("reduction"), [...new Set(dialects.flatMap((each) => each.reductions))]);
    const indices = byId("indices-dtype");
    const chosen = indices.value;
    const types = new Set(dialects.flatMap((each) => each.index_dtypes));
    indices.replaceChildren(...[...types].map((each) => make("option", {}, each)));
    indices.value = types.has(chosen) ? chosen : "int64";
    this.#chooseDialect();
  }

  #dialect() {
    return this.#operator().dialects.find(({ name }) => name === byId("dialect").value);
  }

  /** Show the chosen dialect's fields, with its default for `out_of_bounds`. */
  #chooseDialect() {
    const { batch_dims: hasBatchDims, fills } = this.#dialect();
    byId("batch-dims-field").hidden = !hasBatchDims;
    const outOfBounds = byId("out-of-bounds");
    const before = this.outOfBoundsDefault ?? "error";
    this.outOfBoundsDefault = fills ? "fill" : "error";
    if (outOfBounds.value === before) outOfBounds.value = this.outOfBoundsDefault;
  }

  /** Return the additional batch_dims, or 0 if the dialect has none. */
  #batchDims() {
    return this.#dialect().batch_dims ? Number(byId("batch-dims").value || 0) : 0;
  }

  /** Return the request's JSON. Values are sent as typed; the service reports errors in them. */
  #body() {
    const values = (part) => byId(`${part}-values`).value.trim().replace(/\s*\n\s*/g, " ");
    const tensor = (part, dtype = byId(`${part}-dtype`).value) => `{"dtype": "${dtype}", "values": ${values(part)}}`;
    const source = byId("data-source").value;
    const { parameter, dialects, kind } = this.#operator();
    const { name: dialect, needs_parameter: needsParameter } = this.#dialect();
    const lines = [
      `"data": ${source === INLINE ? tensor("data") : `{"tensor": ${JSON.stringify(source)}}`}`,
      `"indices": ${tensor("indices")}`,
    ];
    if (kind === "scatter") lines.push(`"updates": ${tensor("updates", this.#dataType())}`);
    const number = byId("parameter").value;
    const isSent = number !== "" && (Number(number) !== 0 || needsParameter);
    if (parameter !== null && isSent) lines.push(`"${parameter}": ${number}`);
    if (this.#batchDims() !== 0) lines.push(`"batch_dims": ${this.#batchDims()}`);
    if (dialect !== dialects[0].name) lines.push(`"dialect": "${dialect}"`);
    if (kind === "scatter") {
      const reduction = byId("reduction").value;
      if (reduction !== "none") lines.push(`"reduction": "${reduction}"`);
      return `{\n  ${lines.join(",\n  ")}}`;
    }
    const outOfBounds = byId("out-of-bounds").value;
    if (outOfBounds !== this.outOfBoundsDefault) lines.push(`"out_of_bounds": "${outOfBounds}"`);
    const fill = byId("fill-value").value.trim();
    if (outOfBounds === "fill" && fill) lines.push(`"fill_value": ${fill}`);
    const outputDtype = byId("output-dtype").value;
    if (outputDtype) lines.push(`"output_dtype": "${outputDtype}"`);
    return `{\n  ${lines.join(",\n  ")}}`;
  }

  /** Return the parsed fill value: null if none is sent, undefined if it is not JSON. */
  #fillValue() {
    const text = byId("fill-value").value.trim();
    if (byId("out-of-bounds").value !== "fill" || !text) return null;
    try {
      return parseExactly(text);
    } catch {
      return undefined;
    }
  }

  /** Return the tensor typed as `part`, as `{shape, elements, dtype, values}`, or null if it is not a tensor. */
  #typed(part, dtype = byId(`${part}-dtype`).value) {
    try {
      const values = parseExactly(byId(`${part}-values`).value);
      const found = flatten(values, dtype.startsWith("complex"));
      return found && { ...found, dtype, values };
    } catch {
      return null;
    }
  }

  #dataType() {
    return this.residents.get(byId("data-source").value)?.dtype ?? byId("data-dtype").value;
  }

  /** Return the inputs. A gather has no updates. */
  #parts() {
    const name = byId("data-source").value;
    const resident = this.residents.get(name);
    const data = resident ? { name, dtype: resident.dtype, shape: resident.shape } : this.#typed("data");
    const updates = this.#operator().kind === "scatter" ? this.#typed("updates", this.#dataType()) : undefined;
    return { data, indices: this.#typed("indices"), updates };
  }

  #draw(output) {
    const parameter = Number(byId("parameter").value || 0);
    const { name: operator, kind } = this.#operator();
    const { wraps } = this.#dialect();
    const outOfBounds = kind === "gather" ? byId("out-of-bounds").value : "error";
    const reduction = byId("reduction").value;
    this.drawing.draw({
      operator, parameter, batchDims: this.#batchDims(), wraps, outOfBounds, reduction, output, ...this.#parts(),
    });
  }

  #writeCode() {
    const { name: operator, parameter: parameterName, dialects, kind } = this.#operator();
    const dialect = byId("dialect").value;
    this.snippets.write({
      operator, body: this.#body(), parameterName, ...this.#parts(),
      parameter: parameterName === null ? 0 : Number(byId("parameter").value || 0),
      dialect: dialect === dialects[0].name ? null : dialect,
      ...(kind === "gather"
        ? {
            batchDims: this.#batchDims(), fillValue: this.#fillValue(),
            outputDtype: byId("output-dtype").value || null,
            outOfBounds: byId("out-of-bounds").value === this.outOfBoundsDefault ? null : byId("out-of-bounds").value,
          }
        : { reduction: byId("reduction").value === "none" ? null : byId("reduction").value }),
    });
  }

  #clearProblem() {
    this.problem.hidden = true;
    this.problem.replaceChildren();
    byId("output-panel").after(this.problem);
    for (const control of this.form.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
  }

  #showProblem(problem) {
    this.#draw(null);
    this.problem.replaceChildren(...problemParagraphs(problem));
    this.problem.hidden = false;
    this.outcome.textContent = "";
    this.drawing.markWrong(problem.errors, problem.message);
    const control = problem.control ?? controlOf(problem.errors[0]?.pointer ?? "");
    if (control) {
      control.setAttribute("aria-invalid", "true");
      control.setAttribute("aria-describedby", "problem");
    }
    if (problem.control) {
      problem.control.after(this.problem);
      selectPlace(problem);
    }
    this.problem.scrollIntoView({ block: "nearest" });
  }
}

/** Return the control that an error's JSON pointer refers to. */
function controlOf(pointer) {
  const exact = { "/dialect": "dialect", "/batch_dims": "parameter", "/axis": "parameter", "/data/tensor": "data-source",
    "/out_of_bounds": "out-of-bounds", "/fill_value": "fill-value", "/reduction": "reduction",
    "/output_dtype": "output-dtype",
    "/updates/dtype": "data-dtype" };
  if (!byId("batch-dims-field").hidden) exact["/batch_dims"] = "batch-dims";
  const id = exact[pointer] ?? /^\/(data|indices|updates)\/(dtype|values)/.exec(pointer)?.slice(1).join("-");
  return id ? byId(id) : null;
}

/** Return the kernel's microseconds from the Server-Timing field. */
function kernelMicroseconds(field) {
  const match = /kernel;dur=([0-9.]+)/.exec(field);
  return match ? Number((Number(match[1]) * 1000).toPrecision(3)) : null;
}
