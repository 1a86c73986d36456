"""The native kernel: a block of a pair summed by C++ in one pass over both sides (`block.cpp`).

`build.py` compiles it where a compiler is, `library.py` loads it, `native_block.py` is its door for the pass.
"""
