/* Shows a few rows of a resident tensor. */

import { make, problemParagraphs, replaceWithin } from "./elements.js";
import { ask, firstBytes, foreign, Problem } from "./service.js";
import { product } from "./source_positions.js";
import { readElements } from "./tensor_values.js";

const ROWS_AT_ONCE = 8;
const MOST_COLUMNS = 12;
/** Maximum bytes fetched for these rows. */
const MOST_BYTES = 1 << 20;

export class TensorRows {
  /** Draws the rows of tensor `name` into `host`. */
  constructor(host, name) {
    this.host = host;
    this.name = name;
    this.first = 0;
  }

  /** Load and draw a few rows of `shape`, from row `first` on. */
  async show(shape, first = this.first) {
    const asked = (this.asked = {});
    const { host, name } = this;
    const count = shape[0] ?? 1;
    first = Math.max(0, Math.min(first, count - 1));
    let last = Math.min(first + ROWS_AT_ONCE, count);
    let items;
    let elements;
    host.setAttribute("aria-busy", "true");
    try {
      const rows = shape.length ? `?rows=${first}:${last}` : "";
      const path = `tensors/${encodeURIComponent(name)}/content${rows}`;
      const response = await ask(path, { headers: { Accept: "application/octet-stream" } });
      // Use the header of this response, because the tensor may have been replaced since it was listed.
      const [dtype, sizes] = ["Dtype", "Shape"].map((field) => response.headers.get(`X-Gathernd-${field}`));
      if (dtype === null) throw foreign();
      items = product(sizes.split(",").slice(1).map(Number));
      elements = readElements(await firstBytes(response, MOST_BYTES), dtype, items * (last - first));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (asked === this.asked) replaceWithin(host, ...problemParagraphs(problem));
      return;
    } finally {
      if (asked === this.asked) host.removeAttribute("aria-busy");
    }
    if (asked !== this.asked) return;
    this.first = first;
    const columns = Math.min(items, MOST_COLUMNS);
    const whole = items ? Math.floor((elements.length - columns) / items) + 1 : last; // complete rows
    last = Math.min(last, first + Math.max(whole, 1));
    const table = make("table", { className: "rows-table", "aria-label": `Rows ${first} to ${last - 1} of ${name}` });
    for (let row = first; row < last; row++) {
      const begin = (row - first) * items;
      const cells = elements.slice(begin, begin + columns);
      const line = make("tr", {}, make("th", { scope: "row" }, String(row)), ...cells.map((text) => make("td", {}, text)));
      if (items > columns) line.append(make("td", { className: "note" }, `… ${(items - columns).toLocaleString("en")} more`));
      table.append(line);
    }
    replaceWithin(host,
      make("div", { className: "scrolls", tabIndex: 0, role: "region", "aria-label": `Rows of ${name}` }, table),
      this.#steps(shape, first, last, count));
  }

  #steps(shape, first, last, count) {
    const step = (label, to, isOpen) =>
      make("button", { type: "button", disabled: !isOpen, onclick: () => this.show(shape, to) }, label);
    const number = make("input", { type: "number", id: `row-of-${this.name}`, min: 0, max: Math.max(count - 1, 0), value: first, required: true });
    const goTo = make("form", {}, make("label", { htmlFor: number.id }, "Row"), number, make("button", {}, "Go"));
    goTo.addEventListener("submit", (event) => {
      event.preventDefault();
      this.show(shape, Number(number.value));
    });
    return make("div", { className: "steps" },
      step("Earlier", Math.max(0, first - ROWS_AT_ONCE), first > 0),
      step("Later", last, last < count),
      ...(count > 1 ? [goTo] : []),
      make("span", { className: "note", role: "status" }, count ? `rows ${first} to ${last - 1} of ${count.toLocaleString("en")}` : "no rows"));
  }
}
