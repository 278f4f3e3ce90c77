"""Who may do what: rules, callers and credentials, as pure values.

``rules``        rules, and what a set of them allows
``callers``      who calls, and for how long that is known
``credentials``  passwords and tokens: how they are made, kept and compared

Nothing here asks a store or a clock. The broker (``broker.access``) does.
"""
