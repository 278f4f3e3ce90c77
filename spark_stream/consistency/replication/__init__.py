"""What leader and follower do to their logs.

``leader``    how log end, high watermark and last stable offset move
``follower``  what a follower does with its leader's answer, frames and readers
``epochs``    leader epochs of a log, what two logs share, which records a reader lost
``promises``  leading without the metadata store
"""
