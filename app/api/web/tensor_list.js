/* The list of resident tensors, with a search and, below each line, the tensor's rows and versions. */

import { actionButtons } from "./tensor_actions.js";
import { byId, make } from "./elements.js";
import { ask, jsonOf, Problem } from "./service.js";
import { TensorHistory } from "./tensor_history.js";
import { KeyChanges } from "./tensor_key_changes.js";
import { KeySearch } from "./tensor_key_search.js";
import { TensorRows } from "./tensor_rows.js";
import { counted } from "./tensor_ranges.js";
import { shapeText, sizeText } from "./tensor_values.js";

const PAGE = 100;

export class TensorList {
  /**
   * `onList` is called with the tensors, `onUse` with reference, type and shape of a tensor to use in the playground, and
   * `onAliases` when an alias has been created or moved.
   */
  constructor({ onList, onUse, onAliases }) {
    this.onList = onList;
    this.onUse = onUse;
    this.onAliases = onAliases;
    this.tensors = [];
    this.lines = new Map();
    this.note = byId("tensors-note");
    byId("more-tensors").addEventListener("click", () => this.#page(this.next));
    byId("tensor-search").addEventListener("input", () => this.#search());
  }

  /** Reload the list. */
  async refresh() {
    this.tensors = [];
    this.next = null;
    if (await this.#page(null)) await this.#search();
  }

  /** Reload the open details of a tensor, because its aliases have changed. */
  refreshVersions() {
    for (const line of this.lines.values()) line.refreshVersions();
  }

  /** Load a page of the list. Resolves to whether it is shown. */
  async #page(after) {
    const list = this.tensors;
    let page;
    try {
      const from = after === null ? "" : `&after=${encodeURIComponent(after)}`;
      page = await jsonOf(await ask(`tensors?limit=${PAGE}${from}`));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (list === this.tensors) this.note.textContent = problem.message;
      return false;
    }
    if (list !== this.tensors || after !== this.next) return false; // the list was reloaded, or the page is already shown
    list.push(...page.tensors);
    this.next = page.next;
    this.#draw();
    this.onList(this.tensors);
    return true;
  }

  #draw() {
    const before = this.lines;
    this.lines = new Map(this.tensors.map((tensor) => {
      const line = before.get(tensor.name) ?? new TensorLine(tensor.name, this);
      line.update(tensor);
      return [tensor.name, line];
    }));
    const focused = document.activeElement;
    byId("tensors-rows").replaceChildren(...[...this.lines.values()].map(({ element }) => element));
    if (focused.isConnected) focused.focus({ preventScroll: true }); // open details stay
    this.#filter();
  }

  /** Show the lines whose names match the search. Returns their number. */
  #filter() {
    const wanted = byId("tensor-search").value.trim().toLowerCase();
    let count = 0;
    for (const [name, { element }] of this.lines) {
      element.hidden = !name.toLowerCase().includes(wanted);
      count += element.hidden ? 0 : 1;
    }
    byId("more-tensors").hidden = this.next === null;
    if (!this.tensors.length) this.note.textContent = "No tensor is here yet. Upload one, and requests need carry indices only.";
    else this.note.textContent = wanted ? `${count.toLocaleString("en")} of ${this.tensors.length.toLocaleString("en")} tensors match` : "";
    return count;
  }

  /** Filter the list, and load pages until one has matches or the list ends. */
  async #search() {
    const isWanted = () => byId("tensor-search").value.trim() !== "";
    while (this.#filter() < PAGE && isWanted() && this.next !== null) {
      if (!(await this.#page(this.next))) return;
    }
  }
}

/** A tensor of the list. If the tensor changes, open details stay open and are reloaded. */
class TensorLine {
  constructor(name, list) {
    this.name = name;
    this.facts = make("span", { className: "facts" });
    this.shape = [];
    const look = make("div", { className: "look", hidden: true });
    const past = make("div", { className: "look", hidden: true });
    const rows = make("div");
    this.byKey = make("div", { hidden: true });
    look.append(rows, this.byKey);
    this.rows = new TensorRows(rows, name);
    this.keySearch = new KeySearch(this.byKey, name);
    this.keyChanges = new KeyChanges(this.byKey, name, () => list.refresh());
    this.history = new TensorHistory(past, name, list);
    const toggle = (label, below, onOpen) => {
      const button = make("button", { type: "button", "aria-expanded": "false", "aria-label": `${label} of ${name}` }, label);
      button.addEventListener("click", () => {
        below.hidden = !below.hidden;
        button.setAttribute("aria-expanded", String(!below.hidden));
        if (!below.hidden) onOpen();
      });
      return button;
    };
    const use = make("button", { type: "button", "aria-label": `Try ${name} in the playground` }, "Try");
    use.addEventListener("click", () => list.onUse(name));
    const actions = make("span", { className: "actions" },
      toggle("Rows", look, () => this.rows.show(this.shape, 0)),
      toggle("Versions", past, () => this.history.refresh()),
      use,
      ...actionButtons(name, `${name} with all its versions`, async () => {
        await list.refresh();
        byId("tensor-search").focus();
      }));
    this.element = make("li", { className: "line" },
      make("div", { className: "line-head" }, make("span", { className: "name" }, name), this.facts, actions), look, past);
    Object.assign(this, { look, past });
  }

  update(tensor) {
    const text = JSON.stringify(tensor);
    if (text === this.text) return;
    const isNew = this.text === undefined;
    this.text = text;
    this.shape = tensor.shape;
    const { version, versions, dtype, shape, bytes, etag, damaged, keys, replicas } = tensor;
    this.facts.replaceChildren(
      make("span", {}, `version ${version}${versions.length > 1 ? `, ${versions.length} kept` : ""}`),
      make("span", {}, `${dtype} ${shapeText(shape)}`),
      make("span", {}, sizeText(bytes)),
      ...(keys ? [make("span", {}, `keys ${keys.dtype}`)] : []),
      ...(replicas ? [make("span", {}, counted(replicas, "replica"))] : []),
      make("code", { title: `ETag ${etag}` }, etag.replaceAll('"', "").replace(/^(.{8}).*-/, "$1…-")),
      ...(damaged ? [make("strong", { className: "damaged" }, "damaged")] : []));
    this.byKey.hidden = !keys;
    if (keys) {
      this.keySearch.update(keys.dtype);
      this.keyChanges.update(keys.dtype, dtype, shape);
    }
    if (isNew) return;
    if (!this.look.hidden) this.rows.show(this.shape);
    this.refreshVersions();
  }

  refreshVersions() {
    if (!this.past.hidden) this.history.refresh();
  }
}
