/* Requests about aliases, which the list of aliases and the versions of a tensor share. */

import { ask, jsonOf, putJson } from "./service.js";

const PAGE = 1000;

/** All aliases. */
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
 * Make `alias` name `version`, as in items@7. With the `etag` of the alias it is moved, unless somebody else has moved it
 * since it was read; without one it is made, unless it is there.
 */
export const putAlias = (alias, version, etag) =>
  putJson(`aliases/${encodeURIComponent(alias)}`, JSON.stringify({ tensor: version }),
    etag === undefined ? { "If-None-Match": "*" } : { "If-Match": etag });

/** Remove an alias, unless somebody else has moved it since it was read. */
export const deleteAlias = ({ alias, etag }) =>
  ask(`aliases/${encodeURIComponent(alias)}`, { method: "DELETE", headers: { "If-Match": etag } });
