/* Example gathers for the playground's form, with values as a user would type them. */

export const EXAMPLES = [
  {
    title: "Elements",
    operator: "gathernd",
    data: ["float32", "[[0, 1, 2, 3],\n [10, 11, 12, 13],\n [20, 21, 22, 23]]"],
    indices: ["int64", "[[0, 0], [1, 2], [2, 3]]"],
  },
  {
    title: "Rows",
    operator: "gathernd",
    data: ["int32", "[[0, 1, 2, 3],\n [10, 11, 12, 13],\n [20, 21, 22, 23],\n [30, 31, 32, 33]]"],
    indices: ["int64", "[[3], [0], [-2]]"],
  },
  {
    title: "Batches",
    operator: "gathernd",
    parameter: 1,
    data: ["int32", "[[[0, 1], [2, 3]],\n [[4, 5], [6, 7]]]"],
    indices: ["int64", "[[1], [0]]"],
  },
  {
    title: "Columns",
    operator: "gather",
    parameter: 1,
    data: ["float32", "[[0, 1, 2, 3],\n [10, 11, 12, 13],\n [20, 21, 22, 23]]"],
    indices: ["int64", "[2, 0]"],
  },
  {
    title: "One of each row",
    operator: "gather_elements",
    parameter: 1,
    data: ["string", '[["ant", "bee", "cat"],\n ["dog", "eel", "fox"]]'],
    indices: ["int64", "[[2, 0], [1, 1]]"],
  },
  {
    title: "Scatter",
    operator: "scatternd",
    reduction: "add",
    data: ["float32", "[[0, 0, 0], [0, 0, 0]]"],
    indices: ["int64", "[[0, 1], [1, 2], [0, 1]]"],
    updates: "[1, 5, 3]",
  },
  {
    title: "A wrong index",
    operator: "gathernd",
    data: ["float32", "[[0, 1], [2, 3]]"],
    indices: ["int64", "[[0, 0], [5, 1]]"],
  },
  {
    title: "Filled where wrong",
    operator: "gather",
    outOfBounds: "fill",
    fillValue: "-1",
    data: ["int32", "[[0, 1, 2], [10, 11, 12]]"],
    indices: ["int64", "[1, 7, 0]"],
  },
];
