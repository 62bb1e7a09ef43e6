"""Triton kernels. Each is launched with the constants that tiles.py gives, and compiled ahead of time with the same.

Letters: T tokens, B decode rows, C chunks, H query heads, K key/value heads, G = H / K, D head_dim, E hidden, I inputs
or intermediate, O outputs, V vocabulary, N blocks, L layers, S block_size, M columns of a block table, J splits.

Two rules hold in all of them. Every load of numbers is followed by ``.to(tl.float32)``, except operands of ``tl.dot``,
which are cast where ``UPCAST`` says so: interpreted runs on the CPU set it, because the interpreter adds and multiplies
bfloat16 as if it were integers. And every product that ends in an address of the cache is taken in 64 bits: a pool of
Llama-2-7B passes 2^31 elements at block 512.
"""
