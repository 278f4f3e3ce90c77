"""The log on disk. Knows ``consistency`` and nothing above it; one partition is one directory.

``disk``       the seam to the operating system (tests put a failing disk there)
``directory``  the broker's directory: whose it is, of which format, where partitions lie
``settings``   what a topic may configure about its files
``codec``      Arrow batches to IPC bytes and back, checksums
``segment``    two files: batches and their entries table
``recovery``   what is valid after a crash, and cutting off what is not
``reading``    from a range of offsets to few, well-sized Arrow batches
``retention``  which segments are too old or too many
``log``        a partition's segments as one log
"""
