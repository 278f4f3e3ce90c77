"""What makes the documentation site beside the texts in ``docs/``.

``tables``    the tables in ``docs/`` that are made from the code: ``python -m docs_site.tables``
``options``, ``settings``, ``commands``, ``series``, ``others``   what renders each of them
``hooks``     what mkdocs does for this site beyond its own (``mkdocs.yml`` names it)
``pictures``  draws the pictures of the pages on concepts: ``python -m docs_site.pictures``
"""
