"""``isolog console``: a web page that shows a live cluster, and the states of its records.

The console is a client like any other. It uses the public calls of the brokers with the credential
of the user who has logged in, so it shows only data that this user may see.

``app``       the server: the page, its API, and the stream of events
``guard``     checks of each request: host, origin, headers
``sessions``  the users who have logged in, each with a separate connection
``board``     polls the cluster, and sends changes to the streams
``problems``  problems in words, derived from the data of the board, without I/O
``actions``   planned changes of topics, consumers, transactions and leaders
``plans``     the pending plans of a visitor, each applied at most once
``permissions``  the permissions of a visitor for actions
``client``    requests to the brokers, and their answers as JSON values
``history``   the figures of the last day, in a ring of fixed size
``search``    the search for records over partitions, in short steps
``records``   the found records with their states, and one record as a whole
``snippets``  code that reads the records of a page
``static/``   the page: plain modules of JavaScript and a style sheet
"""
