/* Where each element of an output comes from: the operators' formulas on shapes and indices, without any values.
 * Flat positions are row-major. A tuple is what selects one slice: for Gather and GatherElements a single index. */

export const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

/** The row-major coordinates of flat position `flat` in `shape`. */
export function coordinates(flat, shape) {
  const found = new Array(shape.length);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = flat % shape[axis];
    flat = Math.floor(flat / shape[axis]);
  }
  return found;
}

/** The flat position of `position` in `shape`. */
export const flatPosition = (position, shape) => position.reduce((flat, place, axis) => flat * shape[axis] + place, 0);

/** How many index components make up a tuple. */
export const tupleDepth = (operator, indicesShape) => (operator === "gathernd" ? indicesShape.at(-1) : 1);

/**
 * The output's shape, and for each of its elements the flat position in data and the tuple that selects it. The position
 * is NaN where an index is out of range: then there is an error, or the element is filled. `batchDims` is the one beside
 * an axis. `wraps` says whether the dialect counts negative indices from the end, `outOfBounds` what the request asks for
 * where that does not help. At most `limit` elements are traced. Null where shapes and parameter do not fit together:
 * which rule is broken is for the service to say.
 */
export function traceOutput({
  operator, dataShape, indicesShape, indices, parameter, batchDims = 0, wraps, outOfBounds, limit = 4096,
}) {
  const trace = { gathernd: traceGatherND, gather: traceGather, gather_elements: traceGatherElements }[operator];
  const onAxis = (text, size) => place(Number(text), size, wraps, outOfBounds);
  return trace ? trace(dataShape, indicesShape, indices, parameter, onAxis, limit, batchDims) : null;
}

/** Where an index leads on an axis of `size`, NaN for nowhere. */
function place(index, size, wraps, outOfBounds) {
  if (wraps && index < 0) index += size;
  if (index >= 0 && index < size) return index;
  if (size && outOfBounds === "clip") return index < 0 ? 0 : size - 1;
  if (size && outOfBounds === "wrap") return ((index % size) + size) % size;
  return NaN;
}

function build(shape, limit, locate) {
  const count = Math.min(product(shape), limit);
  const sources = new Array(count);
  const tuples = new Array(count);
  for (let flat = 0; flat < count; flat++) [sources[flat], tuples[flat]] = locate(flat);
  return { shape, sources, tuples };
}

function traceGatherND(dataShape, indicesShape, indices, batchDims, onAxis, limit) {
  const depth = indicesShape.at(-1);
  const rank = dataShape.length;
  const fits =
    rank >= 1 && indicesShape.length >= 1 && batchDims >= 0 && batchDims < Math.min(rank, indicesShape.length) &&
    depth >= 1 && depth <= rank - batchDims &&
    dataShape.slice(0, batchDims).every((size, axis) => size === indicesShape[axis]);
  if (!fits) return null;
  const slice = dataShape.slice(batchDims + depth);
  const perBatch = product(indicesShape.slice(batchDims, -1));
  const sliceItems = product(slice);
  return build([...indicesShape.slice(0, -1), ...slice], limit, (flat) => {
    const tuple = Math.floor(flat / sliceItems);
    let source = Math.floor(tuple / perBatch);
    for (let component = 0; component < depth; component++) {
      const size = dataShape[batchDims + component];
      source = source * size + onAxis(indices[tuple * depth + component], size);
    }
    return [source * sliceItems + (flat % sliceItems), tuple];
  });
}

function traceGather(dataShape, indicesShape, indices, axis, onAxis, limit, batchDims) {
  const rank = dataShape.length;
  if (axis < 0) axis += rank;
  if (batchDims < 0) batchDims += indicesShape.length;
  const fits =
    axis >= 0 && axis < rank && batchDims >= 0 && batchDims <= Math.min(axis, indicesShape.length) &&
    dataShape.slice(0, batchDims).every((size, other) => size === indicesShape[other]);
  if (!fits) return null;
  const after = dataShape.slice(axis + 1);
  const inner = product(after);
  const ofBatch = indicesShape.slice(batchDims);
  const count = product(ofBatch);
  const shared = product(dataShape.slice(batchDims, axis)); // how many slabs of data use the indices of a batch
  return build([...dataShape.slice(0, axis), ...ofBatch, ...after], limit, (flat) => {
    const outer = Math.floor(flat / (inner * count));
    const tuple = Math.floor(outer / shared) * count + (Math.floor(flat / inner) % count);
    const index = onAxis(indices[tuple], dataShape[axis]);
    return [(outer * dataShape[axis] + index) * inner + (flat % inner), tuple];
  });
}

function traceGatherElements(dataShape, indicesShape, indices, axis, onAxis, limit) {
  const rank = dataShape.length;
  if (axis < 0) axis += rank;
  const fits =
    axis >= 0 && axis < rank && indicesShape.length === rank &&
    indicesShape.every((size, other) => other === axis || size <= dataShape[other]);
  if (!fits) return null;
  return build(indicesShape, limit, (flat) => {
    const position = coordinates(flat, indicesShape);
    position[axis] = onAxis(indices[flat], dataShape[axis]);
    return [flatPosition(position, dataShape), flat];
  });
}
