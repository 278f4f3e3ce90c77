"""The seam to the operating system; in a simulation a simulated disk replaces it.

``disk``           files and directories
``descriptors``    how many files are open at once
``direct``         reads that bypass the page cache
``early_writing``  starts writing large amounts to the disk before a force
``forcing``        what is certainly on the disk; after a failed force there is no other
``directory``      the broker's directory: whose it is, of which format, where partitions lie
``mapping``        how readers see batches of a file, even after the file is gone
"""
