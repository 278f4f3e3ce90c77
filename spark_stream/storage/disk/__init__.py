"""The seam to the operating system; in a simulation a simulated disk replaces it.

``disk``         files and directories
``descriptors``  open files of a process, and early writes in the background
``forcing``      the part of a log that is certainly on the disk; a failed force is final
``directory``    the broker's directory: its owner, its format, the places of partitions
"""
