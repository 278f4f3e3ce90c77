"""What leader and follower do to their logs.

``leader``    how log end, high watermark and last stable offset move
``follower``  what a follower does with its leader's answer, and which frames it takes
``epochs``    where leader epochs begin and end, and what two logs share
``lineage``   what a reader remembers of the log that it has read, to notice truncation
"""
