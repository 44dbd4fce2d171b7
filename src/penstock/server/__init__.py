"""The HTTP server inside ``penstock run``: status page, API, metrics, health checks and SQL.

::

    browser, Prometheus ── TCP (loopback, or token) ──┐
                                                      ├─▶ protocol ─▶ security ─▶ app ─▶ routes ─▶ Home, Spark
    penstock sql ── Unix socket in the home ──────────┘    limits      Host, Origin,
                                                           of time     token, headers

`serving` runs it in a thread. One sampler reads the status of the home once a second, for all clients.
"""
