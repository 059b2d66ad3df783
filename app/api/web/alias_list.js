/* The list of all aliases, with forms to create, move and delete them. */

import { allAliases, deleteAlias, putAlias } from "./aliases.js";
import { confirmed } from "./confirm_dialog.js";
import { byId, make, replaceWithin, sayAt } from "./elements.js";
import { Problem } from "./service.js";

export class AliasList {
  /** `onChange` is called when an alias has been created, moved or deleted here. */
  constructor(onChange) {
    this.onChange = onChange;
    const form = byId("new-alias");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [alias, version] = ["name", "version"].map((part) => byId(`new-alias-${part}`).value.trim());
      this.#change(() => putAlias(alias, version), `${alias} names ${version} now.`, () => form.reset());
    });
  }

  /** Reload the aliases. */
  async refresh() {
    const asked = (this.asked = {});
    try {
      const aliases = await allAliases();
      if (asked !== this.asked) return;
      byId("aliases-count").textContent = String(aliases.length);
      replaceWithin(byId("aliases-rows"), ...aliases.map((alias) => this.#row(alias)));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (asked === this.asked) sayAt("aliases-said", problem);
    }
  }

  #row(known) {
    const { alias, tensor, etag } = known;
    const version = make("input", { type: "text", value: tensor, required: true, spellcheck: false, autocapitalize: "off", "aria-label": `Version that ${alias} names` });
    const remove = make("button", { type: "button", "aria-label": `Delete the alias ${alias}` }, "Delete");
    const form = make("form", { className: "alias-form" },
      make("span", { className: "name" }, alias), make("div", {}, version),
      make("button", { "aria-label": `Move the alias ${alias}` }, "Move"), remove);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const to = version.value.trim();
      this.#change(() => putAlias(alias, to, etag), `${alias} names ${to} now.`);
    });
    remove.addEventListener("click", async () => {
      const isMeant = await confirmed(`Delete the alias ${alias}? Requests that name it are refused from then on. ${tensor} stays.`, "Delete");
      if (isMeant) this.#change(() => deleteAlias(known), `The alias ${alias} is deleted.`);
    });
    return make("li", {}, form);
  }

  async #change(send, said, onDone = () => {}) {
    if (this.isChanging) return; // ignore a second click
    this.isChanging = true;
    try {
      await send();
      sayAt("aliases-said", said);
      onDone();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      sayAt("aliases-said", problem);
    } finally {
      this.isChanging = false;
    }
    await this.refresh();
    this.onChange();
  }
}
