"""The engine: the processes and loops that run a home, and the reports about it.

::

    runner ──▶ source_runner ──┬──▶ capture_process                    one process per source writes its change log
                               └──▶ table_loops ──┬──▶ snapshot, incremental_snapshot
                                                  ├──▶ repair, compaction
                                                  └──▶ table_errors ──▶ error_policy
    requests ──▶ reconcile      requests of users in the catalog, and the step that executes them
    lifecycle                   creating and dropping sources
    leases, retention           how long history is kept
    disk_space                  work pauses before the disk is full
    status ──▶ alarms, metrics (with instruments, processes)
    check, verify, transaction_tail                       other reports
"""
