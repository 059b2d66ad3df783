/* The history of a resident tensor: the versions that are kept, the aliases that name them, and a click to move one. */

import { make, problemParagraphs, replaceWithin } from "./elements.js";
import { ask, jsonOf, Problem, putJson } from "./service.js";
import { shapeText, sizeText } from "./tensor_values.js";

const MOST_VERSIONS = 50;
const MOST_ALIASES = 1000;

const shown = (time) => time.replace("T", " ").replace(/\..*$/, "");

export class TensorHistory {
  /** Draws into `host`; `onUse` is called with reference, type and shape of a version to be tried in the playground. */
  constructor(host, name, onUse) {
    this.host = host;
    this.name = name;
    this.onUse = onUse;
    this.said = make("div", { role: "status" });
  }

  /** Read versions and aliases anew, and draw them. */
  async refresh() {
    const asked = (this.asked = {});
    this.host.setAttribute("aria-busy", "true");
    try {
      const { versions } = await jsonOf(await ask(`tensors/${encodeURIComponent(this.name)}`));
      const numbers = versions.slice(-MOST_VERSIONS).reverse();
      const aliases = await this.#aliasesOfTensor();
      const found = await Promise.all(numbers.map((number) => this.#version(number)));
      if (asked !== this.asked) return;
      this.hidden = Math.max(0, versions.length - MOST_VERSIONS);
      this.aliases = aliases;
      this.versions = found.filter(Boolean);
      this.#draw();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (asked === this.asked) replaceWithin(this.host, ...problemParagraphs(problem));
    } finally {
      if (asked === this.asked) this.host.removeAttribute("aria-busy");
    }
  }

  async #aliasesOfTensor() {
    const found = [];
    for (let after = ""; after !== null; ) {
      const page = await jsonOf(await ask(`aliases?limit=${MOST_ALIASES}${after && `&after=${encodeURIComponent(after)}`}`));
      found.push(...page.aliases.filter((alias) => alias.tensor.startsWith(`${this.name}@`)));
      after = page.next;
    }
    return found;
  }

  /** What is known of a version: of a damaged one only its number, null of one that has gone meanwhile. */
  async #version(number) {
    try {
      return await jsonOf(await ask(`tensors/${encodeURIComponent(`${this.name}@${number}`)}`));
    } catch (problem) {
      if (problem.code === "tensor_damaged") return { version: number, damaged: true };
      if (problem.code === "tensor_not_found") return null;
      throw problem;
    }
  }

  #draw() {
    const titles = ["Version", "Type", "Shape", "Size", "Changed", "Aliases", ""];
    const head = make("tr", {}, ...titles.map((title) => make(title ? "th" : "td", title ? { scope: "col" } : {}, title)));
    const table = make("table", { className: "history-table", "aria-label": `Versions of ${this.name}` },
      make("thead", {}, head), make("tbody", {}, ...this.versions.map((version, place) => this.#line(version, place === 0))));
    const more = this.hidden ? [make("p", { className: "note" }, `${this.hidden} older versions are not shown`)] : [];
    replaceWithin(this.host,
      make("div", { className: "scrolls", tabIndex: 0, role: "region", "aria-label": `Versions of ${this.name}` }, table),
      ...more, this.#form(), this.said);
  }

  #line({ version, dtype, shape, bytes, modified, damaged }, isCurrent) {
    const named = this.aliases.filter((alias) => alias.version === version);
    const movable = this.aliases.filter((alias) => alias.version !== version);
    const reference = `${this.name}@${version}`;
    const use = make("button", { type: "button", disabled: !!damaged, "aria-label": `Try ${reference} in the playground` }, "Try");
    use.addEventListener("click", () => this.onUse(reference, dtype, shape));
    const moves = movable.map((alias) => {
      const move = make("button", { type: "button", "aria-label": `Move ${alias.alias} to version ${version}` }, `${alias.alias} here`);
      move.addEventListener("click", () => this.#put(alias.alias, version, alias.etag));
      return move;
    });
    return make("tr", { className: isCurrent ? "is-current" : "" },
      make("th", { scope: "row" }, String(version), ...(isCurrent ? [make("span", { className: "note" }, " current")] : [])),
      ...(damaged ? [make("td", { colSpan: 4 }, make("strong", { className: "damaged" }, "damaged"))] : [
        make("td", {}, dtype), make("td", {}, shapeText(shape)), make("td", { className: "number" }, sizeText(bytes)),
        make("td", {}, shown(modified))]),
      make("td", {}, named.map((alias) => alias.alias).join(", ")),
      make("td", { className: "actions" }, use, ...moves));
  }

  #form() {
    const name = make("input", { type: "text", spellcheck: false, autocapitalize: "off", required: true, id: `alias-of-${this.name}` });
    const version = make("select", { "aria-label": "Version that the alias names" },
      ...this.versions.map((one) => make("option", { value: String(one.version) }, `version ${one.version}`)));
    const form = make("form", { className: "alias-form" },
      make("label", { htmlFor: name.id }, "Alias"), name, version, make("button", {}, "Set"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const known = this.aliases.find((alias) => alias.alias === name.value.trim());
      this.#put(name.value.trim(), Number(version.value), known?.etag);
    });
    return form;
  }

  /** Make an alias or move it, unless somebody else has moved it since it was read. */
  async #put(alias, version, etag) {
    if (this.isPutting) return; // a second press of the button
    this.isPutting = true;
    try {
      await this.#putOnce(alias, version, etag);
    } finally {
      this.isPutting = false;
    }
  }

  async #putOnce(alias, version, etag) {
    try {
      const condition = etag === undefined ? { "If-None-Match": "*" } : { "If-Match": etag };
      await putJson(`aliases/${encodeURIComponent(alias)}`, JSON.stringify({ tensor: `${this.name}@${version}` }), condition);
      this.said.classList.remove("problem");
      this.said.replaceChildren(make("p", {}, `${alias} is version ${version} now.`));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.said.classList.add("problem");
      this.said.replaceChildren(...problemParagraphs(problem));
    }
    await this.refresh();
  }
}
