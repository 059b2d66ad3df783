/* Draws a tensor as a table: the last axis from left to right, all other axes from top to bottom. The arrow keys move the
 * focus from cell to cell. */

import { make } from "./elements.js";
import { coordinates, product } from "./source_positions.js";

const MOST_ROWS = 12;
const MOST_COLUMNS = 12;
const COLOURS = 8;
/** Maximum characters shown in a cell. */
const LONG = 16;

export const colourOf = (tuple) => `tuple-${tuple % COLOURS}`;

export class TensorGrid {
  /** `host` is the element to draw into. `onPoint` is called with the flat position pointed at, or null. */
  constructor(host, onPoint) {
    this.host = host;
    this.cells = new Map();
    const pointed = (event) => {
      const cell = event.target.closest?.("[data-flat]");
      return cell && host.contains(cell) ? Number(cell.dataset.flat) : null;
    };
    host.addEventListener("pointerover", (event) => onPoint(pointed(event)));
    host.addEventListener("pointerleave", () => onPoint(null));
    host.addEventListener("focusin", (event) => onPoint(pointed(event)));
    host.addEventListener("focusout", () => onPoint(null));
    host.addEventListener("keydown", (event) => this.#move(event));
  }

  /**
   * Draw `shape`. `textOf(flat)` returns an element's text, or null if unknown. `tuplesOf(flat)` returns its tuples, which
   * set its colors. If there are too many elements, only the `wanted` flat positions are drawn and, unless `isSparse`, the
   * first ones.
   */
  draw({ name, shape, textOf, tuplesOf, wanted = [], isSparse = false }) {
    this.clear();
    const columns = shape.length ? shape.at(-1) : 1;
    const rows = product(shape.slice(0, -1));
    if (!rows || !columns) {
      this.host.append(make("p", { className: "note" }, "No elements: an axis has size 0."));
      return;
    }
    const drawnRows = pick(rows, MOST_ROWS, wanted.map((flat) => Math.floor(flat / columns)), isSparse);
    const drawnColumns = pick(columns, MOST_COLUMNS, wanted.map((flat) => flat % columns), isSparse);
    const table = make("table", { role: "grid", "aria-label": `${name}, shape ${shape.join(" × ") || "scalar"}` });
    if (shape.length) table.append(heads(drawnColumns, shape.length));
    let body = table.appendChild(make("tbody"));
    let before = -1;
    for (const row of drawnRows) {
      const line = make("tr");
      const prefix = coordinates(row, shape.slice(0, -1));
      const isNewMatrix = shape.length > 2 && prefix.at(-1) === 0;
      if (body.rows.length && (row !== before + 1 || isNewMatrix)) body = table.appendChild(make("tbody"));
      before = row;
      if (shape.length > 1) line.append(make("th", { scope: "row" }, prefix.join(", ")));
      drawnColumns.forEach((column, place) => {
        const flat = row * columns + column;
        const cell = this.#cell(name, flat, shape, textOf(flat), tuplesOf(flat));
        if (place && column !== drawnColumns[place - 1] + 1) cell.classList.add("after-column-gap");
        line.append(cell);
      });
      body.append(line);
    }
    this.host.append(table);
    const left = rows * columns - drawnRows.length * drawnColumns.length;
    if (left) this.host.append(make("p", { className: "note" }, `${left.toLocaleString("en")} more not drawn`));
    const first = this.host.querySelector("[data-flat]");
    first.tabIndex = 0;
  }

  clear() {
    this.host.replaceChildren();
    this.cells.clear();
  }

  /** Return the cell of a flat position, if it is drawn. */
  cell(flat) {
    return this.cells.get(flat);
  }

  /** Mark a cell as invalid, with the reason. */
  markWrong(flat, reason) {
    const cell = this.cells.get(flat);
    if (!cell) return;
    cell.classList.add("wrong");
    cell.setAttribute("aria-invalid", "true");
    cell.title = reason;
    cell.setAttribute("aria-label", `${cell.getAttribute("aria-label")}: ${reason}`);
  }

  #cell(name, flat, shape, text, tuples) {
    const position = coordinates(flat, shape).join(", ");
    const label = `${name}[${position}]${text === null ? "" : ` = ${text}`}`;
    const cell = make("td", { role: "gridcell", tabIndex: -1, "aria-label": label }, text ?? "·");
    cell.dataset.flat = flat;
    if (text === null) cell.classList.add("unknown");
    else if (text.length > LONG) cell.title = text;
    if (tuples.length) {
      cell.classList.add(colourOf(tuples[0]));
      for (const tuple of tuples.slice(1, 4)) cell.append(make("i", { className: `also ${colourOf(tuple)}` }));
    }
    this.cells.set(flat, cell);
    return cell;
  }

  #move(event) {
    const from = event.target.closest("[data-flat]");
    if (!from || event.ctrlKey || event.altKey || event.metaKey) return;
    const line = from.parentElement;
    const place = [...line.children].indexOf(from);
    const lines = [...this.host.querySelectorAll("tbody tr")];
    const beside = (step) => lines[lines.indexOf(line) + step]?.children[place];
    const to = {
      ArrowRight: () => from.nextElementSibling,
      ArrowLeft: () => from.previousElementSibling,
      ArrowDown: () => beside(1),
      ArrowUp: () => beside(-1),
      Home: () => line.querySelector("[data-flat]"),
      End: () => line.lastElementChild,
    }[event.key]?.();
    if (to?.dataset.flat === undefined) return;
    event.preventDefault();
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}

/** Choose which of `count` rows or columns to draw, in order: at most `most`, wanted ones preferred, then the first ones. */
function pick(count, most, wanted, isSparse) {
  const first = [...new Array(Math.min(count, most)).keys()];
  const chosen = wanted.filter((place) => place < count);
  const all = isSparse && count > most && chosen.length ? chosen : [...chosen, ...first];
  return [...new Set(all)].slice(0, most).sort((a, b) => a - b);
}

function heads(columns, rank) {
  const line = make("tr");
  if (rank > 1) line.append(make("td", { className: "corner" }));
  columns.forEach((column, place) => {
    const head = make("th", { scope: "col" }, String(column));
    if (place && column !== columns[place - 1] + 1) head.classList.add("after-column-gap");
    line.append(head);
  });
  return make("thead", {}, line);
}
