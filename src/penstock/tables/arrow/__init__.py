"""A table at a position, computed in Arrow, without Spark: for small ranges, and inside Spark's tasks.

`fold` and `overlay` do what the modules of the same names in `penstock.tables` do for DataFrames of any size. The tests
hold all of them to one model.
"""
