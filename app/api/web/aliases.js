/* Requests about aliases, for the list of aliases and the history of a tensor. */

import { ask, jsonOf, putJson } from "./service.js";

const PAGE = 1000;

/** Return all aliases. */
export async function allAliases() {
  const found = [];
  for (let after = ""; after !== null; ) {
    const page = await jsonOf(await ask(`aliases?limit=${PAGE}${after && `&after=${encodeURIComponent(after)}`}`));
    found.push(...page.aliases);
    after = page.next;
  }
  return found;
}

/**
 * Point `alias` to `version`, such as items@7. With `etag` an existing alias moves, and the request fails if somebody has
 * moved it since it was read. Without `etag` a new alias is created, and the request fails if it exists.
 */
export const putAlias = (alias, version, etag) =>
  putJson(`aliases/${encodeURIComponent(alias)}`, JSON.stringify({ tensor: version }),
    etag === undefined ? { "If-None-Match": "*" } : { "If-Match": etag });

/** Remove an alias. Fails if somebody has moved it since it was read. */
export const deleteAlias = ({ alias, etag }) =>
  ask(`aliases/${encodeURIComponent(alias)}`, { method: "DELETE", headers: { "If-Match": etag } });
