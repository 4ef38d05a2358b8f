"""``gfxgraph report``: one HTML page from the JSON that the commands write."""
