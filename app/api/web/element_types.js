/* The service's element types, from the JSON in the page. */

const { dtypes } = JSON.parse(document.getElementById("service").textContent);

/**
 * `{python, bits}` by name: Python's name of a type that NumPy lacks, and the bit layout of a float of at most 16 bits;
 * null for other types.
 */
export const ELEMENT_TYPES = new Map(dtypes.map((row) => [row.name, row]));
