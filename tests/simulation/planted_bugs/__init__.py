"""Bugs to plant in the product: each is a function that patches it, and says what it breaks.

A simulator that finds nothing may be one that looks at nothing. Each of these is a mistake that
somebody could make, in one place, and that no type checker sees. There is a module for each
subject. A function that ``bug`` decorates is one of ``planted.BUGS``.
"""
