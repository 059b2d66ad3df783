/* A search field below a table with keys: shows the row of a key, or that the table does not have the key. */

import { make, problemParagraphs } from "./elements.js";
import { ask, parsed, Problem, textOf } from "./service.js";
import { elementsOf, parseExactly } from "./tensor_values.js";

const MOST_COLUMNS = 12;

export class KeySearch {
  /** Draws the field for keys of tensor `name` into `host`. */
  constructor(host, name) {
    this.name = name;
    this.kind = make("span", { className: "note" });
    this.found = make("div", { className: "scrolls", role: "status", "aria-label": `Row of a key of ${name}` });
    this.key = make("input", { type: "text", id: `key-of-${name}`, spellcheck: false, autocapitalize: "off" });
    const form = make("form", {}, make("label", { htmlFor: this.key.id }, "Key"), this.key, make("button", {}, "Find"), this.kind);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#find(this.key.value);
    });
    host.append(make("div", { className: "steps" }, form), this.found);
  }

  /** Set the type of the keys to `dtype`, and clear the result for an older version. */
  update(dtype) {
    this.asked = {};
    this.kind.textContent = `keys are ${dtype}`;
    this.found.replaceChildren();
  }

  async #find(key) {
    const asked = (this.asked = {});
    let drawn;
    try {
      const path = `tensors/${encodeURIComponent(this.name)}/rows?key=${encodeURIComponent(key)}`;
      const { output, found } = parsed(await textOf(await ask(path)), parseExactly);
      drawn = [found.values[0] === true ? this.#row(key, output) : make("p", { className: "missing-key" }, `The table has no key ${key}.`)];
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      drawn = problemParagraphs(problem);
    }
    if (asked === this.asked) this.found.replaceChildren(...drawn);
  }

  #row(key, output) {
    const items = elementsOf(output, output.dtype.startsWith("complex"));
    const cells = items.slice(0, MOST_COLUMNS).map((text) => make("td", {}, text));
    const more = items.length - cells.length;
    if (more) cells.push(make("td", { className: "note" }, `… ${more.toLocaleString("en")} more`));
    return make("table", { className: "rows-table", "aria-label": `Row of key ${key}` },
      make("tr", {}, make("th", { scope: "row" }, key), ...cells));
  }
}
