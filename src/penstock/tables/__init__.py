"""Images into tables: fold a range to its net effect, lay it over a base table, merge it into one, compare.

::

    images (L, T] ──fold──▶ net effect per key ──┬─overlay─▶ the table at T, as a query
                                                 └─merge───▶ the table at T, as the next Delta version
"""
