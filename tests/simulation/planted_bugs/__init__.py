"""Bugs to plant in the product: functions that patch it, each with its effect as its docstring.

A simulator without findings may check too little. Each of these is a possible mistake of a
developer, in one place, that no type checker finds. There is a module for each
subject. A function that ``bug`` decorates is one of ``planted.BUGS``.
"""
