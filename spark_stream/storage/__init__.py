"""The log on disk. Knows ``consistency`` and nothing above it; one partition is one directory.

``disk``         the seam to the operating system (a simulated disk takes its place)
``descriptors``  how many files are open at once
``early_writing``  large amounts on their way to the disk before anybody forces them
``directory``    the broker's directory: whose it is, of which format, where partitions lie
``settings``     what a topic may configure about its files and its replicas
``codec``        Arrow batches to IPC bytes and back, checksums
``message``      an encoded batch, in one piece or in several
``log_format``   what a log needs to know of its topic
``segment``      two files: batches and their entries table; ``active``: the one that grows;
                 ``mapping``: how readers see its batches, whatever becomes of the file
``endings``      which batches are aborted
``rolling``      when the active segment is full
``forcing``      what is on the disk for certain, and that a failed force is the last
``flush_timer``  when to force a log whose topic has ``flush=interval``
``opening``      a log's directory as it is made good before it is used
``looking``      what the files of a segment tell; ``recovery``: what of a log is valid;
                 ``aside``: where the rest is kept; ``begun``: the note that a log has begun
``checking``     segments read again; ``direct``: past the page cache; ``damage``: what is
                 known to be damaged
``reading``      from a range of offsets to few, well-sized Arrow batches
``locating``     which files have the entries that another replica has named
``stored``       entries as they go from one replica to another, and what makes two the same
``truncation``   cutting a log back, and emptying it; ``tails``: what that leaves in a file
``retention``    which segments are too old or too many
``logs``         how the logs of a broker are opened and removed
``log``          a partition's segments as one log; ``replica_log``: what a partition needs of it
"""
