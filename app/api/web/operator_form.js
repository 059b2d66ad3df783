/* A form for an operator without a drawing. It shows the request as curl, the response as tables, and an error at the
 * field that caused it. Subclasses define the controls and the parts of the request to which they belong. */

import { curlText } from "./code_examples.js";
import { byId, isShown, make, problemParagraphs } from "./elements.js";
import { jsonOf, parsed, postJson, Problem, sizeAbove, textOf } from "./service.js";
import { TensorGrid } from "./tensor_grid.js";
import { elementsOf, parseExactly, shapeText, sizeText } from "./tensor_values.js";
import { selectPlace, typingProblem } from "./typed_json.js";

/** Maximum bytes of an output that is requested and shown. */
const MOST_BYTES = 1 << 20;
/** Maximum bytes of a JSON response to fetch. Strings have no other limit, because explanations omit their size. */
export const MOST_JSON = 16 * MOST_BYTES;
const EMPTY = "Run it to see its outputs.";

export class OperatorForm {
  /** `name` is the prefix of the ids of the form's parts. */
  constructor(name) {
    this.name = name;
    this.form = byId(`${name}-form`);
    this.outcome = byId(`${name}-outcome`);
    this.outputs = byId(`${name}-outputs`);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run();
    });
    this.form.addEventListener("input", () => this.refresh());
  }

  /** Handle a change of the form: clear the response to an earlier request, and update the code. */
  refresh() {
    this.asked = null;
    this.arrange();
    this.#clear();
    this.outcome.textContent = EMPTY;
    byId(`${this.name}-curl`).textContent = curlText(this.path(), this.body());
    byId(`${this.name}-answer`).textContent = "Run it to see its answer.";
  }

  /** Handle a change of the offered options. The response stays if the request is the same. */
  refreshIfChanged() {
    this.arrange();
    if (curlText(this.path(), this.body()) !== byId(`${this.name}-curl`).textContent) this.refresh();
  }

  /** Send the form's request, and show the response or the error. */
  async run() {
    const asked = (this.asked = {});
    const [path, body] = [this.path(), this.body()];
    const button = byId(`${this.name}-run`);
    button.setAttribute("aria-busy", "true");
    this.#clear();
    try {
      const typing = typingProblem(this.form);
      if (typing) throw typing;
      const { explanation } = await jsonOf(await postJson(`${path}?explain=true`, body));
      if (this.asked !== asked) return;
      if (explanation.output_bytes > MOST_BYTES) {
        this.outcome.textContent =
          `The outputs have ${sizeText(explanation.output_bytes)}: too much to show here. Take the request as curl.`;
        return;
      }
      const began = performance.now();
      const response = await postJson(path, body);
      const size = sizeAbove(response, MOST_JSON);
      const text = size === null ? await textOf(response) : "";
      if (this.asked !== asked) return;
      if (size !== null) {
        this.outcome.textContent = `The answer has ${sizeText(size)}: too much to show here.`;
        return;
      }
      const answer = parsed(text, parseExactly);
      const outputs = this.outputsOf(answer).map(([name, tensor]) => [name, tensor, tensor.shape.map(Number)]);
      for (const output of outputs) this.#showOutput(...output);
      this.outputs.scrollIntoView({ block: "nearest" });
      const replaced = answer.replaced === undefined ? "" : ` Replaced components: ${answer.replaced}.`;
      const what = outputs.map(([name, { dtype }, shape]) => `${name} ${dtype} ${shapeText(shape)}`).join(", ");
      this.outcome.textContent = `${what}: ${(performance.now() - began).toFixed(1)} ms there and back.${replaced}`;
      byId(`${this.name}-answer`).textContent = text;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (this.asked === asked) this.#showProblem(error);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  #clear() {
    this.outputs.replaceChildren();
    this.outcome.textContent = "";
    byId(`${this.name}-problem`)?.remove();
    for (const control of this.form.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
  }

  #showOutput(name, tensor, shape) {
    const grid = make("div", { className: "grid" });
    const caption = make("h2", {}, `${name} `, make("span", {}, `${tensor.dtype} ${shapeText(shape)}`));
    this.outputs.append(make("div", { className: "tensor" }, caption, grid));
    const elements = elementsOf(tensor, tensor.dtype.startsWith("complex"));
    new TensorGrid(grid, () => {}).draw({ name, shape, textOf: (flat) => elements[flat], tuplesOf: () => [] });
  }

  /** Show an error at the control that it points to, or at the end of the form. */
  #showProblem(problem) {
    const id = `${this.name}-problem`;
    const box = make("div", { className: "problem field-problem", id, role: "alert" }, ...problemParagraphs(problem));
    const control = problem.control ?? this.controlOf(problem.errors[0]?.pointer ?? "");
    if (control && isShown(control, this.form)) {
      control.after(box);
      control.setAttribute("aria-invalid", "true");
      control.setAttribute("aria-describedby", id);
    } else {
      this.form.append(box);
    }
    box.scrollIntoView({ block: "nearest" });
    if (problem.control) selectPlace(problem);
  }
}

/** Return a control's text on one line. It is not checked here, because the service reports errors in it. */
export const typed = (control) => control.value.trim().replace(/\s*\n\s*/g, " ");

/** Return a request's tensor with the values of a control. */
export const tensorText = (dtype, control) => `{"dtype": "${dtype}", "values": ${typed(control)}}`;

/**
 * Return `tensors` by name, and the `chosen` ones of `before`: a reloaded list has only its first page, and only current
 * versions.
 */
export function withChosen(tensors, before, chosen) {
  const found = new Map(tensors.map((tensor) => [tensor.name, tensor]));
  for (const name of chosen) if (before.has(name) && !found.has(name)) found.set(name, before.get(name));
  return found;
}

/** Return options for `residents`, which are tensors by name. */
export const tensorOptions = (residents) => [...residents].map(([name, { dtype, shape }]) =>
  make("option", { value: name }, `${name}: ${dtype} ${shapeText(shape)}`));

/** Make `names` the options of a select. The chosen option stays chosen if it is one of them. */
export function offer(select, names) {
  const before = select.value;
  select.replaceChildren(...names.map((name) => make("option", {}, name)));
  if (names.includes(before)) select.value = before;
}
