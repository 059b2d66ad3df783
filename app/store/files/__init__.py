"""A tensor's file and the disk access below it: uploads, mappings, downloads, synchronous writes, leftovers."""
