/* Forms below a table with keys: change, add and remove rows by key. */

import { confirmed } from "./confirm_dialog.js";
import { make, problemParagraphs } from "./elements.js";
import { jsonOf, postJson, Problem } from "./service.js";
import { selectPlace, typingProblem } from "./typed_json.js";

const REDUCTIONS = ["none", "add", "mul", "min", "max"];
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

export class KeyChanges {
  /** Draws the forms for tensor `name` into `host`. `onChange` is called when rows have changed. */
  constructor(host, name, onChange) {
    this.name = name;
    this.onChange = onChange;
    this.said = make("div", { role: "status", "aria-label": `Changes of ${name}` });
    this.reduction = make("select", { id: `reduction-of-${name}` }, ...REDUCTIONS.map((one) => make("option", {}, one)));
    this.updates = this.#field("updates", "Rows: a JSON list", "textarea");
    const [upserted, removed] = [this.#field("upserted", "Keys: a JSON list"), this.#field("removed", "Keys: a JSON list")];
    const upsert = this.#form("Change or add rows", "Change rows", [upserted, this.updates, [make("label", { htmlFor: this.reduction.id }, "Reduction"), this.reduction]],
      () => this.#upsert(upserted[1].value));
    const remove = this.#form("Remove rows", "Remove rows", [removed], () => this.#remove(removed[1].value));
    host.append(make("div", { className: "key-changes" }, upsert, remove), this.said);
  }

  /** Show examples of keys of type `keys`, and of rows of a table of `shape` and `dtype`. */
  update(keys, dtype, shape) {
    this.types = { keys, dtype };
    this.updates[1].placeholder = `one of shape [${shape.slice(1).join(", ")}] for each key, ${dtype}`;
  }

  #field(what, label, tag = "input") {
    const control = make(tag, { id: `${what}-of-${this.name}`, spellcheck: false, autocapitalize: "off", ...(tag === "input" && { type: "text" }) });
    return [make("label", { htmlFor: control.id }, label), control];
  }

  #form(title, action, fields, send) {
    const button = make("button", {}, action);
    const form = make("form", { role: "form", "aria-label": `${title} of ${this.name}` }, ...fields.flat(), button);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (button.getAttribute("aria-busy")) return; // ignore a second click
      button.setAttribute("aria-busy", "true");
      try {
        await this.#carryOut(form, send);
      } finally {
        button.removeAttribute("aria-busy");
      }
    });
    return make("details", {}, make("summary", {}, title), form);
  }

  async #carryOut(form, send) {
    const wrong = typingProblem(form);
    let said;
    try {
      if (wrong) throw wrong;
      const text = await send();
      if (text === null) return;
      said = [make("p", {}, text)];
      form.reset();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      said = problemParagraphs(problem);
    }
    this.said.classList.toggle("problem", said[0].className === "problem-text");
    this.said.replaceChildren(...said);
    if (wrong) selectPlace(wrong);
    else await this.onChange();
  }

  async #upsert(keys) {
    const body = `{"keys": ${this.#tensor(this.types.keys, keys)}, "updates": ${this.#tensor(this.types.dtype, this.updates[1].value)}, `
      + `"reduction": ${JSON.stringify(this.reduction.value)}}`;
    const { rows, inserted } = await this.#post("upsert", body);
    return `${count(inserted, "row")} added; ${this.name} has ${count(rows, "row")}.`;
  }

  async #remove(keys) {
    if (!(await confirmed(`Remove the rows of these keys from ${this.name}? This cannot be undone.`, "Remove"))) return null;
    const { rows, removed, missing } = await this.#post("remove", `{"keys": ${this.#tensor(this.types.keys, keys)}}`);
    const lacked = missing ? `, ${count(missing, "key")} missing` : "";
    return `${count(removed, "row")} removed${lacked}; ${this.name} has ${count(rows, "row")}.`;
  }

  /** Return a request's tensor. Its text is sent as typed, because int64 exceeds JavaScript's numbers. */
  #tensor(dtype, values) {
    return `{"dtype": ${JSON.stringify(dtype)}, "values": ${values}}`;
  }

  async #post(change, body) {
    return jsonOf(await postJson(`tensors/${encodeURIComponent(this.name)}/${change}`, body));
  }
}
