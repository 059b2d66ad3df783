"""The files of tensors and the disk access beneath them: uploads, mappings, downloads, synchronous writes,
leftovers.
"""
