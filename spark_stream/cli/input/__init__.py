"""Files and standard input as Arrow batches of a topic.

``formats``      the format of an input, its records as batches, and the schema of a fitting topic
``text_inputs``  text in blocks of whole records, and blocks of lines and CSV as batches
``json_inputs``  an array of JSON objects as blocks of lines
``placing``      the partitions of records
"""
