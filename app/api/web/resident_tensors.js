/* The resident tensors: their list, a look at their rows and their versions, and uploads with progress. */

import { byId, make, problemParagraphs, replaceWithin } from "./elements.js";
import { ask, firstBytes, foreign, jsonOf, Problem, upload } from "./service.js";
import { product } from "./source_positions.js";
import { TensorHistory } from "./tensor_history.js";
import { readElements, shapeText, sizeText } from "./tensor_values.js";

const ROWS_AT_ONCE = 8;
const MOST_COLUMNS = 12;
/** Of a look at rows no more is fetched than this. */
const MOST_BYTES = 1 << 20;
const PAGE = 100;
const RAW = "application/octet-stream";
const FORMATS = { npy: "application/x-npy", safetensors: "application/x-safetensors" };

const pathOf = (name, rest = "") => `tensors/${encodeURIComponent(name)}${rest}`;

export class ResidentTensors {
  /**
   * `onList` is called with the tensors, `onUse` with the name of one that is to be tried in the playground, and
   * `onUseVersion` with the reference, type and shape of a version that is.
   */
  constructor(dtypes, onList, onUse, onUseVersion) {
    this.onList = onList;
    this.onUse = onUse;
    this.onUseVersion = onUseVersion;
    this.tensors = [];
    this.lines = new Map();
    this.note = byId("tensors-note");
    byId("upload-dtype").append(...dtypes.map((name) => make("option", {}, name)));
    byId("more-tensors").addEventListener("click", () => this.#page(this.next));
    this.#prepareUpload();
  }

  /** Read the list anew. */
  async refresh() {
    this.tensors = [];
    this.next = null;
    await this.#page(null);
  }

  async #page(after) {
    const list = this.tensors;
    let page;
    try {
      const from = after === null ? "" : `&after=${encodeURIComponent(after)}`;
      page = await jsonOf(await ask(`tensors?limit=${PAGE}${from}`));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (list === this.tensors) this.note.textContent = problem.message;
      return;
    }
    if (list !== this.tensors || after !== this.next) return; // the list is read anew, or this page is there already
    list.push(...page.tensors);
    this.next = page.next;
    byId("more-tensors").hidden = page.next === null;
    this.#draw();
    this.onList(this.tensors);
  }

  #draw() {
    byId("tensors-table").hidden = !this.tensors.length;
    this.note.textContent = this.tensors.length ? "" : "No tensor is here yet. Upload one, and requests need carry indices only.";
    const before = this.lines;
    this.lines = new Map(this.tensors.map((tensor) => {
      const text = JSON.stringify(tensor);
      const known = before.get(tensor.name);
      return [tensor.name, known?.text === text ? known : { text, rows: this.#rowsOf(tensor) }];
    }));
    const focused = document.activeElement;
    byId("tensors-rows").replaceChildren(...[...this.lines.values()].flatMap(({ rows }) => rows));
    if (focused.isConnected) focused.focus({ preventScroll: true }); // what is open below an unchanged line stays
  }

  #rowsOf({ name, version, versions, dtype, shape, bytes, etag, damaged }) {
    const below = () => make("tr", { className: "look", hidden: true, role: "row" }, make("td", { colSpan: 7, role: "cell" }));
    const look = below();
    const past = below();
    const shown = { name, shape };
    const rows = make("button", { type: "button", "aria-expanded": "false" }, "Rows");
    rows.setAttribute("aria-label", `Rows of ${name}`);
    rows.addEventListener("click", () => {
      look.hidden = !look.hidden;
      rows.setAttribute("aria-expanded", String(!look.hidden));
      if (!look.hidden) this.#look(look.firstChild, shown, 0);
    });
    const history = make("button", { type: "button", "aria-expanded": "false", "aria-label": `Versions of ${name}` }, "Versions");
    const kept = new TensorHistory(past.firstChild, name, this.onUseVersion);
    history.addEventListener("click", () => {
      past.hidden = !past.hidden;
      history.setAttribute("aria-expanded", String(!past.hidden));
      if (!past.hidden) kept.refresh();
    });
    const use = make("button", { type: "button", "aria-label": `Try ${name} in the playground` }, "Try");
    use.addEventListener("click", () => this.onUse(name));
    // Roles are written out, since narrow screens lay the cells out in another way than as a table.
    const cell = (properties, ...children) => make("td", { role: "cell", ...properties }, ...children);
    const line = make("tr", { role: "row" },
      make("th", { scope: "row", role: "rowheader" }, name, ...(damaged ? [make("strong", { className: "damaged" }, " damaged")] : [])),
      cell({ className: "number", title: `${versions.length} kept` }, String(version)),
      cell({}, dtype),
      cell({}, shapeText(shape)),
      cell({ className: "number" }, sizeText(bytes)),
      cell({ title: etag }, make("code", {}, etag.replaceAll('"', "").replace(/^(.{8}).*-/, "$1…-"))),
      cell({ className: "actions" }, rows, history, use));
    return [line, look, past];
  }

