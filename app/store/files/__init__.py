"""A tensor's file and the disk below it: uploads, mappings, downloads, synchronous writes, reserve, leftovers."""
