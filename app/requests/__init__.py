"""What a request asks, whatever carried it: its document and arrays, validated, to a call."""
