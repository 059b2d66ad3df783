/* Computes where each element of an output comes from, by the operators' formulas on shapes and indices, without values.
 * Flat positions are row-major. A tuple selects one slice; for operators along an axis it is a single index. */

/** Default maximum of traced output elements. */
export const MOST_TRACED = 4096;

export const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

/** Return the row-major coordinates of flat position `flat` in `shape`. */
export function coordinates(flat, shape) {
  const found = new Array(shape.length);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = flat % shape[axis];
    flat = Math.floor(flat / shape[axis]);
  }
  return found;
}

/** Return the flat position of `position` in `shape`. */
export const flatPosition = (position, shape) => position.reduce((flat, place, axis) => flat * shape[axis] + place, 0);

/** Return the number of index components of a tuple. */
export const tupleDepth = (operator, indicesShape) => (operator.endsWith("nd") ? indicesShape.at(-1) : 1);

/**
 * Return the output's shape and its links. A link goes from an element of data or updates (`part` and `place`) to an
 * element of the output, through a `tuple`, which is null if a scatter leaves the element unchanged. `place` is NaN if an
 * index is out of bounds: then the request is an error, or the element is filled. `batchDims` are those beside an axis.
 * `wraps` says whether the dialect counts negative indices from the end. `outOfBounds` is the request's rule for other
 * indices out of bounds. At most `limit` elements are traced. Returns null if shapes and parameters do not match; the
 * service then reports the broken rule.
 */
export function traceOutput({
  operator, dataShape, indicesShape, indices, updatesShape, reduction, parameter, batchDims = 0, wraps, outOfBounds,
  limit = MOST_TRACED,
}) {
  const onAxis = (text, size) => place(text, size, wraps, outOfBounds);
  const gather = { gathernd: traceGatherND, gather: traceGather, gather_elements: traceGatherElements }[operator];
  if (gather) return gather(dataShape, indicesShape, indices, parameter, onAxis, limit, batchDims);
  const targetsOf = { scatternd: targetsOfScatterND, scatter_elements: targetsOfScatterElements }[operator];
  const targets = targetsOf?.(dataShape, indicesShape, indices, updatesShape, parameter, onAxis, limit);
  return targets ? scattered(dataShape, targets, reduction, limit) : null;
}

/** Return the position of an index, given as text, on an axis of `size`; NaN if it is out of bounds. */
function place(text, size, wraps, outOfBounds) {
  let index = Number(text);
  if (wraps && index < 0) index += size;
  if (index >= 0 && index < size) return index;
  if (size && outOfBounds === "clip") return index < 0 ? 0 : size - 1;
  if (size && outOfBounds === "wrap") {
    const rest = /^-?\d+$/.test(text) ? Number(BigInt(text) % BigInt(size)) : Number(text) % size; // exact even beyond 2^53
    return (rest + size) % size;
  }
  return NaN;
}

const upTo = (count, limit, make) => Array.from({ length: Math.min(count, limit) }, (_, flat) => make(flat));

/** Trace a gather. `locate` returns an output element's position in data and its tuple. */
function build(shape, limit, locate) {
  const links = upTo(product(shape), limit, (output) => {
    const [source, tuple] = locate(output);
    return { output, part: "data", place: source, tuple };
  });
  return { shape, links };
}

/** Trace a scatter by each update's output position and tuple. Without a reduction, the last update wins. */
function scattered(shape, targets, reduction, limit) {
  const written = new Map();
  targets.forEach(([output, tuple], update) => {
    const before = reduction === "none" ? [] : (written.get(output) ?? []);
    written.set(output, [...before, { output, part: "updates", place: update, tuple }]);
  });
  const links = upTo(product(shape), limit, (output) => {
    const updates = written.get(output) ?? [];
    const isKept = !updates.length || reduction !== "none";
    return [...(isKept ? [{ output, part: "data", place: output, tuple: null }] : []), ...updates];
  });
  return { shape, links: links.flat() };
}

const areEqual = (shape, other) => shape.length === other.length && shape.every((size, axis) => size === other[axis]);

function targetsOfScatterND(dataShape, indicesShape, indices, updatesShape, parameter, onAxis, limit) {
  const depth = indicesShape.at(-1);
  const slice = dataShape.slice(depth);
  const fits =
    dataShape.length >= 1 && indicesShape.length >= 1 && depth >= 1 && depth <= dataShape.length &&
    areEqual(updatesShape, [...indicesShape.slice(0, -1), ...slice]);
  if (!fits) return null;
  const sliceItems = product(slice);
  return upTo(product(updatesShape), limit, (flat) => {
    const tuple = Math.floor(flat / sliceItems);
    let target = 0;
    for (let component = 0; component < depth; component++) {
      target = target * dataShape[component] + onAxis(indices[tuple * depth + component], dataShape[component]);
    }
    return [target * sliceItems + (flat % sliceItems), tuple];
  });
}

function targetsOfScatterElements(dataShape, indicesShape, indices, updatesShape, axis, onAxis, limit) {
  const trace = traceGatherElements(dataShape, indicesShape, indices, axis, onAxis, limit);
  return trace && areEqual(updatesShape, indicesShape) ? trace.links.map(({ place: target, tuple }) => [target, tuple]) : null;
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
  const shared = product(dataShape.slice(batchDims, axis)); // slabs of data that share a batch's indices
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
