"""Convert pydantic's `ValidationError` to a `GatherError` with a pointer and a hint. No other module does so."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.errors import GatherError, invalid_field
from app.json_text import lossless_json
from app.near_name import shorten
from app.requests.schemas.field_hints import (
    FORMS,
    ITEM_FORMS,
    TYPES,
    VALUE_HINTS,
    allowed_hint,
    integer_hint,
    name_hint,
)
from app.requests.schemas.member_types import Detail, FromText, Needed, NotOffered, QueryText, TooSmall
from app.tensors.near_dtype import holds_positions
from app.tensors.tensor_name import REFERENCE, TENSOR_NAME, reference_hint

Model = TypeVar("Model", bound=BaseModel)
_UNKNOWN: Final = "extra_forbidden"
_NO_UNICODE: Final = "string_unicode"
_MANY: Final = 32
"""If there are more faults than this, most are unknown members, which take pydantic longer to report than JSON takes to
parse.
"""

_NOT_RENAMED: Final[Mapping[str, str]] = {}
OBJECT: Final = Detail("{name} must be an object")


class InvalidFields:
    """The faults of a request, of which only the first is reported.

    In each object, unknown members come first. The other members follow in the order of the model.

    `model` refused `document`; pointers start with `prefix`.
    """

    def __init__(
        self,
        refusal: ValidationError,
        model: type[BaseModel],
        document: Any,
        prefix: str = "",
        renamed: Mapping[str, str] = _NOT_RENAMED,
    ) -> None:
        """`renamed` maps pointers into the document to pointers into the request, where they differ."""
        self._renamed = renamed
        self._model = model
        self._document = document
        self._prefix = prefix
        if refusal.error_count() > _MANY:
            refusal = _refusal(model, _with_one_unknown(model, document))
        self._faults = refusal.errors(include_url=False, include_context=False)

    def raise_unknown(self) -> None:
        """Raise invalid_field if the request is not an object or has an unknown member at the top level."""
        fault = self._first(self._faults, 0)
        if not fault["loc"] or (fault["type"] == _UNKNOWN and len(fault["loc"]) == 1):
            raise self._error(fault)

    def first(self) -> GatherError:
        """Return the error for the first fault."""
        return self._error(self._first(self._faults, 0))

    def raise_first(self, *place: int | str) -> None:
        """Raise the error for the first fault within the member at `place`, if there is one."""
        faults = [fault for fault in self._faults if fault["loc"][: len(place)] == place]
        if faults:
            raise self._error(self._first(faults, len(place)))

    def first_item(self, member: str) -> int | None:
        """Return the position of the first item with a fault in the list `member`, or None."""
        items = [fault["loc"][1] for fault in self._faults if len(fault["loc"]) > 1 and fault["loc"][0] == member]
        return min((item for item in items if isinstance(item, int)), default=None)

    def _first(self, faults: Sequence[ErrorDetails], depth: int) -> ErrorDetails:
        """Return the first of `faults`, which are all within the same object, `depth` steps from the top."""
        while True:
            for fault in faults:
                steps = len(fault["loc"]) - depth
                if steps <= 0 or (steps == 1 and fault["type"] == _UNKNOWN):
                    return fault
            step = faults[0]["loc"][depth]
            faults = [fault for fault in faults if fault["loc"][depth] == step]
            depth += 1

    def _error(self, fault: ErrorDetails) -> GatherError:
        way = fault["loc"]
        unknown = fault["type"] == _UNKNOWN
        place = _Place(self._model, self._document, self._prefix, self._renamed)
        for step in way[:-1] if unknown else way:
            place.enter(step)
        if unknown or (fault["type"] == _NO_UNICODE and type(place.value) is dict):
            return _unknown_field(place.pointer, place.value, place.members(), may_be_resident=place.may_be_resident)
        detail = place.detail(fault["type"])
        return GatherError(
            "not_implemented" if isinstance(detail, NotOffered) else "invalid_field",
            detail.format(name=place.name, of=place.of, value=lossless_json.shown(place.value)),
            pointer=place.pointer,
            hint=place.hint(fault["type"]),
        )


def validate_document(model: type[Model], document: Any, prefix: str = "") -> Model:
    """Validate a JSON document. Raises invalid_field, with pointers that start with `prefix`."""
    try:
        return model.model_validate(document)
    except ValidationError as refusal:
        raise InvalidFields(refusal, model, document, prefix).first() from None


def _refusal(model: type[BaseModel], document: Any) -> ValidationError:
    """Return pydantic's error for an invalid document."""
    try:
        model.model_validate(document)
    except ValidationError as refusal:
        return refusal
    raise AssertionError("a document was refused, and without its unknown members it is not")


def _with_one_unknown(annotation: Any, value: Any) -> Any:
    """Return `value` without its unknown members, except for the first one in each object.

    Only that one can be reported.
    """
    models = list(_models(annotation))
    if type(value) is list:
        item = _items(annotation)
        return value if item is None else [_with_one_unknown(item, each) for each in value]
    if type(value) is not dict or not models:
        return value
    known = {field.alias or name: field.annotation for model in models for name, field in model.model_fields.items()}
    first = next((name for name in value if name not in known), None)
    return {
        name: _with_one_unknown(known.get(name), each) for name, each in value.items() if name in known or name == first
    }


