/* Draws a gather or a scatter: data, indices, updates and output, with one color per tuple. Pointing at an element of the
 * output highlights its tuple and its source. Pointing at a tuple highlights everything that it selects or writes. */

import { byId, make } from "./elements.js";
import { coordinates, flatPosition, MOST_TRACED, product, traceOutput, tupleDepth } from "./source_positions.js";
import { colourOf, TensorGrid } from "./tensor_grid.js";
import { shapeText } from "./tensor_values.js";

const MOST_LINES = 48;
const MOST_REASONS = 4;
const INPUTS = ["indices", "data", "updates"];

export class GatherDrawing {
  constructor() {
    this.data = new TensorGrid(byId("data-grid"), (flat) => this.#point("data", flat));
    this.indices = new TensorGrid(byId("indices-grid"), (flat) => this.#point("indices", flat));
    this.updates = new TensorGrid(byId("updates-grid"), (flat) => this.#point("updates", flat));
    this.output = new TensorGrid(byId("output-grid"), (flat) => this.#point("output", flat));
    this.lines = byId("source-lines");
    this.story = byId("drawing-story");
    this.clear();
  }

  clear() {
    for (const grid of [this.data, this.indices, this.updates, this.output]) grid.clear();
    for (const part of INPUTS) byId(`${part}-reasons`).replaceChildren();
    this.trace = null;
    this.#light([], []);
  }

  /** Highlight only the focused element, if any. */
  lightFocused() {
    const focused = document.activeElement?.closest(".grid [data-flat]");
    if (focused) this.#point(focused.closest(".grid").id.split("-")[0], Number(focused.dataset.flat));
    else this.#light([], []);
  }

  /**
   * Draw a gather or a scatter. Inputs are `{shape, elements, dtype, name}`. Resident data has no elements, and an input
   * whose text is not a tensor is null. A gather has no `updates`. `output` is `{shape, elements}` after the service has
   * answered.
   */
  draw({ operator, parameter, batchDims, wraps, outOfBounds, reduction, data, indices, updates, output }) {
    this.clear();
    this.request = { data, indices, updates, output, reduction };
    this.depth = indices ? tupleDepth(operator, indices.shape) : 1;
    const isTyped = Boolean(data && indices) && updates !== null;
    this.trace = isTyped && traceOutput({
      operator, dataShape: data.shape, indicesShape: indices.shape, indices: indices.elements,
      updatesShape: updates?.shape, reduction, parameter, batchDims, wraps, outOfBounds,
    });
    const trace = this.trace;
    const tuplesAt = { data: new Map(), updates: new Map(), output: new Map() };
    const sourceOf = new Map(); // for each output element that comes from a single element of data
    for (const { output: target, part, place, tuple } of trace?.links ?? []) {
      sourceOf.set(target, sourceOf.has(target) || part !== "data" ? NaN : place);
      if (tuple === null) continue;
      for (const [found, flat] of [[tuplesAt[part], place], [tuplesAt.output, target]]) {
        if (!found.has(flat)) found.set(flat, new Set());
        found.get(flat).add(tuple);
      }
    }
    const known = new Map(output ? [...sourceOf].map(([target, source]) => [source, output.elements[target]]) : []);
    const tuplesOf = (part) => (flat) => [...(tuplesAt[part].get(flat) ?? [])];
    byId("updates-panel").hidden = updates === undefined;
    this.#caption("data", data);
    this.#caption("indices", indices);
    this.#caption("updates", updates);
    this.#caption("output", output ?? (trace && { shape: trace.shape, dtype: data.dtype }));
    if (data) {
      this.data.draw({
        name: "data",
        shape: data.shape,
        textOf: (flat) => (data.elements ? data.elements[flat] : (known.get(flat) ?? null)),
        tuplesOf: tuplesOf("data"),
        wanted: [...tuplesAt.data.keys()].filter((source) => !Number.isNaN(source)),
        isSparse: !data.elements, // of a resident tensor, only elements in responses are known
      });
    }
    if (updates) {
      this.updates.draw({
        name: "updates",
        shape: updates.shape,
        textOf: (flat) => updates.elements[flat],
        tuplesOf: tuplesOf("updates"),
      });
    }
    if (indices) {
      this.indices.draw({
        name: "indices",
        shape: indices.shape,
        textOf: (flat) => indices.elements[flat],
        tuplesOf: (flat) => [Math.floor(flat / this.depth)],
      });
    }
    const shape = output?.shape ?? trace?.shape;
    if (shape) {
      this.output.draw({
        name: "output",
        shape,
        textOf: (flat) => (output ? (output.elements[flat] ?? null) : "?"),
        tuplesOf: tuplesOf("output"),
        wanted: [...tuplesAt.output.keys()],
      });
    }
    byId("output-note").hidden = Boolean(shape);
    byId("output-note").textContent = this.trace === null
      ? "These shapes do not fit together: run it, and the error says which rule was broken."
      : "Type each tensor as nested lists to see its output.";
  }

  /** Mark each index or data element that an error points to. `reason` is the error's text. */
  markWrong(places, reason) {
    for (const { pointer = "", position, allowed } of places) {
      for (const part of INPUTS) {
        const tensor = this.request?.[part];
        if (!tensor || !pointer.startsWith(`/${part}`)) continue;
        const numbers = position ?? (pointer.split("/values/")[1] ?? "").split("/").filter(Boolean).map(Number);
        if (numbers.length !== tensor.shape.length || !tensor.elements) continue;
        const flat = flatPosition(numbers, tensor.shape);
        this[part].markWrong(flat, reason);
        const reasons = byId(`${part}-reasons`);
        if (reasons.childElementCount < MOST_REASONS) {
          const range = allowed ? ` is outside ${shapeText(allowed)}` : "";
          reasons.append(make("p", {}, `${part}${shapeText(numbers)} = ${tensor.elements[flat]}${range}`));
        }
      }
    }
  }

  #caption(part, tensor) {
    byId(`${part}-caption`).textContent = tensor ? `${tensor.dtype ?? ""} ${shapeText(tensor.shape)}`.trim() : "";
  }

  #point(part, flat) {
    const trace = this.trace;
    if (flat === null) {
      this.lightFocused();
      return;
    }
    if (!trace) return;
    const tuple = Math.floor(flat / this.depth);
    const isMeant = {
      output: (link) => link.output === flat,
      indices: (link) => link.tuple === tuple,
    }[part] ?? ((link) => link.part === part && link.place === flat);
    const found = trace.links.filter(isMeant);
    const tuples = new Set(found.map((link) => link.tuple).filter((each) => each !== null));
    if (part === "indices") tuples.add(tuple);
    const cells = [
      ...(part === "indices" ? [] : [this[part].cell(flat)]),
      ...found.flatMap((link) => [this.output.cell(link.output), this[link.part].cell(link.place)]),
      ...[...tuples].flatMap((each) => this.#cellsOfTuple(each)),
    ];
    this.#light(found.length || part === "indices" ? cells.filter(Boolean) : [], found);
    this.story.textContent = this.#tell(part, flat, found, [...tuples]);
  }

  #cellsOfTuple(tuple) {
    return Array.from({ length: this.depth }, (_, place) => this.indices.cell(tuple * this.depth + place));
  }

  /** Describe the element pointed at. */
  #tell(part, flat, found, tuples) {
    const { data, indices, updates, output, reduction } = this.request;
    const at = (name, place, shape) => `${name}[${coordinates(place, shape).join(", ")}]`;
    const tupleText = (tuple) => {
      const parts = indices.elements.slice(tuple * this.depth, (tuple + 1) * this.depth);
      return `tuple ${tuple} (${parts.join(", ")})`;
    };
    const isWhole = Math.max(product(this.trace.shape), product(updates?.shape ?? [])) <= MOST_TRACED;
    if (!isWhole && !found.length) return `Only the first ${MOST_TRACED.toLocaleString("en")} elements of the output are traced.`;
    if (part === "output") {
      const value = output ? ` = ${output.elements[flat]}` : "";
      const place = `${at("output", flat, this.trace.shape)}${value}`;
      if (found.some((link) => Number.isNaN(link.place))) return `${place}: an index of ${tupleText(tuples[0])} is out of bounds.`;
      const sources = found.map((link) => at(link.part, link.place, link.part === "data" ? data.shape : updates.shape));
      if (!tuples.length) return `${place} is ${sources.join("")}, unchanged.`;
      const by = tuples.map(tupleText).join(" and ");
      if (!updates) return `${place} comes from ${sources.join("")}, chosen by ${by}.`;
      return reduction === "none"
        ? `${place} comes from ${sources.join("")}, written by ${by}.`
        : `${place} comes from ${sources.join(", ")} by the reduction ${reduction}, with ${by}.`;
    }
    const count = `${isWhole ? "" : "at least "}${found.length === 1 ? "1 element" : `${found.length} elements`}`;
    if (part === "indices") return `${tupleText(tuples[0])} ${updates ? "writes" : "selects"} ${count} of the output.`;
    if (part === "updates") {
      const place = at("updates", flat, updates.shape);
      return found.length
        ? `${place} goes to ${at("output", found[0].output, this.trace.shape)}, by ${tuples.map(tupleText).join("")}.`
        : `${place} goes nowhere: its index is out of bounds, or a later update of the same element counts.`;
    }
    if (updates) return `${at("data", flat, data.shape)} ${found.length ? "goes to the output at its place" : "is overwritten"}.`;
    return found.length
      ? `${at("data", flat, data.shape)} goes to ${count} of the output, by ${tuples.map(tupleText).join(" and ")}.`
      : `${at("data", flat, data.shape)} is not selected.`;
  }

  #light(cells, found) {
    for (const lit of this.lit ?? []) lit.classList.remove("lit");
    this.lit = cells;
    for (const cell of cells) cell.classList.add("lit");
    this.lines.replaceChildren();
    if (!cells.length) {
      this.story.textContent = "Point at a cell, or move to it with Tab and the arrow keys, to see where it comes from.";
    }
    for (const { part, place, output, tuple } of found.slice(0, MOST_LINES)) {
      if (tuple !== null) this.#line(this[part].cell(place), this.output.cell(output), tuple);
    }
  }

  /** Return a curve from a source's row to its place in the output, which is beside or below. */
  #line(from, to, tuple) {
    if (!from || !to) return;
    const frame = this.lines.getBoundingClientRect();
    const [a, b] = [from, to].map((cell) => cell.parentElement.getBoundingClientRect());
    const rightEdge = (row, cell) => Math.min(row.right, cell.closest(".grid").getBoundingClientRect().right);
    const beside = b.left > a.right;
    const x0 = rightEdge(a, from) - frame.left + 4;
    const y0 = a.top + a.height / 2 - frame.top;
    const x1 = beside ? b.left - frame.left - 2 : rightEdge(b, to) - frame.left + 4;
    const y1 = b.top + b.height / 2 - frame.top;
    const bend = beside ? (x0 + x1) / 2 : Math.max(x0, x1) + 48;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", `M${x0} ${y0} C${bend} ${y0} ${bend} ${y1} ${x1} ${y1}`);
    path.setAttribute("class", colourOf(tuple));
    this.lines.append(path);
  }
}
