"""The benchmark: this package and its peers on the same tables of a private PostgreSQL. Not a test, never collected.

Each run is a process of its own; the runs of one round are interleaved, so that what disturbs the machine disturbs all.

.. code-block:: bash

    python -m venv peers && peers/bin/pip install -r tests/benchmark/requirements.txt
    python -m tests.benchmark --peers-python peers/bin/python --json results.json --markdown
"""
