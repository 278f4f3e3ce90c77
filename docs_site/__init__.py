"""The code of the documentation site, beside the texts in ``docs/``.

``tables``    the generated tables in ``docs/``: ``python -m docs_site.tables``
``options``, ``settings``, ``commands``, ``series``, ``others``   the renderers of the tables
``hooks``     extensions of mkdocs for this site (``mkdocs.yml`` names it)
``pictures``  draws the pictures of the pages on concepts: ``python -m docs_site.pictures``
"""
