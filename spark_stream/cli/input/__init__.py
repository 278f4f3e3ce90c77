"""Files and standard input, read as Arrow batches of a topic.

``formats``       which format an input has, and its records as batches
``blocks``        bytes of a pipe or file, cut between two records
``csv_records``   where a CSV record ends, and whether its quotes are sound
``text_inputs``   blocks of lines and CSV as batches
``json_lines``    blocks of JSON lines as batches
``file_schemas``  a file's columns as those of a topic that takes the file
``fitting``       batches of a file as those of a topic, or an error that names the column
``placing``       which partition a record of the input asks for
"""
