/* The element types of the service by name, as the page describes them. */

const { dtypes } = JSON.parse(document.getElementById("service").textContent);

/**
 * By name `{python, bits}`: what Python calls a type that NumPy lacks, and what the bits of a float of at most 16 bits
 * mean; else null.
 */
export const ELEMENT_TYPES = new Map(dtypes.map((row) => [row.name, row]));
