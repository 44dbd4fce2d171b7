"""Tables from images: fold a range of the log to its net change, overlay it on a base table, merge it, compare tables.

::

    images (L, T] ──fold──▶ net change per key ──┬─overlay─▶ the table at T, as a query
                                                 └─merge───▶ the table at T, as the next Delta version
"""
