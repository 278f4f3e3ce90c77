"""The seam to the operating system: in a simulation a simulated disk takes its place.

``disk``           files and directories
``descriptors``    how many files are open at once
``direct``         reads past the page cache
``early_writing``  large amounts on their way to the disk before anybody forces them
``forcing``        what is on the disk for certain, and that a failed force is the last
``aside``          where what cannot be used is kept
``directory``      the broker's directory: whose it is, of which format, where partitions lie
``mapping``        how readers see batches of a file, whatever becomes of it
"""
