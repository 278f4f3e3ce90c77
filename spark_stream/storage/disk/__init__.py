"""The interface to the operating system. In a simulation, a simulated disk replaces it.

``disk``         files and directories
``descriptors``  open files of a process, and early writes in the background
``fsyncs``       fsyncs of a log, and the part that is certainly on the disk
``directory``    the broker's directory: its owner, its format, the places of partitions
"""
