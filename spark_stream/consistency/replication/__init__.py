"""What leader and follower do to their logs.

``leader``    what an append and a replicated entry do to log end, high watermark, stable offset
``follower``  what a follower does with its leader's answer, which frames it takes
``epochs``    where leader epochs begin and end, and what two logs share
``lineage``   what a reader remembers of the log that it has read, to notice what was taken back
"""
