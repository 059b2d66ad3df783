"""Typical mistakes in scatters, gradients, lookups and with `out_of_bounds`, as `mistakes` has those of gathers.

The tensor `items` is float32 of shape [4, 3], `other` is int8 of shape [2].
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.http.forms import int64, tensor
from tests.http.lookups import Given, as_safetensors
from tests.http.mistakes import ITEMS, Mistake, binary, gather, given, infer
from tests.http.provoked import body
from tests.http.tensors import save

LOOKUP_BODY = as_safetensors([Given("items", [0])])
INT32 = {"dtype": "int32"}


def scatter(**more: Any) -> dict[str, Any]:
    """A ScatterND of two rows; members that are None are left out."""
    asked = {
        "data": tensor("float32", [3, 2], [0] * 6),
        "indices": int64([2, 1], [0, 2]),
        "updates": tensor("float32", [2, 2], [1, 2, 3, 4]),
    } | more
    return {name: value for name, value in asked.items() if value is not None}


def elements(**more: Any) -> dict[str, Any]:
    """A ScatterElements of two items."""
    return scatter(indices=int64([1, 2], [0, 2]), updates=tensor("float32", [1, 2], [1, 2])) | more


def backward(**more: Any) -> dict[str, Any]:
    """A gradient of GatherND, of two rows of two."""
    asked = {
        "indices": int64([2, 1], [3, 0]),
        "grad_output": tensor("float32", [2, 2], [1, 2, 10, 20]),
        "data_shape": [4, 2],
    } | more
    return {name: value for name, value in asked.items() if value is not None}


def rows(**more: Any) -> dict[str, Any]:
    """A feature of two rows of `items`."""
    return {"tensor": "items", "indices": int64([2], [0, 3])} | more


def bags(**more: Any) -> dict[str, Any]:
    """A feature of two bags of `items`."""
    offsets = int64([2], [0, 2])
    return {"tensor": "items", "indices": int64([3], [0, 3, 1]), "offsets": offsets, "pooling": "sum"} | more


def without(feature: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in feature.items() if name not in names}


def lookup(
    name: str, feature: Any, code: str, pointer: str | None, mend: str, before: Any = None, **more: Any
) -> Mistake:
    """A mistake in the second of two features, or in what stands beside them."""
    features = [before or rows(), feature] if isinstance(feature, dict) else feature
    return gather(name, {"features": features, **more}, code, pointer, mend, "/lookup")


def nd(name: str, sent: Any, code: str, pointer: str, mend: str) -> Mistake:
    return gather(name, sent, code, pointer, mend, "/scatternd")


def along(name: str, sent: Any, code: str, pointer: str, mend: str) -> Mistake:
    return gather(name, sent, code, pointer, mend, "/scatter_elements")


def gradient(name: str, sent: Any, code: str, pointer: str, mend: str, path: str = "/gathernd/backward") -> Mistake:
    return gather(name, sent, code, pointer, mend, path)


def filled(name: str, code: str, pointer: str, mend: str, path: str = "/gathernd", **more: Any) -> Mistake:
    """A mistake in a gather of int8 with an index that is out of bounds."""
    sent = {"data": tensor("int8", [3], [1, 2, 3]), "indices": int64([2, 1], [0, 3]), **more}
    return gather(name, sent, code, pointer, mend, path)


def protocol(name: str, model: str, code: str, pointer: str, mend: str, *inputs: Any, **more: Any) -> Mistake:
    return gather(name, infer(*inputs, **more), code, pointer, mend, f"/v2/models/{model}/infer")


SCATTERS = [
    nd("updates of the wrong shape", scatter(updates=tensor("float32", [2], [1, 2])), "updates_shape_mismatch",
       "/updates/shape", "[2, 2]"),
    nd("updates of another type", scatter(updates=tensor("float64", [2, 2], [1, 2, 3, 4])), "unsupported_dtype",
       "/updates/dtype", "float32"),
    nd("no updates", scatter(data=int64([3, 1], [0] * 3), updates=None, indices=int64([1, 1], [0])), "invalid_field",
       "/updates", "updates"),
    nd("a reduction that there is not", scatter(reduction="sum"), "invalid_field", "/reduction", "add"),
    nd("a reduction in capitals", scatter(reduction="ADD"), "invalid_field", "/reduction", "'add'"),
    nd("a reduction that came with a later version", scatter(reduction="max", dialect="onnx-16"), "invalid_field",
       "/reduction", "onnx-18"),
    nd("a reduction of the first version", scatter(reduction="add", dialect="onnx-11"), "invalid_field", "/reduction",
       "onnx-"),
    nd("a sum of flags", scatter(data=tensor("bool", [2], [True, False]), indices=int64([1, 1], [0]),
       updates=tensor("bool", [1], [True]), reduction="add"), "unsupported_dtype", "/reduction", "'none'"),
    nd("the dialect of GatherND", scatter(dialect="onnx-12"), "invalid_field", "/dialect", "onnx-1"),
    nd("batch_dims of GatherND", scatter(batch_dims=0), "invalid_field", "/batch_dims", "batch_dims"),
    nd("out_of_bounds of a gather", scatter(out_of_bounds="clip"), "invalid_field", "/out_of_bounds", "Leave out"),
    nd("int32 indices of a scatter", scatter(indices=int64([2, 1], [0, 2]) | INT32), "unsupported_dtype",
       "/indices/dtype", "int64"),
    nd("an index of a scatter out of range", scatter(indices=int64([2, 1], [0, 3])), "index_out_of_bounds",
       "/indices/values/1", "-3 to 2"),
    nd("a scatter on a GPU", scatter(device="gpu"), "device_unavailable", "/device", "auto"),
    nd("a scatter into a tensor misspelt", scatter(data={"tensor": "itms"}, updates=tensor("float32", [2, 3], [0] * 6)),
       "tensor_not_found", "/data/tensor", "items"),
    along("an axis that a scatter has not", elements(axis=2), "axis_out_of_range", "/axis", "-2 to 1"),
    along("indices of a scatter of another rank", elements(indices=int64([1], [0]),
          updates=tensor("float32", [1, 1], [1])), "rank_mismatch", "/indices/shape", "2"),
    along("indices of a scatter longer than data", elements(indices=int64([4, 1], [0] * 4), axis=1,
          updates=tensor("float32", [3, 1], [1] * 3)), "indices_shape_mismatch", "/indices/shape", "3"),
    along("updates not of the shape of indices", elements(updates=tensor("float32", [2, 2], [1] * 4)),
          "updates_shape_mismatch", "/updates/shape", "[1, 2]"),
    binary("a reduction misspelt in the query", "/scatternd?reduction=Add",
           save(data=ITEMS, indices=np.array([[0]]), updates=ITEMS[:1]), "invalid_field", "/query/reduction", "'add'"),
    binary("no updates in safetensors", "/scatternd?tensr=items",
           save(indices=np.array([[0]]), updates=ITEMS[:1]), "invalid_field", "/query/tensr", "'tensor'"),
    protocol("an output asked for twice", "scatternd", "invalid_field", "/outputs/1/name", "'output'",
             given("data", "FP32", [2], [1, 2]), given("indices", "INT64", [1, 1], [0]),
             given("updates", "FP32", [1], [3]), outputs=[{"name": "output"}, {"name": "output"}]),
    protocol("an input of a scatter twice", "scatternd", "invalid_field", "/inputs/3/name", "'updates'",
             given("data", "FP32", [2], [1, 2]), given("indices", "INT64", [1, 1], [0]),
             given("updates", "FP32", [1], [3]), given("updates", "FP32", [1], [3])),
]  # fmt: skip
BACKWARDS = [
    gradient("a gradient of the wrong shape", backward(grad_output=tensor("float32", [2], [1, 2])),
             "updates_shape_mismatch", "/grad_output/shape", "[2, 2]"),
    gradient("a shape of data with which no gradient can be", backward(data_shape=[4, 10**30]),
             "updates_shape_mismatch", "/grad_output/shape", "/data_shape"),
    gradient("a gradient of integers", backward(grad_output=int64([2, 2], [1] * 4)), "unsupported_dtype",
             "/grad_output/dtype", "float32"),
    gradient("no shape of data", backward(data_shape=None), "invalid_field", "/data_shape", "data_shape"),
    gradient("two shapes of data",
             backward(tensor="items", data_shape=[4, 3], grad_output=tensor("float32", [2, 3], [1] * 6)),
             "invalid_field", "/tensor", "'data_shape'"),
    gradient("a gradient of another type than the tensor's",
             backward(data_shape=None, tensor="items", grad_output=tensor("float64", [2, 3], [1] * 6)),
             "unsupported_dtype", "/grad_output/dtype", "float32"),
    gradient("the gradient of a tensor of integers",
             backward(data_shape=None, tensor="other", grad_output=tensor("float32", [2], [1, 2]),
                      indices=int64([2, 1], [0, 1])), "unsupported_dtype", "/tensor", "[2]"),
    gradient("a coefficient in quotes", backward(lda_coeff="0.5"), "invalid_field", "/lda_coeff", "0.5"),
    gradient("a coefficient that is no number", backward(lda_coeff="half"), "invalid_field", "/lda_coeff", "number"),
    gradient("a coefficient that is infinite", backward(lda_coeff="Infinity"), "invalid_field", "/lda_coeff", "finite"),
    gradient("a coefficient beyond float32", backward(lda_coeff=-1e39), "value_not_representable", "/lda_coeff",
             "3.4028234e38"),
    gradient("sparse in quotes", backward(sparse="true"), "invalid_field", "/sparse", "true"),
    gradient("sparse as 1", backward(sparse=1), "invalid_field", "/sparse", "true"),
    gradient("sparse behind batches",
             backward(indices=int64([4, 1, 1], [0] * 4), grad_output=tensor("float32", [4, 1], [1] * 4),
                      sparse=True, batch_dims=1), "invalid_field", "/sparse", "batch_dims 0"),
    gradient("sparse along another axis",
             backward(indices=int64([1], [0]), grad_output=tensor("float32", [4, 1], [1] * 4), sparse=True, axis=1),
             "invalid_field", "/sparse", "axis 0", "/gather/backward"),
    gradient("an index of a gradient out of range", backward(indices=int64([2, 1], [4, 0])), "index_out_of_bounds",
             "/indices/values/0", "-4 to 3"),
    gradient("out_of_bounds for a gradient", backward(out_of_bounds="clip"), "invalid_field", "/out_of_bounds",
             "Leave out"),
    gradient("grad for grad_output", without(backward(), "grad_output") | {"gradoutput": backward()["grad_output"]},
             "invalid_field", "/gradoutput", "'grad_output'"),
    gradient("the data of a gradient as a tensor misspelt",
             backward(data_shape=None, tensor="itemz", grad_output=tensor("float32", [2, 3], [1] * 6)),
             "tensor_not_found", "/tensor", "items"),
    binary("a shape with brackets in the query", "/gathernd/backward?data_shape=[4, 2]",
           save(indices=np.array([[0]]), grad_output=ITEMS[:1, :2]), "invalid_field", "/query/data_shape", "4,2"),
    binary("a tensor of integers for a gradient in the query", "/gathernd/backward?tensor=other",
           save(indices=np.array([[0]]), grad_output=ITEMS[0, :1]), "unsupported_dtype", "/query/tensor",
           "'data_shape'"),
    binary("a coefficient of another language in the query", "/gathernd/backward?data_shape=4,2&lda_coeff=inf",
           save(indices=np.array([[0]]), grad_output=ITEMS[:1, :2]), "invalid_field", "/query/lda_coeff", "finite"),
]  # fmt: skip
FEATURE = "/features/1"
LOOKUPS = [
    lookup("a table misspelt", rows(tensor="itmes"), "tensor_not_found", f"{FEATURE}/tensor", "items"),
    lookup("offsets that begin with 1", bags(offsets=int64([2], [1, 2])), "offsets_invalid",
           f"{FEATURE}/offsets/values/0", "Send 0"),
    lookup("offsets that fall", bags(offsets=int64([3], [0, 2, 1])), "offsets_invalid",
           f"{FEATURE}/offsets/values/2", "2 to 3", bags(offsets=int64([3], [0, 0, 0]))),
    lookup("offsets beyond the indices", bags(offsets=int64([2], [0, 4])), "offsets_invalid",
           f"{FEATURE}/offsets/values/1", "0 to 3"),
    lookup("offsets without a bag", [bags(offsets=int64([0], []))], "offsets_invalid",
           "/features/0/offsets/values", "[0]"),
    lookup("offsets of two dimensions", bags(offsets=int64([1, 2], [0, 2])), "offsets_invalid",
           f"{FEATURE}/offsets/shape", "one dimension"),
    lookup("offsets of another type", bags(offsets=int64([2], [0, 2]) | INT32), "unsupported_dtype",
           f"{FEATURE}/offsets/dtype", "int64"),
    lookup("offsets without pooling", without(bags(), "pooling"), "invalid_field", f"{FEATURE}/offsets", "'pooling'",
           rows(indices=int64([3], [0, 1, 2]))),
    lookup("pooling without offsets", without(bags(), "offsets"), "invalid_field", f"{FEATURE}/offsets", "[0]",
           bags(offsets=int64([1], [0]))),
    lookup("weights with the mean", bags(weights=tensor("float32", [3], [1, 2, 3]), pooling="mean"), "invalid_field",
           f"{FEATURE}/weights", "'weights'"),
    lookup("weights without pooling", rows(weights=tensor("float32", [2], [1, 2])), "invalid_field",
           f"{FEATURE}/weights", "'sum'"),
    lookup("a weight for each bag", bags(weights=tensor("float32", [2], [1, 2])), "updates_shape_mismatch",
           f"{FEATURE}/weights/shape", "[3]"),
    lookup("weights of another type", bags(weights=tensor("float64", [3], [1, 2, 3])), "unsupported_dtype",
           f"{FEATURE}/weights/dtype", "float32"),
    lookup("a pooling that there is not", bags(pooling="Mean"), "invalid_field", f"{FEATURE}/pooling", "'mean'"),
    lookup("bags of integers", [bags(tensor="other", indices=int64([2], [0, 1]), offsets=int64([1], [0]))],
           "unsupported_dtype", "/features/0/pooling", "'offsets'"),
    lookup("weighted bags of integers", [bags(tensor="other", indices=int64([2], [0, 1]), offsets=int64([1], [0]),
           weights=tensor("int8", [2], [1, 1]))], "unsupported_dtype", "/features/0/pooling", "'weights'"),
    lookup("uint8 indices", rows(indices=tensor("uint8", [2], [0, 1])), "unsupported_dtype",
           f"{FEATURE}/indices/dtype", "int64"),
    lookup("bags as a matrix", bags(indices=int64([1, 3], [0, 3, 1])), "rank_mismatch", f"{FEATURE}/indices/shape",
           "one dimension"),
    lookup("an index out of range in a bag", bags(indices=int64([3], [0, 4, 1])), "index_out_of_bounds",
           f"{FEATURE}/indices/values/1", "0 to 3"),
    lookup("an index from the end", rows(indices=int64([2], [0, -1])), "index_out_of_bounds",
           f"{FEATURE}/indices/values/1", "0 to 3"),
    lookup("features of other numbers of rows", rows(indices=int64([1], [0])), "feature_mismatch", FEATURE, "'concat'"),
    lookup("features of other types", rows(tensor="other", indices=int64([2], [0, 1])), "feature_mismatch", FEATURE,
           "'concat'"),
    gather("a feature that is not in a list", {"features": rows()}, "invalid_field", "/features", "brackets",
           "/lookup"),
    lookup("no feature", [], "invalid_field", "/features", "'indices'"),
    lookup("a dialect for a lookup", rows(), "invalid_field", "/dialect", "'dialect'", dialect="onnx-13"),
    lookup("a device for a lookup", rows(), "invalid_field", "/device", "'device'", device="cpu"),
    lookup("concat in quotes", rows(), "invalid_field", "/concat", "false", concat="false"),
    lookup("a fill value that nothing is filled with", rows(indices=int64([2], [0, 4])), "invalid_field",
           "/fill_value", "'fill'", fill_value=1),
    lookup("a mode that there is not", rows(), "invalid_field", "/out_of_bounds", "clip", out_of_bounds="ignore"),
    binary("a table misspelt in safetensors", "/lookup", as_safetensors([Given("itmes", [0])]), "tensor_not_found",
           "/__metadata__/lookup/features/0/tensor", "'items'"),
    binary("a field of scatters in the query of a lookup", "/lookup?reduction=sum", LOOKUP_BODY, "invalid_field",
           "/query/reduction", "Leave out 'reduction' in the query"),
    binary("a field of a lookup in safetensors in the query", "/lookup?output_encoding=base64", LOOKUP_BODY,
           "invalid_field", "/query/output_encoding", "into the text 'lookup' of __metadata__"),
    gather("a field of scatters in the query of a gather", body(), "invalid_field", "/query/reduction",
           "Leave out 'reduction' in the query", "/gathernd?reduction=add"),
    protocol("an output of a lookup twice", "lookup", "invalid_field", "/outputs/1/name", "'output'",
             given("0.indices", "INT64", [1], [0]), outputs=[{"name": "output"}, {"name": "output"}],
             parameters={"lookup": json.dumps({"features": [{"tensor": "items"}]})}),
    protocol("a mode that there is not, in the text of a lookup", "lookup", "invalid_field",
             "/parameters/lookup/out_of_bounds", "In the JSON text at /parameters/lookup: Write one of error, clip",
             given("0.indices", "INT64", [1], [0]),
             parameters={"lookup": json.dumps({"features": [{"tensor": "items"}], "out_of_bounds": "ignore"})}),
    protocol("a table misspelt in the protocol", "lookup", "tensor_not_found", "/parameters/lookup/features/0/tensor",
             "items", given("0.indices", "INT64", [1], [0]),
             parameters={"lookup": json.dumps({"features": [{"tensor": "itmes"}]})}),
]  # fmt: skip
OUT_OF_BOUNDS = [
    filled("a fill value without fill", "invalid_field", "/fill_value", "'fill'", fill_value=7),
    filled("a fill value with clip", "invalid_field", "/fill_value", "'fill'", fill_value=7, out_of_bounds="clip"),
    filled("a mode of NumPy", "invalid_field", "/out_of_bounds", "error, clip, wrap, fill", out_of_bounds="raise",
           indices=int64([1, 1], [0])),
    filled("a mode misspelt", "invalid_field", "/out_of_bounds", "'wrap'", out_of_bounds="warp"),
    filled("a fill value too large", "value_not_representable", "/fill_value", "-128 to 127", out_of_bounds="fill",
           fill_value=300),
    filled("a fill value of another type", "value_not_representable", "/fill_value", "int8", out_of_bounds="fill",
           fill_value="none"),
    filled("null for a fill value", "value_not_representable", "/fill_value", "int8", out_of_bounds="fill",
           fill_value=None),
    filled("a number to fill strings with", "value_not_representable", "/fill_value", "string", out_of_bounds="fill",
           fill_value=0, data=tensor("string", [2], ["a", "b"])),
    filled("one number to fill complex ones with", "value_not_representable", "/fill_value", "[0, 0]",
           out_of_bounds="fill", fill_value=0, data=tensor("complex64", [1], [[1, 2]])),
    binary("a fill value that is no JSON", "/gathernd?out_of_bounds=fill&fill_value=none",
           save(data=ITEMS, indices=np.array([[9]])), "invalid_field", "/query/fill_value", "such as 0"),
    binary("a fill value without fill in the query", "/gathernd?fill_value=1",
           save(data=ITEMS, indices=np.array([[9]])), "invalid_field", "/query/fill_value", "'fill'"),
    binary("a fill value of another type in the query", '/gathernd?out_of_bounds=fill&fill_value="x"',
           save(data=ITEMS, indices=np.array([[9]])), "value_not_representable", "/query/fill_value", "float32"),
    protocol("a fill value that is a number in the protocol", "gathernd", "invalid_field", "/parameters/fill_value",
             "double quotes", given("data", "FP32", [2], [1, 2]), given("indices", "INT64", [1, 1], [5]),
             parameters={"out_of_bounds": "fill", "fill_value": 1.5}),
]  # fmt: skip
OPERATOR_MISTAKES = [*SCATTERS, *BACKWARDS, *LOOKUPS, *OUT_OF_BOUNDS]
