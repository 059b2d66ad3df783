/* The history of a resident tensor: its kept versions and their aliases, which can be moved. */

import { allAliases, putAlias } from "./aliases.js";
import { make, problemParagraphs, replaceWithin } from "./elements.js";
import { ask, jsonOf, Problem } from "./service.js";
import { actionButtons } from "./tensor_actions.js";
import { rangesBelow } from "./tensor_ranges.js";
import { shapeText, sizeText } from "./tensor_values.js";

const MOST_VERSIONS = 50;

const shown = (time) => time.replace("T", " ").replace(/\..*$/, "");

export class TensorHistory {
  /** Draws the versions of `name` into `host`. `list` is the list of tensors. */
  constructor(host, name, list) {
    this.host = host;
    this.name = name;
    this.list = list;
    this.said = make("div", { role: "status" });
  }

  /** Reload and draw the versions and aliases. */
  async refresh() {
    const asked = (this.asked = {});
    this.host.setAttribute("aria-busy", "true");
    try {
      const { versions } = await jsonOf(await ask(`tensors/${encodeURIComponent(this.name)}`));
      const numbers = versions.slice(-MOST_VERSIONS).reverse();
      const aliases = await allAliases();
      const found = await Promise.all(numbers.map((number) => this.#version(number)));
      if (asked !== this.asked) return;
      this.hidden = Math.max(0, versions.length - MOST_VERSIONS);
      this.aliases = aliases.filter(({ tensor }) => tensor.startsWith(`${this.name}@`));
      this.versions = found.filter(Boolean);
      this.#draw();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (asked === this.asked) replaceWithin(this.host, ...problemParagraphs(problem));
    } finally {
      if (asked === this.asked) this.host.removeAttribute("aria-busy");
    }
  }

  /** Return a version's metadata: only the number if it is damaged, null if it was removed in the meantime. */
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
    const more = this.hidden ? [make("p", { className: "note" }, `${this.hidden} older versions are not shown`)] : [];
    const lines = this.versions.map((version, place) => this.#line(version, place === 0));
    replaceWithin(this.host,
      make("ul", { className: "lines versions", "aria-label": `Versions of ${this.name}` }, ...lines), ...more, this.#form(), this.said);
  }

  #line({ version, dtype, shape, bytes, modified, note, damaged, replicas, ranges }, isCurrent) {
    const named = this.aliases.filter((alias) => alias.version === version);
    const reference = `${this.name}@${version}`;
    const use = make("button", { type: "button", disabled: !!damaged, "aria-label": `Try ${reference} in the playground` }, "Try");
    use.addEventListener("click", () => this.list.onUse(reference, dtype, shape));
    const moves = this.aliases.filter((alias) => alias.version !== version).map((alias) => {
      const move = make("button", { type: "button", className: "move", "aria-label": `Move ${alias.alias} to version ${version}` }, `Move ${alias.alias} here`);
      move.addEventListener("click", () => this.#put(alias.alias, version, alias.etag));
      return move;
    });
    const facts = damaged
      ? [make("strong", { className: "damaged" }, "damaged")]
      : [`${dtype} ${shapeText(shape)}`, sizeText(bytes), shown(modified), note].filter(Boolean).map((text) => make("span", {}, text));
    const names = named.map(({ alias }) => make("span", { className: "chosen" }, alias));
    return make("li", { className: "line" }, make("div", { className: "line-head" },
      make("span", { className: "name" }, `${version}${isCurrent ? " current" : ""}`),
      make("span", { className: "facts" }, ...facts, ...names),
      make("span", { className: "actions" }, use, ...actionButtons(reference, reference, () => this.list.refresh()), ...moves)),
      ...(ranges ? [rangesBelow(reference, replicas, ranges)] : []));
  }

  #form() {
    const name = make("input", { type: "text", spellcheck: false, autocapitalize: "off", required: true, id: `alias-of-${this.name}` });
    const version = make("select", { "aria-label": "Version that the alias names" },
      ...this.versions.map((one) => make("option", { value: String(one.version) }, `version ${one.version}`)));
    const form = make("form", { className: "alias-form" },
      make("div", {}, make("label", { htmlFor: name.id }, "Alias"), name), version, make("button", {}, "Set"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const known = this.aliases.find((alias) => alias.alias === name.value.trim());
      this.#put(name.value.trim(), Number(version.value), known?.etag);
    });
    return form;
  }

  async #put(alias, version, etag) {
    if (this.isPutting) return; // ignore a second click
    this.isPutting = true;
    try {
      await putAlias(alias, `${this.name}@${version}`, etag);
      this.#say([make("p", {}, `${alias} is version ${version} now.`)]);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.#say(problemParagraphs(problem), true);
    } finally {
      this.isPutting = false;
    }
    this.list.onAliases();
    await this.refresh();
  }

  #say(paragraphs, isProblem = false) {
    this.said.classList.toggle("problem", isProblem);
    this.said.replaceChildren(...paragraphs);
  }
}
