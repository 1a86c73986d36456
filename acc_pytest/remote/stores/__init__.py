"""Files that lie in an object store or in several places, behind paths that every reader takes.

    s3://bucket/run/dump                                   what the user gives
    CACHE/acc_mirror/3f2a91c07b44/s3/bucket/run/dump       its mirror: the path that stands for it
    CACHE/acc_mirror/3f2a91c07b44/acc_dump.index           the only file there: names, sizes, versions
    CACHE/acc_blocks/3f/3f2a...                            the bytes of a file that were needed so far

Readers of formats and layouts of directories know paths only. `tensors/location.py` is what they ask instead
of the system; it answers for a path below a mirror, and leaves any other path to the system.
"""
