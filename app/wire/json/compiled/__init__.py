"""The JSON codec compiled by Numba: what requests use once it is ready (see `app.wire.json.codec_functions`)."""
