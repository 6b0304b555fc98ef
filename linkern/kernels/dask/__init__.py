"""The Dask back end: a task runs an operator on a block, from the state before it.

A block is a chunk of the tokens of some heads. The arrays inside of blocks are those of
another library, whose back end does the work; nothing here knows operators.
"""
