/* The row ranges of a version in a cluster, with their shards, and which of the shards are in sync. */

import { make } from "./elements.js";

const MOST_RANGES = 100;

export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** Create a summary of the ranges of `reference` that opens to one line per range. */
export function rangesBelow(reference, replicas, ranges) {
  const facts = [counted(ranges.length, "range")];
  if (replicas) facts.push(counted(replicas, "replica"));
  const scattered = ranges.filter(({ in_sync: inSync }) => inSync);
  if (scattered.length) {
    const least = Math.min(...scattered.map(({ in_sync: inSync }) => inSync.length));
    facts.push(`at least ${least.toLocaleString("en")} in sync`);
  }
  const more = ranges.length - MOST_RANGES;
  return make("details", { className: "ranges" }, make("summary", {}, facts.join(", ")),
    make("ul", { "aria-label": `Ranges of ${reference}` }, ...ranges.slice(0, MOST_RANGES).map(line)),
    ...(more > 0 ? [make("p", { className: "note" }, `${counted(more, "further range")} not shown`)] : []));
}

function line({ start, stop, shards, primary, in_sync: inSync }) {
  const role = (shard) => !inSync ? "" : shard === primary ? " (primary)" : inSync.includes(shard) ? " (in sync)" : " (out of sync)";
  const rows = `rows ${start.toLocaleString("en")} to ${(stop - 1).toLocaleString("en")}`;
  return make("li", {}, `${rows}: `, ...shards.flatMap((shard, place) => [
    place ? ", " : "",
    inSync && !inSync.includes(shard) ? make("strong", {}, `${shard}${role(shard)}`) : `${shard}${role(shard)}`,
  ]));
}