class _Place:
    """A position in a request, reached step by step from the top, with the model's messages for it."""

    def __init__(self, model: type[BaseModel], value: Any, pointer: str, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed
        self.value = value
        self.pointer = pointer
        self._annotation: Any = model
        self._details: list[Detail] = [Detail("the body must be a JSON object")]
        self._holder: Any = None
        self._is_item = False
        self.name = self.of = ""
        self.may_be_resident = False

    def enter(self, step: int | str) -> None:
        """Step into a member or an item. The tag of a union's alternative changes only the model, not the position."""
        models = list(_models(self._annotation))
        if len(models) > 1:
            self._annotation = next(model for model in models if model.__name__ == step)
            self.may_be_resident = any("tensor" in model.model_fields for model in models)
            return
        self._holder = self.value
        self._is_item = isinstance(step, int)
        self.may_be_resident = False
        if isinstance(step, int):
            self._annotation, self._details = _item(self._annotation)
            self.value = self.value[step]
        else:
            field = _field(models[0], step)
            self._annotation = field.annotation
            self._details = [found for found in reversed(field.metadata) if isinstance(found, Detail)]
            self.value = self.value.get(step)
            if type(self.value) is QueryText:
                ways = [found.detail for found in field.metadata if isinstance(found, FromText)]
                self._details = [detail for detail in ways if detail is not None] + self._details
            self.name, self.of = step, self.name
        self.pointer += f"/{step}"
        self.pointer = self._renamed.get(self.pointer, self.pointer)

    def members(self) -> Collection[str]:
        """Return the names of the members that the object at this position may have."""
        (model,) = _models(self._annotation)
        return [field.alias or name for name, field in model.model_fields.items()]

    def detail(self, fault: str) -> Detail:
        """Return the message for the value at this position; `fault` is pydantic's error type."""
        if fault == "missing":
            return next(self._details_of(Needed), Detail("{name} is missing"))
        if fault == "greater_than_equal":
            too_small = next(self._details_of(TooSmall), None)
            if too_small is not None:
                return too_small
        for detail in self._details:
            if not isinstance(detail, TooSmall):
                return detail
        if get_origin(self._annotation) is Literal:
            return Detail("{name} must be one of " + ", ".join(get_args(self._annotation)))
        return OBJECT

    def hint(self, fault: str) -> str | None:
        """Return how to correct the value at this position, or None to use the hint from the catalogue of errors."""
        pointer = shorten(self.pointer)
        if not self.pointer:
            return "Send one JSON object as the body."
        if self.name in TYPES:
            verb = f"Add '{self.name}'" if fault == "missing" else "Write the name of a type"
            return f"{verb} at {pointer}, such as '{self._type()}'."
        form = (ITEM_FORMS if self._is_item else FORMS).get(self.name)
        if fault == "missing":
            return f"Add '{self.name}' at {pointer}." if form is None else f"Add '{self.name}' at {pointer}: {form}."
        if get_origin(self._annotation) is Literal:
            return allowed_hint(self.name, self.value, get_args(self._annotation), pointer)
        detail = self.detail(fault)
        if isinstance(detail, TooSmall):
            return integer_hint(self.value, pointer)
        if detail in VALUE_HINTS:
            return VALUE_HINTS[detail](self.value, pointer)
        if self.name == "tensor" and isinstance(self.value, str):
            return reference_hint(self.value, pointer)
        if detail == OBJECT:
            if self.may_be_resident and isinstance(self.value, str) and TENSOR_NAME.fullmatch(self.value):
                return f'Write {{"tensor": "{self.value}"}} at {pointer}, which names a resident tensor.'
            return f"Write an object at {pointer}, with dtype, shape and values for a tensor."
        return None if form is None else f"Write at {pointer} {form}."

    def _type(self) -> str:
        """Return an example element type for this tensor. It depends on the tensor's name.

        The tensor's name is that of its member or, for an input of the inference protocol, the value of its `name`
        member.
        """
        tensor = self.of
        if self.name == "datatype" and type(self._holder) is dict:
            tensor = str(self._holder.get("name"))
        return TYPES[self.name][holds_positions(tensor)]

    def _details_of(self, kind: type[Detail]) -> Iterator[Detail]:
        return (detail for detail in self._details if isinstance(detail, kind))


def _field(model: type[BaseModel], name: str) -> Any:
    return next(field for key, field in model.model_fields.items() if name == (field.alias or key))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a union type, but not the models of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for form in get_args(annotation):
            yield from _models(form)


def _items(annotation: Any) -> Any:
    """Return the type of a list's items, or None if the type is not a list."""
    forms = [annotation, *get_args(annotation)]
    return next((get_args(form)[0] for form in forms if get_origin(form) in (list, tuple)), None)


def _item(annotation: Any) -> tuple[Any, list[Detail]]:
    """Return the type of a list's items, and the messages for an invalid item."""
    item = _items(annotation)
    metadata = get_args(item)[1:] if get_origin(item) is Annotated else ()
    return item, [found for found in metadata if isinstance(found, Detail)]


def _unknown_field(
    pointer: str, fields: Mapping[str, Any], known: Collection[str], *, may_be_resident: bool = False
) -> GatherError:
    """Return the error for the first of `fields` that is not in `known`.

    `may_be_resident` means that the object could be {"tensor": NAME} instead.
    """
    given = next(name for name in fields if name not in known)
    name = lossless_json.printable(given)
    place = f"{pointer}/" + name.replace("~", "~0").replace("/", "~1")
    shown = str(lossless_json.shown(name))
    listed = ", ".join(sorted(known))
    hint = name_hint(shown, known, fields)
    if may_be_resident:
        listed += ", or tensor alone for a resident tensor"
        resident = fields[given]
        if isinstance(resident, str) and REFERENCE.fullmatch(resident) and not {*known}.intersection(fields):
            hint = f'Write {{"tensor": "{resident}"}} at {shorten(pointer)}, which names a resident tensor.'
    return invalid_field(place, f"{shown!r} is not a field here; there are {listed}", hint)
