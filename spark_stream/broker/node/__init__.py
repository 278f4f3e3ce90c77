"""A broker's place in its cluster.

``identity``      which broker this is, and whether a caller is a broker of the same cluster
``lock``          one broker per directory, and how clients find it
``stores``        opens the directory with the metadata store that belongs to it
``members``       the other brokers: who is registered, who is alive
``registration``  its record: its address, the generation of its logs
``lease``         its lease: it leads only while that holds
``controlling``   what it does as the controller
``handover``      hands over what it leads: before it ends, and to preferred leaders
``placing``       which brokers get the replicas of a new partition
``scrubbing``     reads segments again and again; ``damaged``: what it does about damage
"""