  /** Draw a few rows into `host`, from row `first` on. */
  async #look(host, tensor, first) {
    const { name, shape } = tensor;
    const asked = (tensor.asked = {});
    const count = shape[0] ?? 1;
    let last = Math.min(first + ROWS_AT_ONCE, count);
    let items;
    let elements;
    host.setAttribute("aria-busy", "true");
    try {
      const rows = shape.length ? `?rows=${first}:${last}` : "";
      const response = await ask(pathOf(name, `/content${rows}`), { headers: { Accept: RAW } });
      // What came is described in its header: the tensor may have been replaced since it was listed.
      const [dtype, sizes] = ["Dtype", "Shape"].map((field) => response.headers.get(`X-Gathernd-${field}`));
      if (dtype === null) throw foreign();
      items = product(sizes.split(",").slice(1).map(Number));
      elements = readElements(await firstBytes(response, MOST_BYTES), dtype, items * (last - first));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (asked === tensor.asked) replaceWithin(host, ...problemParagraphs(problem));
      return;
    } finally {
      if (asked === tensor.asked) host.removeAttribute("aria-busy");
    }
    if (asked !== tensor.asked) return;
    const table = make("table", { className: "rows-table" });
    const columns = Math.min(items, MOST_COLUMNS);
    const whole = items ? Math.floor((elements.length - columns) / items) + 1 : last; // rows whose columns have come
    last = Math.min(last, first + Math.max(whole, 1));
    table.setAttribute("aria-label", `Rows ${first} to ${last - 1} of ${name}`);
    for (let row = first; row < last; row++) {
      const begin = (row - first) * items;
      const cells = elements.slice(begin, begin + columns);
      const line = make("tr", {}, make("th", { scope: "row" }, String(row)), ...cells.map((text) => make("td", {}, text)));
      if (items > columns) line.append(make("td", { className: "note" }, `… ${(items - columns).toLocaleString("en")} more`));
      table.append(line);
    }
    const step = (label, to, isOpen) =>
      make("button", { type: "button", disabled: !isOpen, onclick: () => this.#look(host, tensor, to) }, label);
    const controls = make("p", { className: "steps" },
      step("Earlier", Math.max(0, first - ROWS_AT_ONCE), first > 0),
      step("Later", last, last < count),
      make("span", { className: "note" }, count ? `rows ${first} to ${last - 1} of ${count.toLocaleString("en")}` : "no rows"));
    replaceWithin(host, make("div", { className: "scrolls", tabIndex: 0, role: "region", "aria-label": `Rows of ${name}` }, table), controls);
  }

  #prepareUpload() {
    const zone = byId("drop-zone");
    const file = byId("upload-file");
    file.addEventListener("change", () => this.#choose(file.files[0]));
    for (const kind of ["dragenter", "dragover"]) {
      zone.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.add("is-over");
      });
    }
    for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("is-over"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#choose(event.dataTransfer.files[0]);
    });
    byId("upload-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#upload();
    });
    byId("upload-cancel").addEventListener("click", () => this.cancel?.());
  }

  #choose(file) {
    if (!file) return;
    this.file = file;
    const [, stem, ending] = /^(.*?)(?:\.([^.]*))?$/.exec(file.name);
    this.format = FORMATS[ending?.toLowerCase()] ?? RAW;
    byId("upload-chosen").textContent = `${file.name}, ${sizeText(file.size)}`;
    byId("upload-name").value = stem.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[._-]+/, "").slice(0, 128);
    byId("upload-raw").hidden = this.format !== RAW;
    byId("upload-details").hidden = false;
    this.#say();
    byId("upload-name").focus();
  }

  /** Show paragraphs below the upload's form, those of an error in its colours. */
  #say(paragraphs = [], isProblem = false) {
    const result = byId("upload-result");
    result.classList.toggle("problem", isProblem);
    result.replaceChildren(...paragraphs);
  }

  async #upload() {
    const name = byId("upload-name").value.trim();
    const { file } = this;
    const query = new URLSearchParams();
    if (this.format === RAW) {
      query.set("dtype", byId("upload-dtype").value);
      query.set("shape", byId("upload-shape").value.replace(/\s/g, ""));
    }
    const bar = byId("upload-progress");
    const text = byId("upload-progress-text");
    const began = performance.now();
    const sending = upload(pathOf(name, query.size ? `?${query}` : ""), file, this.format, (sent, all) => {
      bar.max = all;
      bar.value = sent;
      const rate = sent / Math.max(performance.now() - began, 1) * 1000;
      text.textContent = `${sizeText(sent)} of ${sizeText(all)}, ${sizeText(rate)}/s`;
    });
    this.cancel = sending.cancel;
    bar.value = 0;
    text.textContent = "";
    byId("upload-running").hidden = false;
    byId("upload-send").disabled = true;
    this.#say();
    try {
      const made = await sending.done;
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      this.#say([make("p", {}, `${made.name} is here: ${made.dtype} ${shapeText(made.shape)}, version ${made.version}, after ${seconds} s.`)]);
      if (file === this.file) { // no other one was chosen meanwhile
        byId("upload-details").hidden = true;
        byId("upload-chosen").textContent = "";
        byId("upload-file").value = "";
      }
      await this.refresh();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.#say(problemParagraphs(problem), true);
    } finally {
      byId("upload-running").hidden = true;
      byId("upload-send").disabled = false;
    }
  }
}
