/* The drawing of a gather: data, indices and output, one colour for each tuple. What is pointed at lights up together
 * with what it comes from: an output's element with its tuple and its source, a tuple with all that it selects. */

import { byId, make } from "./elements.js";
import { coordinates, flatPosition, traceOutput, tupleDepth } from "./source_positions.js";
import { colourOf, TensorGrid } from "./tensor_grid.js";
import { shapeText } from "./tensor_values.js";

const MOST_LINES = 48;
const MOST_REASONS = 4;

export class GatherDrawing {
  constructor() {
    this.data = new TensorGrid(byId("data-grid"), (flat) => this.#point("data", flat));
    this.indices = new TensorGrid(byId("indices-grid"), (flat) => this.#point("indices", flat));
    this.output = new TensorGrid(byId("output-grid"), (flat) => this.#point("output", flat));
    this.lines = byId("source-lines");
    this.story = byId("drawing-story");
    this.clear();
  }

  clear() {
    for (const grid of [this.data, this.indices, this.output]) grid.clear();
    for (const part of ["data", "indices"]) byId(`${part}-reasons`).replaceChildren();
    this.trace = null;
    this.#light([], []);
  }

  /** Light up what is focused, if anything is, and nothing else. */
  lightFocused() {
    const focused = document.activeElement?.closest(".grid [data-flat]");
    if (focused) this.#point(focused.closest(".grid").id.split("-")[0], Number(focused.dataset.flat));
    else this.#light([], []);
  }

  /**
   * Draw a gather: `data` and `indices` as `{shape, elements, dtype, name}`, where the data of a resident tensor has no
   * elements; `output` as `{shape, elements}` once the service has answered.
   */
  draw({ operator, parameter, batchDims, wraps, outOfBounds, data, indices, output }) {
    this.clear();
    this.gather = { operator, data, indices, output };
    this.depth = indices ? tupleDepth(operator, indices.shape) : 1;
    this.trace = data && indices && traceOutput({
      operator, dataShape: data.shape, indicesShape: indices.shape, indices: indices.elements, parameter, batchDims, wraps,
      outOfBounds,
    });
    const trace = this.trace;
    const readers = new Map();
    const known = new Map();
    trace?.sources.forEach((source, flat) => {
      const tuple = trace.tuples[flat];
      if (!readers.has(source)) readers.set(source, new Set());
      readers.get(source).add(tuple);
      if (output) known.set(source, output.elements[flat]);
    });
    this.#caption("data", data);
    this.#caption("indices", indices);
    this.#caption("output", output ?? (trace && { shape: trace.shape, dtype: data.dtype }));
    if (data) {
      this.data.draw({
        name: "data",
        shape: data.shape,
        textOf: (flat) => (data.elements ? data.elements[flat] : (known.get(flat) ?? null)),
        tuplesOf: (flat) => [...(readers.get(flat) ?? [])],
        wanted: [...readers.keys()].filter((source) => !Number.isNaN(source)),
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
        tuplesOf: (flat) => (trace && flat < trace.tuples.length ? [trace.tuples[flat]] : []),
      });
    }
    byId("output-note").hidden = Boolean(shape);
  }

  /** Mark each index, or element of data, at which an error points; `reason` is the error's text. */
  markWrong(places, reason) {
    for (const { pointer = "", position, allowed } of places) {
      for (const part of ["indices", "data"]) {
        const tensor = this.gather?.[part];
        if (!tensor || !pointer.startsWith(`/${part}`)) continue;
        const numbers = position ?? (pointer.split("/values/")[1] ?? "").split("/").filter(Boolean).map(Number);
        if (numbers.length !== tensor.shape.length) continue;
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
      output: (place) => place === flat,
      data: (place) => trace.sources[place] === flat,
      indices: (place) => trace.tuples[place] === tuple,
    }[part];
    const found = trace.sources.flatMap((_, place) => (isMeant(place) ? [place] : []));
    const tuples = new Set(found.map((place) => trace.tuples[place]));
    if (part === "indices") tuples.add(tuple);
    const cells = [
      ...found.flatMap((place) => [this.output.cell(place), this.data.cell(trace.sources[place])]),
      ...[...tuples].flatMap((each) => this.#cellsOfTuple(each)),
    ];
    this.#light(cells.filter(Boolean), found);
    this.story.textContent = this.#tell(part, flat, found, [...tuples]);
  }

  #cellsOfTuple(tuple) {
    return Array.from({ length: this.depth }, (_, place) => this.indices.cell(tuple * this.depth + place));
  }

  /** What is pointed at, in words. */
  #tell(part, flat, found, tuples) {
    const { data, indices, output } = this.gather;
    const at = (name, place, shape) => `${name}[${coordinates(place, shape).join(", ")}]`;
    const tupleText = (tuple) => {
      const parts = indices.elements.slice(tuple * this.depth, (tuple + 1) * this.depth);
      return `tuple ${tuple} (${parts.join(", ")})`;
    };
    if (part === "output") {
      const source = this.trace.sources[flat];
      const value = output ? ` = ${output.elements[flat]}` : "";
      const place = `${at("output", flat, this.trace.shape)}${value}`;
      return Number.isNaN(source)
        ? `${place}: an index of ${tupleText(tuples[0])} is out of bounds.`
        : `${place} comes from ${at("data", source, data.shape)}, chosen by ${tupleText(tuples[0])}.`;
    }
    const count = found.length === 1 ? "1 element" : `${found.length} elements`;
    if (part === "indices") return `${tupleText(tuples[0])} selects ${count} of the output.`;
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
    for (const place of found.slice(0, MOST_LINES)) {
      this.#line(this.data.cell(this.trace.sources[place]), this.output.cell(place), this.trace.tuples[place]);
    }
  }

  /** A curve from the row of a source to the row of its place in the output: beside it, or around to below. */
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
